// attention_cpu.cl: o = softmax(q k^T * scale) v without an S x S map, with gradients, for CPU devices.
//
//   q (B, H, Tq, D)      one work-item computes a block of BQ queries of one head:
//   k, v (B, H/G, Tk, D)   for each block of BK keys
//   o (B, H, Tq, D)          s = q k^T                  [BQ][BK], products of MR x NR sums in registers
//   lse (B, H, Tq)           p = exp(s - running max), old sums scaled to the new max
//                            o = o * scaling + p v
//
// Query i sees the keys [lo(i), hi(i)): all of them, or up to its own place (causal, aligned bottom right) or `window`
// places from it; a key may also be masked as padding. A query without keys gets 0 and lse = -infinity.
// k is packed once as panels KT [panel][DP][NR], the keys of a panel side by side and zero past the end; v, and for
// gradients everything, is read in rows of DP elements (D rounded up to NR) in the compute type E.
// Scores are kept in powers of two: q is scaled by scale * log2(e).
// Launch: local = 1. No barriers, and no builtins in inner loops: some CPU drivers leave them as calls.
// USE_<KERNEL> picks the kernels of a program, since drivers compile everything they see.
// Source: Dao et al. 2022, arXiv:2205.14135; Milakov and Gimelshein 2018, arXiv:1805.02867.
#ifndef BQ
#define BQ 48       // queries per block, a multiple of MR
#endif
#ifndef BK
#define BK 128      // keys per block, a multiple of NR
#endif
#define MR 6
#define NR (2 * VW)
#define LQ (DP + VW)    // row lengths of local blocks: not powers of two, so that rows fall on different cache sets
#define LS (BK + VW)
#define LOG2E ((E)1.4426950408889634)
#define LN2 ((E)0.6931471805599453)
#define NONE (-INFINITY)

typedef VECTOR V;
typedef VECTOR U __attribute__((aligned(sizeof(E))));   // a vector that need not be aligned
#define LOC(p) (*(__local U*)(p))
#define GLOB(p) (*(__global U*)(p))
#define WIDE(p) (*(__global const U*)(p))
#ifdef HALF
#define GET(p) vload_half8(0, p)
#define SET(p, v) vstore_half8_rte(v, 0, p)
#else
#define GET(p) WIDE(p)
#define SET(p, v) GLOB(p) = (v)
#endif

// Lengths, then strides of q, k, v, g in elements by batch, head and row (rows themselves are contiguous).
typedef struct {
    long B, H, G, Tq, Tk, D, causal, window, mask_b, qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, splits, rows;
} Dims;

static inline E total(V v) {
#if VW == 8
    float4 h = v.lo + v.hi;
    float2 q = h.lo + h.hi;
#else
    double2 q = v.lo + v.hi;
#endif
    return q.x + q.y;
}

static inline V larger(V a, V b) { return a > b ? a : b; }

static inline E largest(V v) {
    E t[VW];
    *(U*)t = v;
    E m = t[0];
    for (int i = 1; i < VW; i++) m = t[i] > m ? t[i] : m;
    return m;
}

// 2^x for x <= 0 (own least-squares polynomial, 2e-9); NaN stays NaN.
static inline V power(V x) {
#if VW == 8
    V c = x < -126.0f ? (V)(-126.0f) : x;
    V t = c + 12582912.0f;              // 1.5 * 2^23: rounds to whole numbers
    V r = c - (t - 12582912.0f);
    V p = r * 1.53533618e-4f + 1.33988749e-3f;
    p = p * r + 9.61843736e-3f;
    p = p * r + 5.55033247e-2f;
    p = p * r + 2.40226479e-1f;
    p = p * r + 6.93147203e-1f;
    p = p * r + 1.0f;
    p = p * as_float8((as_int8(t) - 0x4b400000 + 127) << 23);
    return x < -126.0f ? (V)(0.0f) : p;
#else
    return exp2(x);
#endif
}

static inline long lo_of(const Dims* d, long i) {
    long first = d->window > 0 ? i + d->Tk - d->Tq - d->window + 1 : 0;
    return first > 0 ? first : 0;
}

static inline long hi_of(const Dims* d, long i) {
    long last = i + d->Tk - d->Tq + 1;
    if (!d->causal) last = d->window > 0 ? last + d->window - 1 : d->Tk;
    return last < d->Tk ? last : d->Tk;
}

