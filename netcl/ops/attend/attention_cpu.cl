// attention_cpu.cl: what streaming attention and its gradients on CPU devices share. Follows memory.cl,
// attention_scores.cl and attention_rows.cl; attend_cpu.cl or attend_grad_cpu.cl follow.
//
//   q (B, H, Tq, D)   k, v (B, H/G, Tk, D)   o (B, H, Tq, D)   lse (B, H, Tq)
//
// A query without keys gets 0 and lse = -infinity. Rows of results that are not finite everywhere are computed again,
// as attention_rows.cl explains.
// Scores are kept in powers of two: q is scaled by scale * log2(e).
// E is the compute type, V a vector of VW of them, S the storage type. A register tile has MR rows of NV vectors.
// Launch: local = 1. No barriers, and no builtins in inner loops: some CPU drivers leave them as calls.
// USE_<KERNEL> picks the kernels of a program, since drivers compile everything they see.
// Source: Dao et al. 2022, arXiv:2205.14135; Milakov and Gimelshein 2018, arXiv:1805.02867.
#define NR (NV * VW)

typedef JOIN(E, VW) V;
typedef JOIN(E, 8) E8;
typedef JOIN(LANE, VW) I;   // integers as wide as the elements of V
typedef V U __attribute__((aligned(sizeof(E))));    // a vector that need not be aligned
typedef E8 U8 __attribute__((aligned(sizeof(E))));
#define LOC(p) (*(__local U*)(p))
#define GLOB(p) (*(__global U*)(p))
#ifdef NARROW
#define GET(p) JOIN(JOIN(LOAD_, NARROW), VW)(p)
#define GET8(p) JOIN(JOIN(LOAD_, NARROW), 8)(p)
#define SET(p, v) JOIN(JOIN(STORE_, NARROW), VW)(v, p)
#define SET8(p, v) JOIN(JOIN(STORE_, NARROW), 8)(v, p)
#else
#define GET(p) (*(__global const U*)(p))
#define GET8(p) (*(__global const U8*)(p))
#define SET(p, v) GLOB(p) = (v)
#define SET8(p, v) *(__global U8*)(p) = (v)
#endif

static inline int up(long n, int to) { return (int)((n + to - 1) / to * to); }

static inline V larger(V a, V b) { return a > b ? a : b; }

// The sum and the largest of a vector's elements.
#define PLUS(a, b) (a) + (b)
#define MAX(a, b) (a) > (b) ? (a) : (b)
#if VW == 16
#define HALVE(OP) E8 w = OP(v.lo, v.hi); JOIN(E, 4) h = OP(w.lo, w.hi);
#elif VW == 8
#define HALVE(OP) JOIN(E, 4) h = OP(v.lo, v.hi);
#else
#define HALVE(OP) V h = v;
#endif
#define FOLD(OP) { HALVE(OP) JOIN(E, 2) q = OP(h.lo, h.hi); return OP(q.x, q.y); }
static inline E total(V v) FOLD(PLUS)
static inline E largest(V v) FOLD(MAX)

// 2^x for x <= 0 (own least-squares polynomial, 2e-9); NaN stays NaN.
static inline V power(V x) {
#ifdef DOUBLE
    return exp2(x);
#else
    V c = x < -126.0f ? (V)(-126.0f) : x;
    V t = c + 12582912.0f;              // 1.5 * 2^23: rounds to whole numbers
    V r = c - (t - 12582912.0f);
    V p = r * 1.53533618e-4f + 1.33988749e-3f;
    p = p * r + 9.61843736e-3f;
    p = p * r + 5.55033247e-2f;
    p = p * r + 2.40226479e-1f;
    p = p * r + 6.93147203e-1f;
    p = p * r + 1.0f;
    p = p * JOIN(as_float, VW)((JOIN(as_int, VW)(t) - 0x4b400000 + 127) << 23);
    return x < -126.0f ? (V)(0.0f) : p;
#endif
}

// A mask's value in powers of two.
static inline E in_powers(E b) { return added(0, b, LOG2E); }

