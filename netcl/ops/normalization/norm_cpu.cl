// norm_cpu.cl: layer norm and RMS norm over rows, with gradients, for CPU devices.
//
//   x, y (rows, n) row-major; mean, rstd (rows,) in the compute type E; w, b (n,) stored as W.
//   y[r, :] = (x[r, :] - mean[r]) * rstd[r] * w + b, with rstd = 1 / sqrt(mean of squares about the mean + eps);
//   RMS leaves the mean out. CHANNELS: row r holds `per` channels of `span` elements, w and b belong to channels (group
//   norm).
//
// The variance is a second pass over the row, which is then in the first-level cache. Launch: one work-item per `step`
// rows, local = 1. No barriers, and no builtins in inner loops: some CPU drivers leave them as calls with all registers
// spilled. E is the compute type, V a vector of VW of them, S the storage type of x and y.
// D are the sizes of a launch. USE_<KERNEL> picks the kernels of a program, since drivers compile everything they see.
// Source: Ba et al. 2016, arXiv:1607.06450; Zhang and Sennrich 2019, arXiv:1910.07467; Wu and He 2018,
// arXiv:1803.08494.
typedef struct { long rows, n, step, groups, per, span; } Dims;

#ifdef W_NARROW
#define GETW(p) JOIN(JOIN(LOAD_, W_NARROW), VW)(p)
#else
#define GETW(p) WIDE(p)
#endif
#ifdef HAS_W
#define WEIGHT(i) GETW(w + (i))
#define WEIGHT1(i) LOADW(w, i)
#else
#define WEIGHT(i) ((V)(1))
#define WEIGHT1(i) ((E)1)
#endif
#ifdef HAS_B
#define SHIFT(i) + GETW(b + (i))
#define SHIFT1(i) + LOADW(b, i)
#else
#define SHIFT(i)
#define SHIFT1(i)
#endif

#ifdef RMS
#define NEXT(v) (v) * (v)
#else
#define NEXT(v) (v)
#endif

static inline E row_sum(__global const S* x, long n) {
    V s0 = (V)(0), s1 = s0, s2 = s0, s3 = s0;
    long i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW) {
        s0 += GET(x + i);
        s1 += GET(x + i + VW);
        s2 += GET(x + i + 2 * VW);
        s3 += GET(x + i + 3 * VW);
    }
    for (; i + VW <= n; i += VW) s0 += GET(x + i);
    E s = total((s0 + s1) + (s2 + s3));
    for (; i < n; i++) s += LOAD(x, i);
    return s;
}

// Sum of (x - m)^2.
static inline E row_squares(__global const S* x, long n, E m) {
    V s0 = (V)(0), s1 = s0, s2 = s0, s3 = s0;
    long i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW) {
        V a = GET(x + i) - m, c = GET(x + i + VW) - m, d = GET(x + i + 2 * VW) - m, e = GET(x + i + 3 * VW) - m;
        s0 += a * a;
        s1 += c * c;
        s2 += d * d;
        s3 += e * e;
    }
    for (; i + VW <= n; i += VW) { V a = GET(x + i) - m; s0 += a * a; }
    E s = total((s0 + s1) + (s2 + s3));
    for (; i < n; i++) { E a = LOAD(x, i) - m; s += a * a; }
    return s;
}

// y = (x - m) * k + c.
static inline void scale_row(__global S* y, __global const S* x, long n, E m, E k, E c) {
    long i = 0;
    for (; i + VW <= n; i += VW) SET(y + i, (GET(x + i) - m) * k + c);
    for (; i < n; i++) STORE(y, i, (LOAD(x, i) - m) * k + c);
}

// y = (x - m) * k * w + b for one row, and the sum over the next row (RMS: of squares), whose loads overlap with the
// work.
static inline E normalize(__global S* y, __global const S* x, __global const S* next, __global const W* w,
                          __global const W* b, long n, E m, E k) {
    V s0 = (V)(0), s1 = s0;
    long i = 0;
    for (; i + 2 * VW <= n; i += 2 * VW) {
        V c = GET(next + i), d = GET(next + i + VW);
        s0 += NEXT(c);
        s1 += NEXT(d);
        SET(y + i, (GET(x + i) - m) * k * WEIGHT(i) SHIFT(i));
        SET(y + i + VW, (GET(x + i + VW) - m) * k * WEIGHT(i + VW) SHIFT(i + VW));
    }
    E s = total(s0 + s1);
    for (; i < n; i++) {
        E c = LOAD(next, i);
        s += NEXT(c);
        STORE(y, i, (LOAD(x, i) - m) * k * WEIGHT1(i) SHIFT1(i));
    }
    return s;
}