// MR x NR sums over a depth of kc: rows of `a` (element (i, k) at ROWS or COLUMNS) times b[k][NR] with `ldb` per row.
#define AT_ROWS(i, ld) ap[(i) * (ld) + k]
#define AT_COLUMNS(i, ld) ap[k * (ld) + (i)]
#define SIX(F) F(0) F(1) F(2) F(3) F(4) F(5)
#define CLEAR(i) V c##i##0 = (V)(0), c##i##1 = (V)(0);
#define WRITE(i) LOC(c + i * ldc) = c##i##0; LOC(c + i * ldc + VW) = c##i##1;
#define JOIN(i) LOC(c + i * ldc) += c##i##0; LOC(c + i * ldc + VW) += c##i##1;
#define JOIN_GLOBAL(i) GLOB(c + i * ldc) += c##i##0; GLOB(c + i * ldc + VW) += c##i##1;
#define RESCALE(i) LOC(c + i * ldc) = LOC(c + i * ldc) * al[i] + c##i##0; \
    LOC(c + i * ldc + VW) = LOC(c + i * ldc + VW) * al[i] + c##i##1;
#define LINE(i) x = (V)(AT(i, LD)); c##i##0 = x * b0 + c##i##0; c##i##1 = x * b1 + c##i##1;
#define STEP b0 = *(BTYPE U*)(b); b1 = *(BTYPE U*)(b + VW); SIX(LINE) b += ldb; k++;
#define MICRO(C_SPACE, B_SPACE, FINISH)                                                                              \
    (C_SPACE E* c, long ldc, __local const E* ap, B_SPACE const E* b, long ldb, int kc, __local const E* al) {        \
        V x, b0, b1;                                                                                                 \
        SIX(CLEAR)                                                                                                   \
        int k = 0;                                                                                                   \
        for (; k + 4 <= kc;) { STEP STEP STEP STEP }                                                                 \
        for (; k < kc;) { STEP }                                                                                     \
        SIX(FINISH)                                                                                                  \
    }
#define BTYPE __global const
#define AT AT_ROWS
#define LD LQ
static inline void scores MICRO(__local, __global, WRITE)
#undef LD
#define LD LS
static inline void weigh MICRO(__local, __global, RESCALE)
#undef BTYPE
#define BTYPE __local const
static inline void add_rows MICRO(__global, __local, JOIN_GLOBAL)
#undef LD
#define LD LQ
static inline void local_scores MICRO(__local, __local, WRITE)
#undef AT
#undef LD
#define AT AT_COLUMNS
#define LD LS
static inline void add_columns MICRO(__local, __local, JOIN)

// Transpose NR rows of s (those of them below `rows`, D elements each) to d [DP][NR].
#define TURN(SPACE, name)                                                                                             \
    static inline void name(SPACE E* d, __global const S* s, long rows, long step, int D) {                           \
        for (int r = 0; r < NR; r++) {                                                                                \
            int c = 0;                                                                                                \
            if (r < rows)                                                                                             \
                for (; c < D; c++) d[c * NR + r] = LOAD(s + r * step, c);                                             \
            for (; c < DP; c++) d[c * NR + r] = 0;                                                                    \
        }                                                                                                             \
    }
TURN(__global, turn_global)
TURN(__local, turn_tail)