#ifdef SHAPED
// What the scores s of query i and the keys kb .. kb + n become, and in `bend` the factors of their slopes.
static inline void shape_row(__local E* s, __local E* bend, long i, long kb, int n, Marks marks, const Dims* d) {
#ifdef SOFTCAP
    for (int j = 0; j < n; j += VW) {
        V t = f_tanh(LOC(s + j) / (marks.cap * LOG2E));
        LOC(bend + j) = 1 - t * t;
        LOC(s + j) = marks.cap * LOG2E * t;
    }
#endif
#ifdef SLOPES
    E from = OWN(d, i) - kb, slope = marks.slopes[0] * LOG2E;
    for (int j = 0; j < n; j++) s[j] -= slope * (from - j < 0 ? j - from : from - j);
#endif
#ifdef BIAS
    __global const BIAS* p = marks.bias + i * d->bias_q + kb * d->bias_k;
    for (int j = 0; j < n; j++, p += d->bias_k) {
        E b = in_powers(bias_value(p));
        s[j] = b == NONE ? NONE : s[j] + b;
    }
#endif
}
#define SHAPE_ROW(s, bend, i, kb, n, d) shape_row(s, bend, i, kb, n, marks, d);
#else
#define SHAPE_ROW(s, bend, i, kb, n, d)
#endif

#ifdef DROPOUT
typedef JOIN(uint, VW) UW;
typedef JOIN(ulong, VW) LW;
#define TO_UINT JOIN(convert_uint, VW)
#define TO_ULONG JOIN(convert_ulong, VW)
PHILOX(philox_lanes, UW, LW, TO_UINT, TO_ULONG)
#define ROOM (BK + 4 * VW)

// z = the factors of query i and the keys kb .. kb + n, where kb is a multiple of 4; a lane is a block of keys.
static inline void factor_row(__local E* z, long i, long kb, int n, Marks marks, const Dims* d) {
    for (int j = 0; j < n; j += 4 * VW) {
        ulong blocks[VW] __attribute__((aligned(128)));
        UW x[4];
        for (int l = 0; l < VW; l++) blocks[l] = BLOCKS_OF(i) + (kb + j) / 4 + l;
        philox_lanes(*(LW*)blocks, marks.key0, marks.key1, x);
        for (int l = 0; l < VW; l++)
            for (int w = 0; w < 4; w++) z[j + 4 * l + w] = FACTOR(((const uint*)&x[w])[l]);
    }
}
#endif

// Sums of a tile over a depth of kc: ROWS rows of `a`, found by AT(row) at depth k, times b[k][NR], `ldb` per row;
// FINISH brings row i to c + i * ldc, with the lanes' factors `al` where it needs some.
// Inlined, since compilers split vectors of 16 floats in functions that they call.
#define INLINE __attribute__((always_inline))
#define ROWS1(F) F(0)
#define ROWS4(F) F(0) F(1) F(2) F(3)
#define ROWS6(F) ROWS4(F) F(4) F(5)
#define ROWS8(F) ROWS6(F) F(6) F(7)
#if NV == 3
#define ACROSS(F, i) F(i, 0) F(i, 1) F(i, 2)
#else
#define ACROSS(F, i) F(i, 0) F(i, 1)
#endif
#define AT_ROWS(i) a[(i) * lda + k]
#define AT_COLUMNS(i) a[k * lda + (i)]
#define CLEAR_1(i, j) V c##i##j = (V)(0);
#define TIMES_1(i, j) c##i##j = x * b##j + c##i##j;
#define FETCH_1(i, j) b##j = *(BTYPE U*)(b + j * VW);
#define CLEAR(i) ACROSS(CLEAR_1, i)
#define TIMES(i) x = (V)(AT(i)); ACROSS(TIMES_1, i)
#define STEP(ROWS) ACROSS(FETCH_1, 0) ROWS(TIMES) b += ldb; k++;
#define TILE(name, ROWS, FINISH, CTYPE, ATYPE)                                                                        \
    static inline INLINE void name(CTYPE E* c, long ldc, ATYPE E* a, long lda, BTYPE E* b, long ldb, int kc,          \
                                   __local const E* al) {                                                             \
        V x, b0, b1, b2;                                                                                              \
        ROWS(CLEAR)                                                                                                   \
        int k = 0;                                                                                                    \
        for (; k + 4 <= kc;) { STEP(ROWS) STEP(ROWS) STEP(ROWS) STEP(ROWS) }                                          \
        for (; k < kc;) { STEP(ROWS) }                                                                                \
        ROWS(FINISH)                                                                                                  \
    }
