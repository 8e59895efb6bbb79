// attention_mma.cl: streaming attention and its gradients on NVIDIA's matrix units: mma.sync, or with WARPGROUP wgmma (16-bit
// storage, MT 1, a multiple of 4 warps), which reads right operands from shared memory itself. Follows ptx.cl and
// attention_tile.cl.
//
// Blocks, columns and results are those of attention_gpu.cl. A group of WARPS warps holds 16 MT rows per warp and walks over
// tiles of BC columns, two stages of which are in shared memory, filled by copies that complete later:
//   attend        rows = queries  X = k, Y = v    s = q X^T   o += p Y
//   query_grad    rows = queries  X = k, Y = v    s = q X^T, u = g Y^T   dq += ds X
//   key_grad      rows = keys     X = q, Y = g    s = k X^T, u = v Y^T   dv += p^T Y, dk += ds^T X
// Needs D, strides and offsets in multiples of 16 bytes, and scale > 0.
// Launch: local (WARPS * 32), global (blocks of rows * local, B * heads). USE_<KERNEL> picks the kernel of a program.
// Source: Dao 2023, arXiv:2307.08691; fragments: PTX ISA 8.3, section 9.7.14.
#define LOG2E 1.4426950408889634f
#define NONE (-INFINITY)

// Lengths, then strides of q, k, v, g in elements by batch, head and row (rows themselves are contiguous).
typedef struct {
    long B, H, G, Tq, Tk, D, causal, window, mask_b, qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, splits, rows;
} Dims;

// Query i sees the keys [LO(i), HI(i)). `off` = Tk - Tq.
#define LO(i) (window > 0 ? max((i) + off - window + 1, 0) : 0)
#define HI(i) min(causal ? (i) + off + 1 : window > 0 ? (i) + off + window : Tk, Tk)
#ifdef MASK
#define REAL(j) (mask[j] == 0)
#else
#define REAL(j) 1
#endif
#define SEEN(i, j) ((j) >= LO(i) && (j) < HI(i) && REAL(j))
#define LENGTHS \
    const int Tq = d.Tq, Tk = d.Tk, D = d.D, off = Tk - Tq, window = d.window, causal = d.causal; \
    const int item = get_local_id(0), warp = item >> 5, lane = item & 31, g8 = lane >> 2, t4 = lane & 3; \
    const long b = get_group_id(1) / heads, h = get_group_id(1) % heads;

// one row of a result: this lane's pairs of columns, times f
static inline void put_row(__global S* to, float (*o)[4], int second, int D, int t4, float f) {
    UNROLL for (int j = 0; j < ND; j++) {
        const int c = j * 8 + t4 * 2;
        if (c >= D) continue;
        const float x = o[j][second * 2] * f, y = o[j][second * 2 + 1] * f;
#ifdef TF32
        to[c] = x;
        to[c + 1] = y;
#else
        uint w;
        PACK_NARROW(w, x, y);
        *(__global uint*)(to + c) = w;
#endif
    }
}

static inline float over_lanes(float v, int largest) {
    uint w = as_uint(v);
    SHUFFLE_XOR(w, 1);
    v = largest ? fmax(v, as_float(w)) : v + as_float(w);
    w = as_uint(v);
    SHUFFLE_XOR(w, 2);
    return largest ? fmax(v, as_float(w)) : v + as_float(w);
}

