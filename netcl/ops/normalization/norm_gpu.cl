// norm_gpu.cl: layer norm and RMS norm over rows, with gradients, for GPUs.
//
//   x, y (rows, n) row-major; mean, rstd (rows,) in the compute type E; w, b (n,) stored as W.
//   y[r, :] = (x[r, :] - mean[r]) * rstd[r] * w + b, with rstd = 1 / sqrt(mean of squares about the mean + eps);
//   RMS leaves the mean out. CHANNELS: row r holds `per` channels of `span` elements, w and b belong to channels (group
//   norm).
//
// A row belongs to WG work-items, a work-group holds ROWS rows:  local = (WG, ROWS), item (i, r) keeps the vectors
// i, i + WG, i + 2 WG, ... of its row in registers (PER of them; PER 0: rows too long for that are read again).
// Sums go through local memory. Every work-group has all its work-items at every barrier.
// E is the compute type, V a vector of VEC of them (1 or 4; 4 needs n and all offsets to be multiples of 4).
// D are the sizes of a launch. USE_<KERNEL> picks the kernels of a program, since drivers compile everything they see.
// Source: Ba et al. 2016, arXiv:1607.06450; Zhang and Sennrich 2019, arXiv:1910.07467; Wu and He 2018,
// arXiv:1803.08494.
typedef struct { long rows, n, groups, per, span; } Dims;

#ifndef WG
#define WG 256      // work-items per row, a power of two (32..256)
#endif
#ifndef ROWS
#define ROWS 1      // rows per work-group; WG * ROWS is the size of the group
#endif
#ifdef CHANNELS
#define CHANNEL0 long c0 = r % D.groups * D.per;
#else
#define CHANNEL0
#endif
#ifdef CHANNELS
#define PARAMETER(p, i) ((V)(LOADW(p, c0 + (long)(i) * VEC / D.span)))    // a vector never crosses a channel
#elif defined(W_NARROW) && VEC == 4
#define PARAMETER(p, i) JOIN(JOIN(LOAD_, W_NARROW), 4A)((p) + 4 * (i))
#else
#define PARAMETER(p, i) GETW(p, i)
#endif
#ifdef W_NARROW
#define GETW(p, i) JOIN(LOAD_, W_NARROW)(p, i)
#else
#define GETW(p, i) WIDE(p, i)
#endif
#ifdef HAS_W
#define TIMES_W(i) * PARAMETER(w, i)
#else
#define TIMES_W(i)
#endif
#ifdef HAS_B
#define PLUS_B(i) + PARAMETER(b, i)
#else
#define PLUS_B(i)
#endif
// `for` over the vectors of a row that this work-item owns: k counts them, i is the place in the row.
#if PER
#define OWN _Pragma("unroll") for (int k = 0, i = lid; k < PER; k++, i += WG) if (i < nv)
#else
#define OWN for (int i = lid; i < nv; i += WG)
#endif
#define GROUP_SIZE __attribute__((reqd_work_group_size(WG, ROWS, 1)))

#define FOLD (WG >= 128 ? 16 : WG >= 32 ? 8 : WG >= 8 ? 4 : 1)  // about the root of WG
#define PLACES (WG + FOLD)

// Sum of v over the work-items of a row, in the same order on every run; `t` has PLACES * ROWS places. FOLD work-items
// add up WG / FOLD values each, then everybody those sums: two barriers, and none is needed before the next call.
static inline E row_total(__local E* t, E v) {
    int lid = get_local_id(0);
    t += get_local_id(1) * PLACES;
    t[lid] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lid < FOLD) {
        E s = 0;
        for (int j = lid; j < WG; j += FOLD) s += t[j];
        t[WG + lid] = s;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    E s = 0;
    for (int j = 0; j < FOLD; j++) s += t[WG + j];
    return s;
}

// Two sums at once; `t` has 2 * PLACES * ROWS places.
static inline void row_totals(__local E* t, E* a, E* b) {
    int lid = get_local_id(0);
    t += get_local_id(1) * 2 * PLACES;
    __local E* u = t + PLACES;
    t[lid] = *a;
    u[lid] = *b;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lid < FOLD) {
        E s = 0, r = 0;
        for (int j = lid; j < WG; j += FOLD) { s += t[j]; r += u[j]; }
        t[WG + lid] = s;
        u[WG + lid] = r;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    E s = 0, r = 0;
    for (int j = 0; j < FOLD; j++) { s += t[WG + j]; r += u[WG + j]; }
    *a = s;
    *b = r;
}