#define WRITE_1(i, j) LOC(c + i * ldc + j * VW) = c##i##j;
#define WRITE(i) ACROSS(WRITE_1, i)

// An 8 x 8 block, transposed: ROW(i) gives 8 elements of row i, and PUT(i, v) takes column i.
#define TRANSPOSE8(ROW, PUT)                                                                                          \
    {                                                                                                                 \
        E8 x0 = ROW(0), x1 = ROW(1), x2 = ROW(2), x3 = ROW(3), x4 = ROW(4), x5 = ROW(5), x6 = ROW(6), x7 = ROW(7);    \
        E8 y0 = PAIRS_LO(x0, x1), y1 = PAIRS_HI(x0, x1), y2 = PAIRS_LO(x2, x3), y3 = PAIRS_HI(x2, x3);                \
        E8 y4 = PAIRS_LO(x4, x5), y5 = PAIRS_HI(x4, x5), y6 = PAIRS_LO(x6, x7), y7 = PAIRS_HI(x6, x7);                \
        x0 = QUADS_LO(y0, y2), x1 = QUADS_HI(y0, y2), x2 = QUADS_LO(y1, y3), x3 = QUADS_HI(y1, y3);                   \
        x4 = QUADS_LO(y4, y6), x5 = QUADS_HI(y4, y6), x6 = QUADS_LO(y5, y7), x7 = QUADS_HI(y5, y7);                   \
        PUT(0, (E8)(x0.lo, x4.lo)) PUT(1, (E8)(x1.lo, x5.lo)) PUT(2, (E8)(x2.lo, x6.lo)) PUT(3, (E8)(x3.lo, x7.lo))   \
        PUT(4, (E8)(x0.hi, x4.hi)) PUT(5, (E8)(x1.hi, x5.hi)) PUT(6, (E8)(x2.hi, x6.hi)) PUT(7, (E8)(x3.hi, x7.hi))   \
    }
#define PAIRS_LO(x, y) (E8)(x.s0, y.s0, x.s1, y.s1, x.s4, y.s4, x.s5, y.s5)
#define PAIRS_HI(x, y) (E8)(x.s2, y.s2, x.s3, y.s3, x.s6, y.s6, x.s7, y.s7)
#define QUADS_LO(x, y) (E8)(x.s01, y.s01, x.s45, y.s45)
#define QUADS_HI(x, y) (E8)(x.s23, y.s23, x.s67, y.s67)

// d[c][r] = s[r][c] * factor for a panel of `width` rows r, those of them below `rows`, and D columns c, zero
// elsewhere.
#define LINE_IN(i) GET8(p + (i) * step) * factor
#define LINE_LOCAL(i, v) *(__local U8*)(d + (c + (i)) * width + r) = (v);
static inline void transpose_panel(__local E* d, int width, __global const S* s, long rows, long step, int D,
                                   E factor) {
    int full = (rows < width ? (int)rows : width) / 8 * 8, columns = D / 8 * 8;
    for (int r = 0; r < full; r += 8)
        for (int c = 0; c < columns; c += 8) {
            __global const S* p = s + r * step + c;
            TRANSPOSE8(LINE_IN, LINE_LOCAL)
        }
    for (int r = 0; r < width; r++)
        for (int c = r < full ? columns : 0; c < D; c++)
            d[c * width + r] = r < rows ? LOAD(s + r * step, c) * factor : 0;
}