#ifdef USE_ATTEND
__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void attend(
    __global S* restrict o, __global float* restrict lse, __global const S* restrict q, __global const S* restrict k,
    __global const S* restrict v, __global const uchar* restrict mask, long oq, long ok, long ov, long om, float scale,
    const Dims d) {
    SHARED(shared, KEPT + 4 * TILE);
    PROMISE
    const int heads = d.H;
    LENGTHS
    const uint held = LOCAL(shared), tiles = held + KEPT;
    // The last blocks of a causal head have the most keys: they go first, so that no unit is left with one at the end.
    const int q0 = ((int)get_num_groups(0) - 1 - (int)get_group_id(0)) * BR, rows = min(BR, Tq - q0);
    const float c = scale * LOG2E;
    q += oq + b * d.qb + h * d.qh + q0 * d.qt;
    k += ok + b * d.kb + h / d.G * d.kh;
    v += ov + b * d.vb + h / d.G * d.vh;
    mask += om + b * d.mask_b;
    const int begin = LO(q0), end = HI(q0 + rows - 1), count = (max(end - begin, 0) + BC - 1) / BC;
    const int r0 = q0 + warp * MT * 16;
    float out[MT][ND][4], top[MT][2], sum[MT][2];
    UNROLL for (int i = 0; i < MT; i++) {
        top[i][0] = top[i][1] = NONE;
        sum[i][0] = sum[i][1] = 0.0f;
        UNROLL for (int j = 0; j < ND; j++) UNROLL for (int e = 0; e < 4; e++) out[i][j][e] = 0.0f;
    }
    FETCH(held, q, d.qt, rows, BR)
    if (count > 0) {
        FETCH(tiles, k + begin * d.kt, d.kt, Tk - begin, BC)
        FETCH(tiles + TILE, v + begin * d.vt, d.vt, Tk - begin, BC)
    }
    COPY_GROUP();
    SPLIT_HELD()
    for (int n = 0; n < count; n++) {
        const int kb = begin + n * BC;
        const uint X = tiles + (n & 1) * 2 * TILE, Y = X + TILE, next = tiles + ((n + 1) & 1) * 2 * TILE;
        COPY_WAIT(0);
        READY();
        barrier(CLK_LOCAL_MEM_FENCE);
        if (n + 1 < count) {
            FETCH(next, k + (kb + BC) * d.kt, d.kt, Tk - kb - BC, BC)
            FETCH(next + TILE, v + (kb + BC) * d.vt, d.vt, Tk - kb - BC, BC)
        }
        COPY_GROUP();
        float s[MT][NC][4];
        SCORES(s, held, warp * MT * 16, X)
        SCORED(s)
        EACH_ROWS {
            const int first = r0 + i * 16;
#ifdef MASK
            const bool whole = false;
#else
            const bool whole = kb >= LO(first + 15) && kb + BC <= HI(first);
#endif
            if (!whole)
                UNROLL for (int j = 0; j < NC; j++) UNROLL for (int e = 0; e < 4; e++) {
                    const int at = first + g8 + (e >> 1) * 8, key = kb + j * 8 + t4 * 2 + (e & 1);
                    if (!SEEN(at, key)) s[i][j][e] = NONE;
                }
            UNROLL for (int w = 0; w < 2; w++) {
                float m = top[i][w];
                UNROLL for (int j = 0; j < NC; j++) {
                    m = fmax(m, s[i][j][2 * w]);
                    m = fmax(m, s[i][j][2 * w + 1]);
                }
                m = over_lanes(m, 1);
                const float base = m == NONE ? 0.0f : m * c, al = EXP2(top[i][w] * c - base);
                top[i][w] = m;
                float t = 0.0f;
                UNROLL for (int j = 0; j < NC; j++) {
                    s[i][j][2 * w] = EXP2(s[i][j][2 * w] * c - base);
                    s[i][j][2 * w + 1] = EXP2(s[i][j][2 * w + 1] * c - base);
                    t += s[i][j][2 * w] + s[i][j][2 * w + 1];
                }
                sum[i][w] = sum[i][w] * al + t;
                UNROLL for (int j = 0; j < ND; j++) {
                    out[i][j][2 * w] *= al;
                    out[i][j][2 * w + 1] *= al;
                }
            }
        }
        SPREAD(out, s, Y)
    }
    COPY_WAIT(0);
    const long row = get_group_id(1) * (long)Tq;
    UNROLL for (int i = 0; i < MT; i++) UNROLL for (int w = 0; w < 2; w++) {
        const int at = r0 + i * 16 + w * 8 + g8;
        const float t = over_lanes(sum[i][w], 0);
        if (at < q0 + rows) {
            put_row(o + (row + at) * D, out[i], w, D, t4, t == 0.0f ? 0.0f : 1.0f / t);
            if (t4 == 0) lse[row + at] = t == 0.0f ? NONE : top[i][w] * scale + log(t);
        }
    }
}
#endif

