// pool_gpu.cl: what pool.cl computes, for windows of fixed size on GPUs: rows of neighbours out of registers.
//
// Follows strips.cl, which gives layout and launch. G and At of gradients are contiguous like all results. USE_<KERNEL>
// picks the kernel of a program. INDICES: max_pool also writes where the maxima are.
#define EACH_RESULT(t, e)               \
    UNROLL for (int t = 0; t < TH; t++) \
        UNROLL for (int e = 0; e < TW; e++)
#define TILE(p, offset)                                              \
    const I tile = get_global_id(0);                                 \
    if (tile >= D.tiles) return;                                     \
    TILE_AT(tile)                                                      \
    p += offset + (I)((U)plane / (U)D.C) * (I)D.xn + (I)((U)plane % (U)D.C) * (I)D.xc;
// Row `r` of the strips, and the results that meet it.
#define EACH_STRIP(r)                           \
    UNROLL for (int r = 0; r < SPANY; r++)
#define EACH_MEETING(t, r)                      \
    UNROLL for (int t = 0; t < TH; t++)         \
        if (MEETS_ROW(t, r))
#define STRIP(read, to, p, r, fill) \
    read(to, p + (y0 + r) * (I)D.xh, (I)D.xw, x0, D.W, (uint)(y0 + r) < (uint)D.H, fill)
#define WRITE(write, to, offset, values)                                                            \
    UNROLL for (int t = 0; t < TH; t++)                                                             \
        if (i0 + t < D.Rh)                                                                          \
            write(to + offset + (plane * D.Rh + i0 + t) * (I)D.Rw + j0, values[t], D.Rw - j0);

#ifdef USE_MAX_POOL
#if INDICES
WRITER(write_places, int, int, PUT_INT)
#endif
// The first tap from `start` on that lies in the image, or -1.
static inline int first_inside(int start, int step, int length) {
    const int at = start < 0 ? start + (step - 1 - start) / step * step : start;
    return at < length ? at : -1;
}
// y = maximum, at = y * W + x of the first element that has it (NaN counts as the largest). Windows outside give -1.
__kernel void max_pool(__global S* Y, __global int* At, __global const S* X, long oY, long oX, const Dims D) {
    TILE(X, oX)
    E best[TH][TW], s[SPANX];
    int at[TH][TW];
    EACH_RESULT(t, e) {
        const int row = first_inside(y0 + t * SY, DY, D.H), column = first_inside(x0 + e * SX, DX, D.W);
        best[t][e] = (E)LOWEST;
        at[t][e] = row < 0 || column < 0 ? -1 : row * D.W + column;
    }
    EACH_STRIP(r) {
        const int here = (y0 + r) * D.W + x0;
        STRIP(read_strip, s, X, r, (E)LOWEST);
        EACH_MEETING(t, r) PAIRS(e, v) {
            const E value = s[AT(e, v)];
            const bool better = !(value <= best[t][e]) && best[t][e] == best[t][e];   // larger, or the first NaN
            best[t][e] = better ? value : best[t][e];
            at[t][e] = better ? here + AT(e, v) : at[t][e];
        }
    }
    WRITE(write_row, Y, oY, best)
#if INDICES
    WRITE(write_places, At, 0, at)
#endif
}
#endif

#ifdef USE_MAX_POOL_GRAD
READER(read_places, int, int, SPANX, LEADX, VX, GET_INT)
// dx = sum of g over the windows whose maximum lies here.
__kernel void max_pool_grad(__global S* dX, __global const S* G, __global const int* At, long odX, long oG, long oAt,
                            const Dims D) {
    TILE(G, oG)
    At += oAt + plane * (I)D.xc;
    E sum[TH][TW], s[SPANX];
    int at[SPANX];
    EACH_RESULT(t, e) sum[t][e] = 0;
    EACH_STRIP(r) {
        STRIP(read_strip, s, G, r, (E)0);
        STRIP(read_places, at, At, r, -1);
        EACH_MEETING(t, r) PAIRS(e, v) sum[t][e] += at[AT(e, v)] == (i0 + t) * D.Rw + j0 + e ? s[AT(e, v)] : (E)0;
    }
    WRITE(write_row, dX, odX, sum)
}
#endif

// Elements that window i counts as, along an axis.
static inline int counted(int i, int k, int step, int pad, int length, int with_pad) {
    const int start = i * step - pad, end = min(start + k, length + pad);
    return with_pad ? end - start : min(end, length) - max(start, 0);
}

#ifdef USE_AVG_POOL
__kernel void avg_pool(__global S* Y, __global const S* X, long oY, long oX, const Dims D) {
    TILE(X, oX)
    E sum[TH][TW], s[SPANX];
    EACH_RESULT(t, e) sum[t][e] = 0;
    EACH_STRIP(r) {
        STRIP(read_strip, s, X, r, (E)0);
        EACH_MEETING(t, r) PAIRS(e, v) sum[t][e] += s[AT(e, v)];
    }
    EACH_RESULT(t, e) {
        const int high = counted(i0 + t, KH, SY, PY, D.H, D.with_pad),
            wide = counted(j0 + e, KW, SX, PX, D.W, D.with_pad);
        sum[t][e] /= (E)(D.divisor ? D.divisor : (long)high * wide);
    }
    WRITE(write_row, Y, oY, sum)
}
#endif

#ifdef USE_AVG_POOL_GRAD
__kernel void avg_pool_grad(__global S* dX, __global const S* G, long odX, long oG, const Dims D) {
    TILE(G, oG)
    E sum[TH][TW], s[SPANX];
    EACH_RESULT(t, e) sum[t][e] = 0;
    EACH_STRIP(r) {
        const int high = counted(y0 + r, KH, SY, PY, D.Rh, D.with_pad);
        STRIP(read_strip, s, G, r, (E)0);
        UNROLL for (int q = 0; q < SPANX; q++) {   // what lies outside stays 0, whatever it would count as
            const int wide = counted(x0 + q, KW, SX, PX, D.Rw, D.with_pad);
            const bool inside = (uint)(x0 + q) < (uint)D.W && (uint)(y0 + r) < (uint)D.H;
            s[q] = inside ? s[q] / (E)(D.divisor ? D.divisor : (long)high * wide) : (E)0;
        }
        EACH_MEETING(t, r) PAIRS(e, v) sum[t][e] += s[AT(e, v)];
    }
    WRITE(write_row, dX, odX, sum)
}
#endif