#ifdef USE_NORM
__kernel void norm(__global const S* restrict x, __global const W* restrict w, __global const W* restrict b,
                   __global S* restrict y, __global E* restrict mean, __global E* restrict rstd, long ox, long ow,
                   long ob, const Dims D, E eps) {
    w += ow;
    b += ob;
    x += ox;
    long first = get_global_id(0) * D.step, last = first + D.step < D.rows ? first + D.step : D.rows;
#ifdef RMS
    E s = row_squares(x + first * D.n, D.n, 0);
#else
    E s = row_sum(x + first * D.n, D.n);
#endif
    for (long r = first; r < last; r++) {
        __global const S *p = x + r * D.n, *next = r + 1 < last ? p + D.n : p;
        __global S* q = y + r * D.n;
#ifdef RMS
        E m = 0, squares = s;
#else
        E m = s / D.n, squares = row_squares(p, D.n, m);
        mean[r] = m;
#endif
        E k = 1 / sqrt(squares / D.n + eps);
        rstd[r] = k;
#ifdef CHANNELS
        long c = r % D.groups * D.per;
        for (long j = 0; j < D.per; j++, c++)
            scale_row(q + j * D.span, p + j * D.span, D.span, m, k * WEIGHT1(c), 0 SHIFT1(c));
        s = row_sum(next, D.n);
#else
        s = normalize(q, p, next, w, b, D.n, m, k);
#endif
    }
}
#endif

// -- gradients --------------------------------------------------------------------------------------------------------
// With h = (x - mean) * rstd and u = g * w: dx = rstd * (u - mean(u) - h * mean(u * h)), RMS without mean(u);
// dw = sum over rows of g * h, db = sum over rows of g: partial sums per work-item in dw_part, db_part (items, n),
// which `columns` adds up.

// dx = u * k + (x - m) * a + c over one stretch, u = g * f.
static inline void spread_row(__global S* dx, __global const S* g, __global const S* x, long n, E f, E m, E a, E c) {
    long i = 0;
    for (; i + VW <= n; i += VW) SET(dx + i, GET(g + i) * f + ((GET(x + i) - m) * a + c));
    for (; i < n; i++) STORE(dx, i, LOAD(g, i) * f + ((LOAD(x, i) - m) * a + c));
}

#ifdef DW
#define ADD_W(i, v) PUT(pw + (i), WIDE(pw + (i)) + (v))
#define ADD_W1(i, v) pw[i] += (v)
#else
#define ADD_W(i, v)
#define ADD_W1(i, v)
#endif
#ifdef DB
#define ADD_B(i, v) PUT(pb + (i), WIDE(pb + (i)) + (v))
#define ADD_B1(i, v) pb[i] += (v)
#else
#define ADD_B(i, v)
#define ADD_B1(i, v)
#endif

// Sums of u and u * h over a row with mean m and rstd k, into s[0] and s[1], and its share of dw and db.
static inline void row_sums(__global const S* g, __global const S* x, __global const W* w, __global E* pw,
                            __global E* pb, long n, E m, E k, E* s) {
    V a = (V)(0), z = a;
    long i = 0;
    for (; i + VW <= n; i += VW) {
        V u = GET(g + i), h = (GET(x + i) - m) * k;
        ADD_B(i, u);
        ADD_W(i, u * h);
        u *= WEIGHT(i);
        a += u;
        z += u * h;
    }
    E s0 = total(a), s1 = total(z);
    for (; i < n; i++) {
        E u = LOAD(g, i), h = (LOAD(x, i) - m) * k;
        ADD_B1(i, u);
        ADD_W1(i, u * h);
        s0 += u * WEIGHT1(i);
        s1 += u * WEIGHT1(i) * h;
    }
    s[0] = s0;
    s[1] = s1;
}

// dx of one row from its sums in s, and `row_sums` of the next row, whose loads overlap with the work.
static inline void step_row(__global S* dx, __global const S* g, __global const S* x, __global const W* w,
                            __global E* pw, __global E* pb, long n, E m, E k, E m1, E k1, E* s) {
    E f = -k * k * s[1] / n, c = -k * s[0] / n;
#ifdef RMS
    c = 0;
#endif
    V a = (V)(0), z = a;
    long i = 0;
    for (; i + VW <= n; i += VW) {
        V v = WEIGHT(i), u = GET(g + n + i), h = (GET(x + n + i) - m1) * k1;
        ADD_B(i, u);
        ADD_W(i, u * h);
        u *= v;
        a += u;
        z += u * h;
#ifdef DX
        RESERVE(dx + n + i);
        SET(dx + i, GET(g + i) * v * k + ((GET(x + i) - m) * f + c));
#endif
    }
    E s0 = total(a), s1 = total(z);
    for (; i < n; i++) {
        E v = WEIGHT1(i), u = LOAD(g, n + i), h = (LOAD(x, n + i) - m1) * k1;
        ADD_B1(i, u);
        ADD_W1(i, u * h);
        s0 += u * v;
        s1 += u * v * h;
#ifdef DX
        STORE(dx, i, LOAD(g, i) * v * k + ((LOAD(x, i) - m) * f + c));
#endif
    }
    s[0] = s0;
    s[1] = s1;
}

static inline void last_row(__global S* dx, __global const S* g, __global const S* x, __global const W* w, long n, E m,
                            E k, E* s) {
    E f = -k * k * s[1] / n, c = -k * s[0] / n;
#ifdef RMS
    c = 0;
#endif
    long i = 0;
    for (; i + VW <= n; i += VW) SET(dx + i, GET(g + i) * WEIGHT(i) * k + ((GET(x + i) - m) * f + c));
    for (; i < n; i++) STORE(dx, i, LOAD(g, i) * WEIGHT1(i) * k + ((LOAD(x, i) - m) * f + c));
}

