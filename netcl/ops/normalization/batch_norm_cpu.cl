// batch_norm_cpu.cl: batch norm over the channels of x (N, C, span), with gradients, for CPU devices.
//
//   y = (x - mean[c]) * rstd[c] * w[c] + b[c], then relu with RELU; mean, rstd (C,) over N and span in the compute type
//   E.
//
// span > 1: one work-item per channel walks N rows of `span` elements three times (mean, variance, result); in eval
// mode one per `step` rows. COLUMNS (span 1, x is (N, C)): one work-item per CV vectors of VW channels walks N rows, in
// eval mode one per vector. Launch: local = 1; no barriers, no builtins in inner loops. E is the compute type, V a
// vector of VW of them, S the storage type of x and y.
// Running statistics: r = (1 - momentum) * r + momentum * (mean, or variance with N * span - 1 in its denominator).
// D are the sizes of a launch. USE_<KERNEL> picks the kernels of a program, since drivers compile everything they see.
// Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
typedef struct { long N, C, span, step; } Dims;

#ifdef HAS_W
#define WEIGHT(c) LOADW(w, c)
#else
#define WEIGHT(c) ((E)1)
#endif
#ifdef HAS_B
#define SHIFT(c) LOADW(b, c)
#else
#define SHIFT(c) ((E)0)
#endif
#ifdef RELU
#define ACT(v) ((v) < 0 ? 0 : (v))
#define ACTV(v) ((v) < 0 ? (V)(0) : (v))
#define GATE(v, g) ((v) > 0 ? (g) : (v) <= 0 ? (E)(0) : (v))     // relu's gradient; NaN stays NaN
#define GATEV(v, g) ((v) > 0 ? (g) : (v) <= 0 ? (V)(0) : (v))
#else
#define ACT(v) (v)
#define ACTV(v) (v)
#define GATE(v, g) (g)
#define GATEV(v, g) (g)
#endif

static inline E row_sum(__global const S* x, long n) {
    V s0 = (V)(0), s1 = s0;
    long i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) { s0 += GET(x + i); s1 += GET(x + i + VW); }
    for (; i + VW <= n; i += VW) s0 += GET(x + i);
    E s = total(s0 + s1);
    for (; i < n; i++) s += LOAD(x, i);
    return s;
}

static inline E row_squares(__global const S* x, long n, E m) {
    V s0 = (V)(0), s1 = s0;
    long i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) { V a = GET(x + i) - m, c = GET(x + i + VW) - m; s0 += a * a; s1 += c * c; }
    for (; i + VW <= n; i += VW) { V a = GET(x + i) - m; s0 += a * a; }
    E s = total(s0 + s1);
    for (; i < n; i++) { E a = LOAD(x, i) - m; s += a * a; }
    return s;
}

static inline void scale_row(__global S* y, __global const S* x, long n, E m, E k, E c) {
    long i = 0;
    for (; i + VW <= n; i += VW) { V v = (GET(x + i) - m) * k + c; SET(y + i, ACTV(v)); }
    for (; i < n; i++) { E v = (LOAD(x, i) - m) * k + c; STORE(y, i, ACT(v)); }
}

// Lanes of a column block: `count` of VW channels exist.
static inline V load_part(__global const S* p, long count) {
    if (count >= VW) return GET(p);
    E t[VW];
    for (int j = 0; j < VW; j++) t[j] = j < count ? LOAD(p, j) : 0;
    return *(U*)t;
}

static inline void store_part(__global S* p, V v, long count) {
    if (count >= VW) { SET(p, v); return; }
    E t[VW];
    *(U*)t = v;
    for (int j = 0; j < count; j++) STORE(p, j, t[j]);
}

// CV vectors of channels from c on, of which `count` channels exist: all when `whole`.
#define EACH _Pragma("unroll") for (int v = 0; v < CV; v++)
#define PART(p) (whole ? GET(p) : load_part(p, count - v * VW))

static inline V parameters(__global const E* a, long c, long count) {
    E t[VW];
    for (int j = 0; j < VW; j++) t[j] = j < count ? a[c + j] : 0;
    return *(U*)t;
}

static inline V weights(__global const W* w, long c, long count) {
    E t[VW];
    for (int j = 0; j < VW; j++) t[j] = j < count ? WEIGHT(c + j) : 0;
    return *(U*)t;
}

static inline V shifts(__global const W* b, long c, long count) {
    E t[VW];
    for (int j = 0; j < VW; j++) t[j] = j < count ? SHIFT(c + j) : 0;
    return *(U*)t;
}