#ifdef USE_QUERY_GRAD
__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void query_grad(
    __global S* restrict dq, __global const S* restrict q, __global const S* restrict k, __global const S* restrict v,
    __global const S* restrict g, __global const float* restrict lse, __global const float* restrict delta,
    __global const uchar* restrict mask, long oq, long ok, long ov, long og, long ol, long om, float scale, const Dims d) {
    SHARED(shared, KEPT + 4 * TILE);
    PROMISE
    const int heads = d.H;
    LENGTHS
    const uint held = LOCAL(shared), tiles = held + KEPT;
    const int q0 = ((int)get_num_groups(0) - 1 - (int)get_group_id(0)) * BR, rows = min(BR, Tq - q0);
    const float c = scale * LOG2E;
    const long row = get_group_id(1) * (long)Tq;
    q += oq + b * d.qb + h * d.qh + q0 * d.qt;
    g += og + b * d.gb + h * d.gh + q0 * d.gt;
    k += ok + b * d.kb + h / d.G * d.kh;
    v += ov + b * d.vb + h / d.G * d.vh;
    mask += om + b * d.mask_b;
    const int begin = LO(q0), end = HI(q0 + rows - 1), count = (max(end - begin, 0) + BC - 1) / BC;
    const int first = q0 + warp * 16;
    float out[1][ND][4], top[2], dot[2];
    CLEAR(out, ND)
    UNROLL for (int w = 0; w < 2; w++) {
        const int at = first + w * 8 + g8;
        top[w] = at < q0 + rows ? lse[ol + row + at] * LOG2E : NONE;
        top[w] = top[w] == NONE ? INFINITY : top[w];
        dot[w] = at < q0 + rows ? delta[row + at] : 0.0f;
    }
    FETCH(held, q, d.qt, rows, BR)
    FETCH(held + HELD, g, d.gt, rows, BR)
    if (count > 0) {
        FETCH(tiles, k + begin * d.kt, d.kt, Tk - begin, BC)
        FETCH(tiles + TILE, v + begin * d.vt, d.vt, Tk - begin, BC)
    }
    COPY_GROUP();
    SPLIT_HELD()
    for (int n = 0; n < count; n++) {
        const int kb = begin + n * BC;
        const uint X = tiles + (n & 1) * 2 * TILE, Y = X + TILE, next = tiles + ((n + 1) & 1) * 2 * TILE;
        COPY_WAIT(0);
        READY();
        barrier(CLK_LOCAL_MEM_FENCE);
        if (n + 1 < count) {
            FETCH(next, k + (kb + BC) * d.kt, d.kt, Tk - kb - BC, BC)
            FETCH(next + TILE, v + (kb + BC) * d.vt, d.vt, Tk - kb - BC, BC)
        }
        COPY_GROUP();
        float s[1][NC][4], u[1][NC][4];
        SCORES(s, held, warp * 16, X)
        SCORES(u, held + HELD, warp * 16, Y)
        SCORED(s)
        SCORED(u)
#ifdef MASK
        const bool whole = false;
#else
        const bool whole = kb >= LO(first + 15) && kb + BC <= HI(first);
#endif
        UNROLL for (int j = 0; j < NC; j++) UNROLL for (int e = 0; e < 4; e++) {
            const float p = EXP2(s[0][j][e] * c - top[e >> 1]);
            s[0][j][e] = p * (u[0][j][e] - dot[e >> 1]);
        }
        if (!whole)
            UNROLL for (int j = 0; j < NC; j++) UNROLL for (int e = 0; e < 4; e++) {
                const int at = first + g8 + (e >> 1) * 8, key = kb + j * 8 + t4 * 2 + (e & 1);
                if (!SEEN(at, key) || top[e >> 1] == INFINITY) s[0][j][e] = 0.0f;
            }
        SPREAD(out, s, X)
    }
    COPY_WAIT(0);
    UNROLL for (int w = 0; w < 2; w++) {
        const int at = first + w * 8 + g8;
        if (at < q0 + rows) put_row(dq + (row + at) * D, out[0], w, D, t4, scale);
    }
}
#endif