#ifdef RMS
#define MEAN(r) ((E)0)
#else
#define MEAN(r) mean[r]
#endif

#ifdef USE_NORM_GRAD
__kernel void norm_grad(__global S* restrict dx, __global E* restrict dw_part, __global E* restrict db_part,
                        __global const S* restrict g, __global const S* restrict x, __global const W* restrict w,
                        __global const E* restrict mean, __global const E* restrict rstd, long og, long ox, long ow,
                        long omean, long orstd, const Dims D) {
    long item = get_global_id(0), first = item * D.step, last = first + D.step < D.rows ? first + D.step : D.rows;
    __global E *pw = dw_part + item * D.n, *pb = db_part + item * D.n;
    g += og;
    x += ox;
    w += ow;
    mean += omean;
    rstd += orstd;
#ifdef DW
    for (long i = 0; i < D.n; i++) pw[i] = 0;
#endif
#ifdef DB
    for (long i = 0; i < D.n; i++) pb[i] = 0;
#endif
    E s[2];
    row_sums(g + first * D.n, x + first * D.n, w, pw, pb, D.n, MEAN(first), rstd[first], s);
    long r = first;
    for (; r + 1 < last; r++)
        step_row(dx + r * D.n, g + r * D.n, x + r * D.n, w, pw, pb, D.n, MEAN(r), rstd[r], MEAN(r + 1), rstd[r + 1], s);
#ifdef DX
    last_row(dx + r * D.n, g + r * D.n, x + r * D.n, w, D.n, MEAN(r), rstd[r], s);
#endif
}
#endif

#ifdef USE_GROUP_GRAD
// Group norm: sums per channel go to dw_part, db_part (N, C), one value per (sample, channel).
__kernel void group_grad(__global S* restrict dx, __global E* restrict dw_part, __global E* restrict db_part,
                         __global const S* restrict g, __global const S* restrict x, __global const W* restrict w,
                         __global const E* restrict mean, __global const E* restrict rstd, long og, long ox, long ow,
                         long omean, long orstd, const Dims D) {
    long first = get_global_id(0) * D.step, last = first + D.step < D.rows ? first + D.step : D.rows,
        n = D.per * D.span;
    w += ow;
    for (long r = first; r < last; r++) {
        __global const S *gr = g + og + r * n, *xr = x + ox + r * n;
        E m = mean[omean + r], k = rstd[orstd + r], su = 0, suh = 0;
        long c0 = r % D.groups * D.per;
        for (long j = 0; j < D.per; j++) {
            __global const S *p = gr + j * D.span, *q = xr + j * D.span;
            V a = (V)(0), z = a;
            long i = 0;
            for (; i + VW <= D.span; i += VW) { V u = GET(p + i); a += u; z += u * (GET(q + i) - m); }
            E sg = total(a), sgh = total(z);
            for (; i < D.span; i++) { E u = LOAD(p, i); sg += u; sgh += u * (LOAD(q, i) - m); }
            sgh *= k;
            db_part[r * D.per + j] = sg;
            dw_part[r * D.per + j] = sgh;
            su += sg * WEIGHT1(c0 + j);
            suh += sgh * WEIGHT1(c0 + j);
        }
#ifdef DX
        for (long j = 0; j < D.per; j++)
            spread_row(dx + r * n + j * D.span, gr + j * D.span, xr + j * D.span, D.span, k * WEIGHT1(c0 + j), m,
                       -k * k * suh / n, -k * su / n);
#endif
    }
}
#endif

// dw = sum over `parts` rows of dw_part (parts, n), likewise db; 64 columns per work-item. Launch: (ceil(n / 64), 1 or
// 2), the second index picks the pair of arrays.
static inline void column_sums(__global W* out, __global const E* part, long parts, long n, long first) {
    long last = first + 64 < n ? first + 64 : n, i = first;
    for (; i + 2 * VW <= last; i += 2 * VW) {
        V s0 = (V)(0), s1 = s0;
        for (long p = 0; p < parts; p++) {
            s0 += WIDE(part + p * n + i);
            s1 += WIDE(part + p * n + i + VW);
        }
        E s[2 * VW];
        *(U*)s = s0;
        *(U*)(s + VW) = s1;
        for (int j = 0; j < 2 * VW; j++) STOREW(out, i + j, s[j]);
    }
    for (; i < last; i++) {
        E s = 0;
        for (long p = 0; p < parts; p++) s += part[p * n + i];
        STOREW(out, i, s);
    }
}

#ifdef USE_COLUMNS
__kernel void columns(__global W* restrict dw, __global W* restrict db, __global const E* restrict dw_part,
                      __global const E* restrict db_part, long parts, long n) {
    int second = get_global_id(1) != 0;
    column_sums(second ? db : dw, second ? db_part : dw_part, parts, n, get_global_id(0) * 64);
}
#endif