// Keep mean and rstd of channel c and move the running statistics; returns rstd.
static inline E keep(__global E* mean, __global E* rstd, __global E* rm, __global E* rv, long c, E m, E squares, E n,
                     E eps, E momentum) {
    E k = 1 / sqrt(squares / n + eps);
    mean[c] = m;
    rstd[c] = k;
#ifdef TRACK
    rm[c] = rm[c] * (1 - momentum) + momentum * m;
    rv[c] = rv[c] * (1 - momentum) + momentum * (squares / (n - 1));
#endif
    return k;
}

#ifdef USE_BATCH
#ifdef COLUMNS
#define ROWS 64     // of a slab that the nearest cache holds while its mean and then its squares are summed

// Slabs of rows are joined by Chan, Golub and LeVeque 1979: squares about the common mean are those about each one's
// own, and the squared distance of the means times a b / (a + b) for slabs of a and b rows.
static inline void columns(__global S* restrict y, __global E* restrict mean, __global E* restrict rstd,
                           __global E* restrict rm, __global E* restrict rv, __global const S* restrict x,
                           __global const W* restrict w, __global const W* restrict b, long N, long C, E eps,
                           E momentum, long c, long count, const int whole) {
    V s[CV], squares[CV], m[CV], sum[CV], t[CV];
    EACH s[v] = squares[v] = (V)(0);
    for (long first = 0; first < N; first += ROWS) {
        long last = first + ROWS < N ? first + ROWS : N;
        EACH sum[v] = (V)(0);
        for (long n = first; n < last; n++) EACH sum[v] += PART(x + n * C + c + v * VW);
        E rows = last - first, before = first;
        EACH {
            m[v] = sum[v] / rows;
            V apart = first ? m[v] - s[v] / before : (V)(0);
            squares[v] += apart * apart * (before * rows / (before + rows));
            s[v] += sum[v];
        }
        for (long n = first; n < last; n++) EACH {
            V d = PART(x + n * C + c + v * VW) - m[v];
            squares[v] += d * d;
        }
    }
    EACH {
        long at = c + v * VW, exist = count - v * VW;
        m[v] = s[v] / (E)N;
        for (int j = 0; j < VW && j < exist; j++)
            ((E*)(s + v))[j] = keep(mean, rstd, rm, rv, at + j, ((E*)(m + v))[j], ((E*)(squares + v))[j], N, eps,
                                    momentum);
        s[v] *= weights(w, at, exist);
        t[v] = shifts(b, at, exist);
    }
    for (long n = 0; n < N; n++) EACH {
        long at = n * C + c + v * VW;
        V z = (PART(x + at) - m[v]) * s[v] + t[v];
        if (whole) SET(y + at, ACTV(z));
        else store_part(y + at, ACTV(z), count - v * VW);
    }
}
#endif

__kernel void batch(__global const S* restrict x, __global const W* restrict w, __global const W* restrict b,
                    __global E* restrict rm, __global E* restrict rv, __global S* restrict y, __global E* restrict mean,
                    __global E* restrict rstd, long ox, long ow, long ob, long orm, long orv, const Dims D, E eps,
                    E momentum) {
    x += ox;
    w += ow;
    b += ob;
    rm += orm;
    rv += orv;
#ifdef COLUMNS
    long c = get_global_id(0) * (CV * VW);
    if (D.C - c >= CV * VW) columns(y, mean, rstd, rm, rv, x, w, b, D.N, D.C, eps, momentum, c, CV * VW, 1);
    else columns(y, mean, rstd, rm, rv, x, w, b, D.N, D.C, eps, momentum, c, D.C - c, 0);
#else
    long c = get_global_id(0);
    E s = 0, size = (E)D.N * D.span;
    for (long n = 0; n < D.N; n++) s += row_sum(x + (n * D.C + c) * D.span, D.span);
    E m = s / size;
    s = 0;
    for (long n = 0; n < D.N; n++) s += row_squares(x + (n * D.C + c) * D.span, D.span, m);
    E k = keep(mean, rstd, rm, rv, c, m, s, size, eps, momentum) * WEIGHT(c);
    for (long n = 0; n < D.N; n++) scale_row(y + (n * D.C + c) * D.span, x + (n * D.C + c) * D.span, D.span, m, k,
                                             SHIFT(c));
#endif
}
#endif