#if VW == 8
#define FULL_TURN(SPACE, name, TAIL)                                                                                  \
    static inline void name(SPACE E* d, __global const S* s, long rows, long step, int D) {                           \
        if (rows < NR || D % 8) { TAIL(d, s, rows, step, D); return; }                                                \
        for (int h = 0; h < NR; h += 8, s += 8 * step)                                                                \
            for (int c = 0; c < D; c += 8) {                                                                          \
                __global const S* p = s + c;                                                                          \
                SPACE E* q = d + c * NR + h;                                                                          \
                V a = GET(p), b = GET(p + step), e = GET(p + 2 * step), f = GET(p + 3 * step);                        \
                V g = GET(p + 4 * step), i = GET(p + 5 * step), j = GET(p + 6 * step), k = GET(p + 7 * step);         \
                V ab = (V)(a.s0, b.s0, a.s1, b.s1, a.s4, b.s4, a.s5, b.s5);                                           \
                V AB = (V)(a.s2, b.s2, a.s3, b.s3, a.s6, b.s6, a.s7, b.s7);                                           \
                V ef = (V)(e.s0, f.s0, e.s1, f.s1, e.s4, f.s4, e.s5, f.s5);                                           \
                V EF = (V)(e.s2, f.s2, e.s3, f.s3, e.s6, f.s6, e.s7, f.s7);                                           \
                V gi = (V)(g.s0, i.s0, g.s1, i.s1, g.s4, i.s4, g.s5, i.s5);                                           \
                V GI = (V)(g.s2, i.s2, g.s3, i.s3, g.s6, i.s6, g.s7, i.s7);                                           \
                V jk = (V)(j.s0, k.s0, j.s1, k.s1, j.s4, k.s4, j.s5, k.s5);                                           \
                V JK = (V)(j.s2, k.s2, j.s3, k.s3, j.s6, k.s6, j.s7, k.s7);                                           \
                V p0 = (V)(ab.s01, ef.s01, ab.s45, ef.s45), p1 = (V)(ab.s23, ef.s23, ab.s67, ef.s67);                 \
                V p2 = (V)(AB.s01, EF.s01, AB.s45, EF.s45), p3 = (V)(AB.s23, EF.s23, AB.s67, EF.s67);                 \
                V q0 = (V)(gi.s01, jk.s01, gi.s45, jk.s45), q1 = (V)(gi.s23, jk.s23, gi.s67, jk.s67);                 \
                V q2 = (V)(GI.s01, JK.s01, GI.s45, JK.s45), q3 = (V)(GI.s23, JK.s23, GI.s67, JK.s67);                 \
                *(SPACE U*)(q) = (V)(p0.lo, q0.lo);                                                                   \
                *(SPACE U*)(q + NR) = (V)(p1.lo, q1.lo);                                                              \
                *(SPACE U*)(q + 2 * NR) = (V)(p2.lo, q2.lo);                                                          \
                *(SPACE U*)(q + 3 * NR) = (V)(p3.lo, q3.lo);                                                          \
                *(SPACE U*)(q + 4 * NR) = (V)(p0.hi, q0.hi);                                                          \
                *(SPACE U*)(q + 5 * NR) = (V)(p1.hi, q1.hi);                                                          \
                *(SPACE U*)(q + 6 * NR) = (V)(p2.hi, q2.hi);                                                          \
                *(SPACE U*)(q + 7 * NR) = (V)(p3.hi, q3.hi);                                                          \
            }                                                                                                         \
    }
FULL_TURN(__global, turn_panel, turn_global)
FULL_TURN(__local, turn_local, turn_tail)
#else
#define turn_panel turn_global
#define turn_local turn_tail
#endif

// d[i][ld] = rows of s times f, zero in the columns past D and the rows past `rows`.
static inline void copy_rows(__local E* d, int ld, __global const S* s, long rows, int all, long step, int D, E f) {
    for (int r = 0; r < all; r++, d += ld, s += step) {
        int c = 0;
        if (r < rows) {
            for (; c + VW <= D; c += VW) LOC(d + c) = GET(s + c) * f;
            for (; c < D; c++) d[c] = LOAD(s, c) * f;
        }
        for (; c < DP; c++) d[c] = 0;
    }
}

// out[c] = row * f for D elements.
static inline void put_row(__global S* out, __local const E* row, int D, E f) {
    int c = 0;
    for (; c + VW <= D; c += VW) SET(out + c, *(__local const U*)(row + c) * f);
    for (; c < D; c++) STORE(out, c, row[c] * f);
}

#ifdef USE_ATTEND
// Panels KT [b][h][panel][DP][NR] of k. Launch: (panels, H / G, B).
__kernel void turn(__global E* restrict KT, __global const S* restrict k, long ok, const Dims d) {
    long p = get_global_id(0), h = get_global_id(1), b = get_global_id(2), panels = get_global_size(0);
    KT += ((b * get_global_size(1) + h) * panels + p) * DP * NR;
    turn_panel(KT, k + ok + b * d.kb + h * d.kh + p * NR * d.kt, d.Tk - p * NR, d.kt, d.D);
}
#endif