#ifdef USE_KEY_GRAD
__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void key_grad(
    __global S* restrict dk, __global S* restrict dv, __global const S* restrict q, __global const S* restrict k,
    __global const S* restrict v, __global const S* restrict g, __global const float* restrict lse,
    __global const float* restrict delta, __global const uchar* restrict mask, long oq, long ok, long ov, long og, long ol,
    long om, float scale, const Dims d) {
    SHARED(shared, KEPT + 4 * TILE + 16 * BC);
    PROMISE
    const int heads = d.H / d.G;
    LENGTHS
    const uint held = LOCAL(shared), tiles = held + KEPT, rows_at = tiles + 4 * TILE;
    const int k0 = get_group_id(0) * BR, rows = min(BR, Tk - k0), first = k0 + warp * 16;
    const float c = scale * LOG2E;
    k += ok + b * d.kb + h * d.kh + k0 * d.kt;
    v += ov + b * d.vb + h * d.vh + k0 * d.vt;
    q += oq + b * d.qb + h * d.G * d.qh;
    g += og + b * d.gb + h * d.G * d.gh;
    lse += ol + (b * d.H + h * d.G) * Tq;
    delta += (b * d.H + h * d.G) * Tq;
    mask += om + b * d.mask_b;
    // Queries that see a key of this block: from its first key's own place on (causal), and at most `window` away.
    const int begin = max(0, causal ? k0 - off : window > 0 ? k0 - off - window + 1 : 0);
    const int end = window > 0 ? min(Tq, k0 + rows - 1 - off + window) : Tq;
    const int count = (max(end - begin, 0) + BC - 1) / BC * (int)d.G;
    float ak[1][ND][4], av[1][ND][4];
    CLEAR(ak, ND)
    CLEAR(av, ND)
    FETCH(held, k, d.kt, rows, BR)
    FETCH(held + HELD, v, d.vt, rows, BR)
    if (count > 0) {
        FETCH(tiles, q + begin * d.qt, d.qt, Tq - begin, BC)
        FETCH(tiles + TILE, g + begin * d.gt, d.gt, Tq - begin, BC)
        FETCH_SUMS(rows_at, 0, begin)
    }
    COPY_GROUP();
    SPLIT_HELD()
    int z = 0, qb = begin;
    for (int n = 0; n < count; n++) {
        const bool last = qb + BC >= end;    // of this head
        const int z1 = z + last, at1 = last ? begin : qb + BC;
        const uint X = tiles + (n & 1) * 2 * TILE, Y = X + TILE, next = tiles + ((n + 1) & 1) * 2 * TILE;
        COPY_WAIT(0);
        READY();
        barrier(CLK_LOCAL_MEM_FENCE);
        if (n + 1 < count) {
            FETCH(next, q + z1 * d.qh + at1 * d.qt, d.qt, Tq - at1, BC)
            FETCH(next + TILE, g + z1 * d.gh + at1 * d.gt, d.gt, Tq - at1, BC)
            FETCH_SUMS(rows_at + ((n + 1) & 1) * 8 * BC, z1 * Tq, at1)
        }
        COPY_GROUP();
        float s[1][NC][4], u[1][NC][4];
        SCORES(s, held, warp * 16, X)
        SCORES(u, held + HELD, warp * 16, Y)
        SCORED(s)
        SCORED(u)
#ifdef MASK
        const bool whole = false;
#else
        const bool whole = qb + BC <= Tq && first >= LO(qb + BC - 1) && first + 16 <= HI(qb);
#endif
        const uint sums = rows_at + (n & 1) * 8 * BC + t4 * 8;
        UNROLL for (int j = 0; j < NC; j++) {
            float top[2], dot[2];
            LOAD_PAIR(top[0], top[1], sums + j * 32);
            LOAD_PAIR(dot[0], dot[1], sums + j * 32 + 4 * BC);
            UNROLL for (int w = 0; w < 2; w++) {
                const int at = qb + j * 8 + t4 * 2 + w;
                const float t = top[w] == NONE ? INFINITY : top[w] * LOG2E;   // a query that sees nothing: all zero
                UNROLL for (int e = w; e < 4; e += 2) {
                    const float p = EXP2(s[0][j][e] * c - t);
                    const bool zero = !whole && (at >= Tq || !SEEN(at, first + g8 + (e >> 1) * 8));
                    s[0][j][e] = zero ? 0.0f : p;
                    u[0][j][e] = zero ? 0.0f : p * (u[0][j][e] - dot[w]);
                }
            }
        }
        SPREAD(av, s, Y)
        SPREAD(ak, u, X)
        z = z1;
        qb = at1;
    }
    COPY_WAIT(0);
    const long row = get_group_id(1) * (long)Tk;
    UNROLL for (int w = 0; w < 2; w++) {
        const int at = first + w * 8 + g8;
        if (at < k0 + rows) {
            put_row(dk + (row + at) * D, ak[0], w, D, t4, scale);
            put_row(dv + (row + at) * D, av[0], w, D, t4, 1.0f);
        }
    }
}
#endif