#ifdef USE_APPLY
// Eval mode: spread (C,) is a variance that is given.
// Launch: (ceil(N * C / step)), or (ceil(C / VW), ceil(N / step)) for COLUMNS.
__kernel void apply(__global const S* restrict x, __global const W* restrict w, __global const W* restrict b,
                    __global const E* restrict mean, __global const E* restrict spread, __global S* restrict y, long ox,
                    long ow, long ob, long omean, long ospread, const Dims D, E eps) {
    x += ox;
    w += ow;
    b += ob;
    mean += omean;
    spread += ospread;
#ifdef COLUMNS
    long c = get_global_id(0) * VW, count = D.C - c < VW ? D.C - c : VW;
    long first = get_global_id(1) * D.step, last = first + D.step < D.N ? first + D.step : D.N;
    E t[VW];
    for (int j = 0; j < VW; j++) t[j] = j < count ? 1 / sqrt(spread[c + j] + eps) : 0;
    V m = parameters(mean, c, count), k = *(U*)t * weights(w, c, count), d = shifts(b, c, count);
    for (long n = first; n < last; n++) {
        V v = (load_part(x + n * D.C + c, count) - m) * k + d;
        store_part(y + n * D.C + c, ACTV(v), count);
    }
#else
    long first = get_global_id(0) * D.step, last = first + D.step < D.N * D.C ? first + D.step : D.N * D.C;
    for (long r = first; r < last; r++) {
        long c = r % D.C;
        scale_row(y + r * D.span, x + r * D.span, D.span, mean[c], WEIGHT(c) / sqrt(spread[c] + eps), SHIFT(c));
    }
#endif
}
#endif

#ifdef USE_BATCH_GRAD
// With h = (x - mean) * rstd, u = g (0 where relu was): dw = sum u h, db = sum u,
// dx = w * rstd * (u - db / n - h * dw / n), n = N * span; with FIXED statistics (eval) dx = w * rstd * u.
//
// A work-item takes CV vectors of channels (COLUMNS), or BLOCK channels: neighbours in memory are read together. A row
// that is no multiple of VW ends with a vector that overlaps the one before; in sums only its new lanes count. SHORT:
// span < VW.
#define INPUTS                                                                                                     \
    __global const S *restrict g, __global const S *restrict x, __global const W *restrict w,                       \
        __global const W *restrict b, __global const E *restrict mean, __global const E *restrict rstd
#ifdef COLUMNS
static inline void columns(__global S* restrict dx, __global W* restrict dw, __global W* restrict db, INPUTS, long N,
                           long C, long c, long count, const int whole) {
    V m[CV], k[CV], kf[CV], t[CV], su[CV], suh[CV];
    EACH {
        long at = c + v * VW, n = count - v * VW;
        m[v] = parameters(mean, at, n);
        k[v] = parameters(rstd, at, n);
        kf[v] = k[v] * weights(w, at, n);
        t[v] = shifts(b, at, n);
        su[v] = suh[v] = (V)(0);
    }
    for (long n = 0; n < N; n++) EACH {
        long at = n * C + c + v * VW;
        V h = PART(x + at) - m[v], u = PART(g + at);
        u = GATEV(h * kf[v] + t[v], u);
        su[v] += u;
        suh[v] += u * h;
    }
    EACH {
        suh[v] *= k[v];
        for (int j = 0; j < VW && v * VW + j < count; j++) {
            STOREW(db, c + v * VW + j, ((E*)(su + v))[j]);
            STOREW(dw, c + v * VW + j, ((E*)(suh + v))[j]);
        }
        suh[v] *= -kf[v] * k[v] / (E)N;
        su[v] *= -kf[v] / (E)N;
    }
#ifdef DX
    for (long n = 0; n < N; n++) EACH {
        long at = n * C + c + v * VW;
        V h = PART(x + at) - m[v], u = PART(g + at);
        u = GATEV(h * kf[v] + t[v], u) * kf[v];
#ifndef FIXED
        u += h * suh[v] + su[v];
#endif
        if (whole) SET(dx + at, u);
        else store_part(dx + at, u, count - v * VW);
    }
#endif
}
#else
#ifdef SHORT
typedef E R;
#define SUM(v) (v)
#else
typedef V R;
#define SUM(v) total(v)
#if VW == 16
#define LANE (V)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#elif VW == 8
#define LANE (V)(0, 1, 2, 3, 4, 5, 6, 7)
#else
#define LANE (V)(0, 1, 2, 3)
#endif
#endif