#ifdef USE_ATTEND
// Rows of v as E, DP elements each: (B, H / G, Tk, DP). Launch: (ceil(Tk / 64), H / G, B).
__kernel void widen(__global E* restrict out, __global const S* restrict v, long ov, const Dims d) {
    long first = get_global_id(0) * 64, last = first + 64 < d.Tk ? first + 64 : d.Tk;
    long h = get_global_id(1), b = get_global_id(2);
    out += (b * get_global_size(1) + h) * d.Tk * DP;
    v += ov + b * d.vb + h * d.vh;
    for (long t = first; t < last; t++)
        for (int c = 0; c < DP; c++) out[t * DP + c] = c < d.D ? LOAD(v + t * d.vt, c) : 0;
}
#endif

// Scores outside [lo, hi) of the block's keys kb .. kb + n, and of padding, become -infinity.
static inline void forbid(__local E* s, long lo, long hi, long kb, int n, __global const uchar* mask) {
    int first = lo - kb < n ? (int)(lo - kb) : n;
    for (int j = 0; j < first; j++) s[j] = NONE;
    for (int j = hi > kb ? (int)(hi - kb) : 0; j < n; j++) s[j] = NONE;
#ifdef MASK
    for (int j = 0; j < n && kb + j < hi; j++) s[j] = mask[kb + j] ? NONE : s[j];
#endif
}

static inline int up(long n, int to) { return (int)((n + to - 1) / to * to); }

#ifdef USE_ATTEND
// Launch: (ceil(Tq / BQ), H, B).
__kernel void attend(__global S* restrict o, __global E* restrict lse, __global const S* restrict q,
                     __global const E* restrict KT, __global const E* restrict v, __global const uchar* restrict mask, long oq,
                     long ov, long om, E scale, const Dims d) {
    __local E Q[BQ * LQ], Sb[BQ * LS], O[BQ * DP], m[BQ], l[BQ], al[BQ];
    // The last blocks of a causal head have the most keys: they go first, so that no unit is left with one at the end.
    long q0 = (get_global_size(0) - 1 - get_global_id(0)) * BQ, h = get_global_id(1), b = get_global_id(2);
    int rows = d.Tq - q0 < BQ ? (int)(d.Tq - q0) : BQ, D = d.D;
    long heads = d.H / d.G, kh = h / d.G, panels = (d.Tk + NR - 1) / NR, off = q0;
    KT += (b * heads + kh) * panels * DP * NR;
    v += ov + b * d.vb + kh * d.vh;
    mask += om + b * d.mask_b;
    copy_rows(Q, LQ, q + oq + b * d.qb + h * d.qh + q0 * d.qt, rows, up(rows, MR), d.qt, D, scale * LOG2E);
    for (int r = 0; r < up(rows, MR); r++) {
        m[r] = NONE;
        l[r] = 0;
        al[r] = 0;
        for (int c = 0; c < DP; c += VW) LOC(O + r * DP + c) = (V)(0);
    }
    long end = hi_of(&d, q0 + rows - 1);
    for (long kb = lo_of(&d, q0) / NR * NR; kb < end; kb += BK) {
        int n = end - kb < BK ? (int)(end - kb) : BK;
        for (int j = 0; j < n; j += NR)
            for (int r = 0; r < rows; r += MR) {
                if (kb + j >= hi_of(&d, q0 + r + MR - 1) || kb + j + NR <= lo_of(&d, q0 + r)) continue;
                scores(Sb + r * LS + j, LS, Q + r * LQ, KT + (kb + j) * DP, NR, D, al);
            }
        for (int r = 0; r < rows; r++) {
            long i = q0 + r, last = hi_of(&d, q0 + r / MR * MR + MR - 1);
            int w = last - kb < n ? up(last - kb, NR) : up(n, NR);
            __local E* s = Sb + r * LS;
            al[r] = 1;
            if (w <= 0) continue;
            forbid(s, lo_of(&d, i), hi_of(&d, i), kb, w, mask);
            V top = LOC(s);
            for (int j = VW; j < w; j += VW) top = larger(LOC(s + j), top);
            E t = largest(top);
            t = t > m[r] ? t : m[r];
            E base = t == NONE ? 0 : t;
            V sum = (V)(0);
            for (int j = 0; j < w; j += VW) {
                V p = power(LOC(s + j) - base);
                LOC(s + j) = p;
                sum += p;
            }
            al[r] = power((V)(m[r] - base)).s0;
            l[r] = l[r] * al[r] + total(sum);
            m[r] = t;
        }
        for (int c = 0; c < DP; c += NR)
            for (int r = 0; r < rows; r += MR) {
                long last = hi_of(&d, q0 + r + MR - 1);
                int depth = last - kb < n ? (int)(last - kb) : n;
                if (depth <= 0) continue;
                weigh(O + r * DP + c, DP, Sb + r * LS, v + kb * d.vt + c, d.vt, depth, al + r);
            }
    }
    long first = (b * d.H + h) * d.Tq + q0;
    for (int r = 0; r < rows; r++) {
        put_row(o + (first + r) * D, O + r * DP, D, l[r] == 0 ? 0 : 1 / l[r]);
        lse[first + r] = l[r] == 0 ? NONE : m[r] * LN2 + log(l[r]);
    }
}
#endif