#ifdef USE_NORM
__kernel GROUP_SIZE void norm(__global const S* restrict x, __global const W* restrict w, __global const W* restrict b,
                              __global S* restrict y, __global E* restrict mean, __global E* restrict rstd, long ox,
                              long ow, long ob, const Dims D, E eps) {
    __local E tree[PLACES * ROWS];
    int lid = get_local_id(0);
    long r = (long)get_group_id(0) * ROWS + get_local_id(1);
    int nv = r < D.rows ? D.n / VEC : 0;        // rows past the end take part in the barriers only
    x += ox + r * D.n;
    y += r * D.n;
    w += ow;
    b += ob;
    CHANNEL0
    V s = (V)(0);
#if PER
    V v[PER];
    OWN v[k] = GET(x, i);
#define X v[k]
#else
#define X GET(x, i)
#endif
#ifdef RMS
    E m = 0;
#else
    OWN s += X;
    E m = row_total(tree, SUM(s)) / D.n;
    s = (V)(0);
#endif
    OWN { V d = X - m; s += d * d; }
    E scale = 1 / sqrt(row_total(tree, SUM(s)) / D.n + eps);
    OWN SET(y, i, (X - m) * scale TIMES_W(i) PLUS_B(i));
    if (lid == 0 && r < D.rows) {
#ifndef RMS
        mean[r] = m;
#endif
        rstd[r] = scale;
    }
#undef X
}
#endif

// With h = (x - mean) * rstd and u = g * w: dx = rstd * (u - mean(u) - h * mean(u * h)), RMS without mean(u).
// dw = sum over rows of g * h and db = sum over rows of g: each group walks over many rows, its work-items keep their
// own columns' sums in registers (PER 0: in their part of dw_part, db_part) and write them once, (groups * ROWS, n).
#ifdef RMS
#define MEAN(r) ((E)0)
#else
#define MEAN(r) mean[r]
#endif
#ifdef DW
#define ZERO_W(i) PUT(dw_part, i, (V)(0))
#define ADD_W(i, v) PUT(dw_part, i, WIDE(dw_part, i) + (v))
#else
#define ZERO_W(i)
#define ADD_W(i, v)
#endif
#ifdef DB
#define ZERO_B(i) PUT(db_part, i, (V)(0))
#define ADD_B(i, v) PUT(db_part, i, WIDE(db_part, i) + (v))
#else
#define ZERO_B(i)
#define ADD_B(i, v)
#endif