// Add u and u * (x - mean) of one row, lane by lane.
static inline void row_sums(R* su, R* suh, __global const S* g, __global const S* x, long n, E m, E k, E t) {
    R a0 = (R)(0), a1 = a0, z0 = a0, z1 = a0;
#ifdef SHORT
    for (long i = 0; i < n; i++) {
        E h = LOAD(x, i) - m, u = LOAD(g, i);
        u = GATE(h * k + t, u);
        a0 += u;
        z0 += u * h;
    }
#else
    long i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        V h0 = GET(x + i) - m, h1 = GET(x + i + VW) - m, u0 = GET(g + i), u1 = GET(g + i + VW);
        u0 = GATEV(h0 * k + t, u0);
        u1 = GATEV(h1 * k + t, u1);
        a0 += u0;
        a1 += u1;
        z0 += u0 * h0;
        z1 += u1 * h1;
    }
    for (; i + VW <= n; i += VW) {
        V h = GET(x + i) - m, u = GET(g + i);
        u = GATEV(h * k + t, u);
        a0 += u;
        z0 += u * h;
    }
    if (n % VW) {
        V h = GET(x + n - VW) - m, u = GET(g + n - VW), done = (V)(E)(VW - n % VW);
        u = GATEV(h * k + t, u);
        a1 += LANE >= done ? u : (V)(0);
        z1 += LANE >= done ? u * h : (V)(0);
    }
#endif
    *su += a0 + a1;
    *suh += z0 + z1;
}

// dx of one row, with u added p * (x - mean) + q.
static inline void row_grad(__global S* d, __global const S* g, __global const S* x, long n, E m, E k, E t, E p, E q) {
#ifdef SHORT
    for (long i = 0; i < n; i++) {
        E h = LOAD(x, i) - m, u = LOAD(g, i);
        u = GATE(h * k + t, u);
        STORE(d, i, u * k + (h * p + q));
    }
#else
    long i = 0;
    for (; i + VW <= n; i += VW) {
        V h = GET(x + i) - m, u = GET(g + i);
        u = GATEV(h * k + t, u);
        SET(d + i, u * k + (h * p + q));
    }
    if (n % VW) {
        V h = GET(x + n - VW) - m, u = GET(g + n - VW);
        u = GATEV(h * k + t, u);
        SET(d + n - VW, u * k + (h * p + q));
    }
#endif
}
#endif

__kernel void batch_grad(__global S* restrict dx, __global W* restrict dw, __global W* restrict db, INPUTS, long og,
                         long ox, long ow, long ob, long omean, long orstd, const Dims D) {
    g += og;
    x += ox;
    w += ow;
    b += ob;
    mean += omean;
    rstd += orstd;
#ifdef COLUMNS
    long c = get_global_id(0) * (CV * VW);
    if (D.C - c >= CV * VW) columns(dx, dw, db, g, x, w, b, mean, rstd, D.N, D.C, c, CV * VW, 1);
    else columns(dx, dw, db, g, x, w, b, mean, rstd, D.N, D.C, c, D.C - c, 0);
#else
    long c = get_global_id(0) * BLOCK, count = D.C - c < BLOCK ? D.C - c : BLOCK;
    R su[BLOCK], suh[BLOCK];
    E pq[2 * BLOCK], size = (E)D.N * D.span;    // one array: Intel's compiler loses two of one double each
    for (int j = 0; j < BLOCK; j++) su[j] = suh[j] = (R)(0);
    for (long n = 0; n < D.N; n++)
        for (int j = 0; j < count; j++) {
            long at = (n * D.C + c + j) * D.span;
            row_sums(su + j, suh + j, g + at, x + at, D.span, mean[c + j], rstd[c + j] * WEIGHT(c + j), SHIFT(c + j));
        }
    for (int j = 0; j < count; j++) {
        E k = rstd[c + j], kf = k * WEIGHT(c + j), u = SUM(su[j]), uh = SUM(suh[j]) * k;
        STOREW(db, c + j, u);
        STOREW(dw, c + j, uh);
        pq[2 * j] = -kf * k * uh / size;
        pq[2 * j + 1] = -kf * u / size;
#ifdef FIXED
        pq[2 * j] = pq[2 * j + 1] = 0;
#endif
    }
#ifdef DX
    for (long n = 0; n < D.N; n++)
        for (int j = 0; j < count; j++) {
            long at = (n * D.C + c + j) * D.span;
            E k = rstd[c + j] * WEIGHT(c + j);
            row_grad(dx + at, g + at, x + at, D.span, mean[c + j], k, SHIFT(c + j), pq[2 * j], pq[2 * j + 1]);
        }
#endif
#endif
}
#endif