#ifdef USE_ATTEND_FEW
// A few queries against many keys, as in decoding: rows of k and v are read as they are. Launch: (Tq, H, B).
__kernel void attend_few(__global S* restrict o, __global E* restrict lse, __global const S* restrict q,
                         __global const S* restrict k, __global const S* restrict v, __global const uchar* restrict mask,
                         long oq, long ok, long ov, long om, E scale, const Dims d) {
    __local E Q[LQ], s[LS], O[DP];
    long i = get_global_id(0), h = get_global_id(1), b = get_global_id(2);
    int D = d.D;
    k += ok + b * d.kb + h / d.G * d.kh;
    v += ov + b * d.vb + h / d.G * d.vh;
    mask += om + b * d.mask_b;
    copy_rows(Q, LQ, q + oq + b * d.qb + h * d.qh + i * d.qt, 1, 1, d.qt, D, scale * LOG2E);
    E m = NONE, l = 0;
    for (int c = 0; c < DP; c++) O[c] = 0;
    long lo = lo_of(&d, i), end = hi_of(&d, i);
    for (long kb = lo; kb < end; kb += BK) {
        int n = end - kb < BK ? (int)(end - kb) : BK, w = up(n, VW);
        for (int j = 0; j < n; j++) {
            __global const S* p = k + (kb + j) * d.kt;
            V a0 = (V)(0), a1 = a0;
            int c = 0;
            for (; c + NR <= D; c += NR) { a0 += LOC(Q + c) * GET(p + c); a1 += LOC(Q + c + VW) * GET(p + c + VW); }
            for (; c + VW <= D; c += VW) a0 += LOC(Q + c) * GET(p + c);
            E t = total(a0 + a1);
            for (; c < D; c++) t += Q[c] * LOAD(p, c);
            s[j] = t;
        }
        forbid(s, lo, end, kb, w, mask);
        V top = LOC(s), sum = (V)(0);
        for (int j = VW; j < w; j += VW) top = larger(LOC(s + j), top);
        E t = largest(top);
        t = t > m ? t : m;
        E base = t == NONE ? 0 : t, al = power((V)(m - base)).s0;
        for (int j = 0; j < w; j += VW) { V p = power(LOC(s + j) - base); LOC(s + j) = p; sum += p; }
        l = l * al + total(sum);
        m = t;
        int c = 0;
        for (; c + VW <= D; c += VW) {
            V a0 = LOC(O + c) * al, a1 = (V)(0);
            int j = 0;
            for (; j + 2 <= n; j += 2) {
                a0 += GET(v + (kb + j) * d.vt + c) * s[j];
                a1 += GET(v + (kb + j + 1) * d.vt + c) * s[j + 1];
            }
            if (j < n) a0 += GET(v + (kb + j) * d.vt + c) * s[j];
            LOC(O + c) = a0 + a1;
        }
        for (; c < D; c++) {
            E a = O[c] * al;
            for (int j = 0; j < n; j++) a += LOAD(v + (kb + j) * d.vt, c) * s[j];
            O[c] = a;
        }
    }
    long row = (b * d.H + h) * d.Tq + i;
    put_row(o + row * D, O, D, l == 0 ? 0 : 1 / l);
    lse[row] = l == 0 ? NONE : m * LN2 + log(l);
}
#endif