#ifdef USE_NORM_GRAD
__kernel GROUP_SIZE void norm_grad(__global S* restrict dx, __global E* restrict dw_part, __global E* restrict db_part,
                                   __global const S* restrict g, __global const S* restrict x,
                                   __global const W* restrict w, __global const E* restrict mean,
                                   __global const E* restrict rstd, long og, long ox, long ow, long omean, long orstd,
                                   const Dims D) {
    __local E tree[2 * PLACES * ROWS];
    int lid = get_local_id(0);
    long slot = (long)get_group_id(0) * ROWS + get_local_id(1), stride = (long)get_num_groups(0) * ROWS;
    w += ow;
    dw_part += slot * D.n;
    db_part += slot * D.n;
#if PER
    V dw[PER], db[PER];
    _Pragma("unroll") for (int k = 0; k < PER; k++) dw[k] = db[k] = (V)(0);
#else
    for (int i = lid; i < D.n / VEC; i += WG) { ZERO_W(i); ZERO_B(i); }
#endif
    for (long base = (long)get_group_id(0) * ROWS; base < D.rows; base += stride) {
        long r = base + get_local_id(1);
        int nv = r < D.rows ? D.n / VEC : 0;
        CHANNEL0
        __global const S *gr = g + og + r * D.n, *xr = x + ox + r * D.n;
        E m = r < D.rows ? MEAN(omean + r) : 0, scale = r < D.rows ? rstd[orstd + r] : 0;
        V su = (V)(0), suh = (V)(0);
#if PER
        V gv[PER], hv[PER];
        OWN { gv[k] = GET(gr, i); hv[k] = GET(xr, i); }
        OWN {
            hv[k] = (hv[k] - m) * scale;
            dw[k] += gv[k] * hv[k];
            db[k] += gv[k];
            gv[k] = gv[k] TIMES_W(i);
            su += gv[k];
            suh += gv[k] * hv[k];
        }
#else
        OWN {
            V gi = GET(gr, i), hi = (GET(xr, i) - m) * scale;
            ADD_W(i, gi * hi);
            ADD_B(i, gi);
            gi = gi TIMES_W(i);
            su += gi;
            suh += gi * hi;
        }
#endif
#ifdef DX
        E b0 = SUM(su), b1 = SUM(suh);
#ifdef RMS
        b1 = row_total(tree, b1) / D.n;
        b0 = 0;
#else
        row_totals(tree, &b0, &b1);
        b0 /= D.n;
        b1 /= D.n;
#endif
#if PER
        OWN SET(dx + r * D.n, i, (gv[k] - b0 - hv[k] * b1) * scale);
#else
        OWN SET(dx + r * D.n, i, (GET(gr, i) TIMES_W(i) - b0 - (GET(xr, i) - m) * scale * b1) * scale);
#endif
#endif
    }
#if PER
    int nv = D.n / VEC;
#ifdef DW
    OWN PUT(dw_part, i, dw[k]);
#endif
#ifdef DB
    OWN PUT(db_part, i, db[k]);
#endif
#endif
}
#endif

#ifdef USE_CHANNEL_SUMS
// Group norm: sums per channel of one sample, dw_part and db_part (N, C). A row of the launch is one (sample, channel).
__kernel GROUP_SIZE void channel_sums(__global E* restrict dw_part, __global E* restrict db_part,
                                      __global const S* restrict g, __global const S* restrict x,
                                      __global const E* restrict mean, __global const E* restrict rstd, long og,
                                      long ox, long omean, long orstd, const Dims D) {
    __local E tree[PLACES * ROWS];
    int lid = get_local_id(0);
    long r = (long)get_group_id(0) * ROWS + get_local_id(1);
    int nv = r < D.rows ? D.n / VEC : 0;
    g += og + r * D.n;
    x += ox + r * D.n;
    E m = r < D.rows ? mean[omean + r / D.per] : 0, scale = r < D.rows ? rstd[orstd + r / D.per] : 0;
    V sg = (V)(0), sgh = (V)(0);
    for (int i = lid; i < nv; i += WG) {
        V u = GET(g, i);
        sg += u;
        sgh += u * (GET(x, i) - m);
    }
    E a = row_total(tree, SUM(sg)), c = row_total(tree, SUM(sgh)) * scale;
    if (lid == 0 && r < D.rows) {
        db_part[r] = a;
        dw_part[r] = c;
    }
}
#endif

// dw = sum over `parts` rows of dw_part (parts, n), likewise db. Launch: local = (WIDTH, LANES, 1),
// WIDTH columns per group, the third group index picks the pair of arrays.
#ifndef LANES
#define LANES 8      // rows summed side by side, a power of two
#endif
#ifndef WIDTH
#define WIDTH 32     // columns per group; WIDTH * LANES is the size of the group
#endif
#ifdef USE_COLUMNS
__kernel __attribute__((reqd_work_group_size(WIDTH, LANES, 1)))
void columns(__global W* restrict dw, __global W* restrict db, __global const E* restrict dw_part,
             __global const E* restrict db_part, long parts, long n) {
    __local E tree[WIDTH * LANES];
    __global const E* part = get_group_id(2) ? db_part : dw_part;
    __global W* out = get_group_id(2) ? db : dw;
    int cx = get_local_id(0), lane = get_local_id(1);
    long c = (long)get_group_id(0) * WIDTH + cx;
    E s = 0;
    if (c < n)
        for (long p = lane; p < parts; p += LANES) s += part[p * n + c];
    tree[lane * WIDTH + cx] = s;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane > 0 || c >= n) return;
    s = 0;
    for (int k = 0; k < LANES; k++) s += tree[k * WIDTH + cx];
    STOREW(out, c, s);
}
#endif