// -- gradients -----------------------------------------------------------------------------------------------------------
// p is computed again from lse; with delta = sum g * o per query: ds = p * (g v^T - delta), dv = p^T g, dk = ds^T q * scale,
// dq = ds k * scale. One work-item takes every `splits`-th block of keys of one head of k and all queries that see it; its
// dq sums go to its own part (splits, B * H, rows, DP), and `join` adds the parts. Nothing depends on the order of items.

#ifdef USE_ATTEND_GRAD
// delta (B, H, Tq). Launch: (ceil(Tq / 64), H, B).
__kernel void dots(__global E* restrict delta, __global const S* restrict g, __global const S* restrict o, long og, long oo,
                   const Dims d) {
    long first = get_global_id(0) * 64, last = first + 64 < d.Tq ? first + 64 : d.Tq;
    long h = get_global_id(1), b = get_global_id(2), row = (b * d.H + h) * d.Tq;
    for (long t = first; t < last; t++) {
        __global const S *p = g + og + b * d.gb + h * d.gh + t * d.gt, *r = o + oo + (row + t) * d.D;
        V s = (V)(0);
        int c = 0;
        for (; c + VW <= d.D; c += VW) s += GET(p + c) * GET(r + c);
        E x = total(s);
        for (; c < d.D; c++) x += LOAD(p, c) * LOAD(r, c);
        delta[row + t] = x;
    }
}
#endif

#define PANELS (BK * DP)
#define SUMS ((BK + MR - 1) / MR * MR * DP)  // dk and dv are summed MR keys at a time
#define POOL (2 * PANELS + 2 * SUMS + BK * LQ + 2 * BQ * LQ + 2 * BQ * LS)

#ifdef USE_ATTEND_GRAD
// Launch: (splits, H / G, B).
__kernel void attend_grad(__global S* restrict dk, __global S* restrict dv, __global E* restrict parts,
                          __global const S* restrict q, __global const S* restrict k, __global const S* restrict v,
                          __global const S* restrict g, __global const E* restrict lse, __global const E* restrict delta,
                          __global const uchar* restrict mask, long oq, long ok, long ov, long og, long ol, long om, E scale,
                          const Dims d) {
    __local E pool[POOL];
    __local E *KT = pool, *VT = KT + PANELS, *dK = VT + PANELS, *dV = dK + SUMS, *K = dV + SUMS, *Q = K + BK * LQ;
    __local E *G = Q + BQ * LQ, *P = G + BQ * LQ, *T = P + BQ * LS;
    long split = get_global_id(0), kh = get_global_id(1), b = get_global_id(2), heads = d.H / d.G;
    int D = d.D;
    k += ok + b * d.kb + kh * d.kh;
    v += ov + b * d.vb + kh * d.vh;
    mask += om + b * d.mask_b;
    parts += ((split * d.B + b) * d.H + kh * d.G) * d.rows * DP;
    for (long i = 0; i < d.G * d.rows * DP; i += VW) GLOB(parts + i) = (V)(0);
    for (long kb = split * BK; kb < d.Tk; kb += d.splits * BK) {
        int n = d.Tk - kb < BK ? (int)(d.Tk - kb) : BK;
        for (int j = 0; j < n; j += NR) {
            turn_local(KT + j * DP, k + (kb + j) * d.kt, n - j, d.kt, D);
            turn_local(VT + j * DP, v + (kb + j) * d.vt, n - j, d.vt, D);
        }
        copy_rows(K, LQ, k + kb * d.kt, n, BK, d.kt, D, 1);
        for (int i = 0; i < 2 * SUMS; i += VW) LOC(dK + i) = (V)(0);
        for (long f = 0; f < d.G * d.Tq; f += BQ) {
            // Blocks of queries of each head of the group in turn; a block never crosses from one head to the next.
            long head = f / d.Tq, q0 = f - head * d.Tq;
            int rows = d.Tq - q0 < BQ ? (int)(d.Tq - q0) : BQ;
            if (rows < BQ) f += rows - BQ;
            if (hi_of(&d, q0 + rows - 1) <= kb || lo_of(&d, q0) >= kb + n) continue;
            long h = kh * d.G + head, at = (b * d.H + h) * d.Tq + q0;
            int all = up(rows, MR);
            copy_rows(Q, LQ, q + oq + b * d.qb + h * d.qh + q0 * d.qt, rows, all, d.qt, D, scale * LOG2E);
            copy_rows(G, LQ, g + og + b * d.gb + h * d.gh + q0 * d.gt, rows, all, d.gt, D, 1);
            for (int j = 0; j < n; j += NR)
                for (int r = 0; r < rows; r += MR) {
                    if (kb + j >= hi_of(&d, q0 + r + MR - 1) || kb + j + NR <= lo_of(&d, q0 + r)) continue;
                    local_scores(P + r * LS + j, LS, Q + r * LQ, KT + j * DP, NR, D, pool);
                    local_scores(T + r * LS + j, LS, G + r * LQ, VT + j * DP, NR, D, pool);
                }
            for (int r = 0; r < all; r++) {
                long i = q0 + r, lo = lo_of(&d, i), hi = r < rows ? hi_of(&d, i) : 0;
                __local E *p = P + r * LS, *t = T + r * LS;
                int w = hi - kb < n ? up(hi - kb, NR) : up(n, NR), j = lo - kb > n ? LS : lo > kb ? (int)(lo - kb) / NR * NR : 0;
                if (j < w) {
                    E x = lse[ol + at + r] * LOG2E, y = delta[at + r];
                    x = x == NONE ? INFINITY : x;
                    forbid(p, lo, hi, kb, w, mask);
                    for (int z = j; z < w; z += VW) {
                        V s = power(LOC(p + z) - x);
                        LOC(p + z) = s;
                        LOC(t + z) = s == 0 ? (V)(0) : s * (LOC(t + z) - y);
                    }
                } else {
                    j = w = 0;
                }
                for (int z = 0; z < j; z += VW) { LOC(p + z) = (V)(0); LOC(t + z) = (V)(0); }
                for (int z = w; z < LS; z += VW) { LOC(p + z) = (V)(0); LOC(t + z) = (V)(0); }
            }
            for (int j = 0; j < n; j += MR) {
                long first = d.causal ? kb + j - (d.Tk - d.Tq) - q0 : 0;
                int start = first > 0 ? first < all ? (int)first : all : 0;
                for (int c = 0; c < DP; c += NR) {
                    add_columns(dV + j * DP + c, DP, P + start * LS + j, G + start * LQ + c, LQ, all - start, pool);
                    add_columns(dK + j * DP + c, DP, T + start * LS + j, Q + start * LQ + c, LQ, all - start, pool);
                }
            }
            for (int r = 0; r < rows; r += MR) {
                long last = hi_of(&d, q0 + r + MR - 1);
                int depth = last - kb < n ? (int)(last - kb) : n;
                if (depth <= 0) continue;
                for (int c = 0; c < DP; c += NR)
                    add_rows(parts + (head * d.rows + q0 + r) * DP + c, DP, T + r * LS, K + c, LQ, depth, pool);
            }
        }
        long row = (b * heads + kh) * d.Tk + kb;
        for (int j = 0; j < n; j++) {
            put_row(dk + (row + j) * D, dK + j * DP, D, LN2);
            put_row(dv + (row + j) * D, dV + j * DP, D, 1);
        }
    }
}
#endif

#ifdef USE_ATTEND_GRAD
// dq = scale * sum of the parts. Launch: (ceil(Tq / 64), H, B).
__kernel void join(__global S* restrict dq, __global const E* restrict parts, E scale, const Dims d) {
    long first = get_global_id(0) * 64, last = first + 64 < d.Tq ? first + 64 : d.Tq;
    long head = get_global_id(2) * d.H + get_global_id(1), size = d.B * d.H * d.rows * DP;
    for (long t = first; t < last; t++) {
        __global const E* p = parts + (head * d.rows + t) * DP;
        __global S* r = dq + (head * d.Tq + t) * d.D;
        int c = 0;
        for (; c + VW <= d.D; c += VW) {
            V s = (V)(0);
            for (long z = 0; z < d.splits; z++) s += WIDE(p + z * size + c);
            SET(r + c, s * scale);
        }
        for (; c < d.D; c++) {
            E s = 0;
            for (long z = 0; z < d.splits; z++) s += p[z * size + c];
            STORE(r, c, s * scale);
        }
    }
}
#endif
