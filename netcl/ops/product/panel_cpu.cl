// panel_cpu.cl: the parts of a matrix product on a CPU device that matmul_cpu.cl and conv_cpu.cl share.
//
//   Ap [mc][LDA]      rows of the left operand, copied; a block stays in the second-level cache
//   Bp [NP][KC][NR]   panels of NR columns of the right operand; one panel stays in the first level
//   micro             MR (or fewer) x NR sums in registers over a depth of kc; for each MR rows of Ap, all panels of Bp
//
// E is the compute type, T a vector of VW of them that fills a register, S the storage type. MR x 2 vectors of sums
// fill the registers: 6 x 2 of 16, or 12 x 2 of 32. No barriers, no builtins in inner loops: some CPU drivers leave
// builtins as function calls with every vector register spilled round each of them.
// Source: blocking after Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication".
#ifndef MC
#define MC 384      // rows of Ap (48..384); B is copied once per MC rows
#endif
#ifndef KC
#define KC 256      // depth of a block (128..512)
#endif
#ifndef NP
#define NP 4        // panels of B copied at once (1..8)
#endif
#ifndef MR
#define MR 6        // or 12
#endif
#define LDA (KC + VW)    // elements per row of Ap; not a power of two, so that rows do not fall on the same cache sets
#define NR (2 * VW)

// PoCL passes vectors of 512 bits to and from memory as halves in functions that it does not inline.
#define INLINE static inline __attribute__((always_inline))
#undef min
#define min(a, b) ((a) < (b) ? (a) : (b))   // the builtin is a call there
#ifdef HAVE_T
typedef T U __attribute__((aligned(sizeof(E))));   // a vector that need not be aligned
#else
typedef VECTOR T;
typedef VECTOR U __attribute__((aligned(sizeof(E))));
#endif
#define LOC(p) (*(__local U*)(p))
#define PRIV(p) (*(U*)(p))
#define GLOB(p) (*(__global U*)(p))
#define GLOB_CONST(p) (*(__global const U*)(p))
#ifdef NARROW
#define GET(p) JOIN(JOIN(LOAD_, NARROW), VW)(p)
#define GET8(p) JOIN(JOIN(LOAD_, NARROW), 8)(p)
#define SET(p, v) JOIN(JOIN(STORE_, NARROW), VW)(v, p)
#define SET8(p, v) JOIN(JOIN(STORE_, NARROW), 8)(v, p)
#else
#define GET(p) (*(__global const U*)(p))
#define GET8(p) (*(__global const U8*)(p))
#define SET(p, v) (*(__global U*)(p) = (v))
#define SET8(p, v) (*(__global U8*)(p) = (v))
#endif

#if VW >= 8
typedef JOIN(E, 8) V8;
typedef V8 U8 __attribute__((aligned(sizeof(E))));
#define LOC8(p) (*(__local U8*)(p))
// An 8 x 8 block, transposed: row k of IN goes to column k of what OUT(row, vector) gets.
#define TRANSPOSE8(IN, OUT)                                                                                          \
    {                                                                                                           \
        V8 a = IN(0), b = IN(1), e = IN(2), f = IN(3), g = IN(4), h = IN(5), i = IN(6), j = IN(7);              \
        V8 ab = (V8)(a.s0, b.s0, a.s1, b.s1, a.s4, b.s4, a.s5, b.s5);                                           \
        V8 AB = (V8)(a.s2, b.s2, a.s3, b.s3, a.s6, b.s6, a.s7, b.s7);                                           \
        V8 ef = (V8)(e.s0, f.s0, e.s1, f.s1, e.s4, f.s4, e.s5, f.s5);                                           \
        V8 EF = (V8)(e.s2, f.s2, e.s3, f.s3, e.s6, f.s6, e.s7, f.s7);                                           \
        V8 gh = (V8)(g.s0, h.s0, g.s1, h.s1, g.s4, h.s4, g.s5, h.s5);                                           \
        V8 GH = (V8)(g.s2, h.s2, g.s3, h.s3, g.s6, h.s6, g.s7, h.s7);                                           \
        V8 ij = (V8)(i.s0, j.s0, i.s1, j.s1, i.s4, j.s4, i.s5, j.s5);                                           \
        V8 IJ = (V8)(i.s2, j.s2, i.s3, j.s3, i.s6, j.s6, i.s7, j.s7);                                           \
        V8 p0 = (V8)(ab.s01, ef.s01, ab.s45, ef.s45), p1 = (V8)(ab.s23, ef.s23, ab.s67, ef.s67);                \
        V8 p2 = (V8)(AB.s01, EF.s01, AB.s45, EF.s45), p3 = (V8)(AB.s23, EF.s23, AB.s67, EF.s67);                \
        V8 q0 = (V8)(gh.s01, ij.s01, gh.s45, ij.s45), q1 = (V8)(gh.s23, ij.s23, gh.s67, ij.s67);                \
        V8 q2 = (V8)(GH.s01, IJ.s01, GH.s45, IJ.s45), q3 = (V8)(GH.s23, IJ.s23, GH.s67, IJ.s67);                \
        OUT(0, ((V8)(p0.lo, q0.lo)));                                                                           \
        OUT(1, ((V8)(p1.lo, q1.lo)));                                                                           \
        OUT(2, ((V8)(p2.lo, q2.lo)));                                                                           \
        OUT(3, ((V8)(p3.lo, q3.lo)));                                                                           \
        OUT(4, ((V8)(p0.hi, q0.hi)));                                                                           \
        OUT(5, ((V8)(p1.hi, q1.hi)));                                                                           \
        OUT(6, ((V8)(p2.hi, q2.hi)));                                                                           \
        OUT(7, ((V8)(p3.hi, q3.hi)));                                                                           \
    }
// d[k * ld + c] = s[k + c * sc].
static inline void transpose_block(__local E* d, int ld, __global const S* s, long sc) {
#define FROM_GLOBAL(c) GET8(s + c * sc)
#define TO_LOCAL(k, v) LOC8(d + k * ld) = v
    TRANSPOSE8(FROM_GLOBAL, TO_LOCAL)
}
// d[c * sc + k] = s[k * ld + c].
static inline void transpose_back(__global S* d, long sc, __local const E* s, int ld) {
#define FROM_LOCAL(k) LOC8(s + k * ld)
#define TO_GLOBAL(c, v) SET8(d + c * sc, v)
    TRANSPOSE8(FROM_LOCAL, TO_GLOBAL)
}
#endif

// Copy a rows x cols block with element strides sr, sc to d, row-major with `ld` elements per row. Not inlined: two
// copies of it in a kernel took half of the kernel's compilation.
static void copy_block(__local E* d, int ld, __global const S* s, int rows, int cols, long sr, long sc) {
    if (sc == 1) {
        for (; rows >= 4; rows -= 4, s += 4 * sr, d += 4 * ld) {  // four lines in flight
            int c = 0;
            for (; c + VW <= cols; c += VW) {
                T a = GET(s + c), b = GET(s + sr + c), e = GET(s + 2 * sr + c), f = GET(s + 3 * sr + c);
                LOC(d + c) = a;
                LOC(d + ld + c) = b;
                LOC(d + 2 * ld + c) = e;
                LOC(d + 3 * ld + c) = f;
            }
            for (; c < cols; c++)
                for (int k = 0; k < 4; k++) d[k * ld + c] = LOAD(s, k * sr + c);
        }
        for (; rows > 0; rows--, s += sr, d += ld)
            for (int c = 0; c < cols; c++) d[c] = LOAD(s, c);
        return;
    }
    int r8 = 0, c8 = 0;
#if VW >= 8
    if (sr == 1) {  // along the lines of s, which the hardware fetches ahead
        r8 = rows & ~7;
        c8 = cols & ~7;
        for (int c = 0; c < c8; c += 8)
            for (int r = 0; r < r8; r += 8) transpose_block(d + r * ld + c, ld, s + r + c * sc, sc);
        for (int c = c8; c < cols; c++)
            for (int r = 0; r < r8; r++) d[r * ld + c] = LOAD(s, r + c * sc);
    }
#endif
    for (int r = r8; r < rows; r++)
        for (int c = 0; c < cols; c++) d[r * ld + c] = LOAD(s, r * sr + c * sc);
}

// The rows k of a kc x cols block of the right operand as panels of NR columns: all panels of a row at once, so that a
// row costs one page and full cache lines.
static inline void copy_panels(__local E* d, __global const S* s, int kc, int cols, long sk, long sn) {
    int full = sn == 1 ? cols / NR : 0;
    if (full) {
        __global const S* row = s;
        for (int k = 0; k < kc; k++, row += sk) {
            __local E* q = d + k * NR;
            for (int p = 0; p < full; p++, q += KC * NR) {
                T x = GET(row + p * NR), y = GET(row + p * NR + VW);
                LOC(q) = x;
                LOC(q + VW) = y;
            }
        }
    }
    for (int n = full * NR; n < cols; n += NR) copy_block(d + n * KC, NR, s + n * sn, kc, min(NR, cols - n), sk, sn);
}

#define ROW(i) a = (T)(AT(i)); c##i##0 = a * b0 + c##i##0; c##i##1 = a * b1 + c##i##1;
#define STEP(ROWS) b0 = B_AT(bp); b1 = B_AT(bp + VW); ROWS(ROW) bp += ldb; k++; NEXT
#define CLEAR(i) T c##i##0 = (T)(0), c##i##1 = (T)(0);
#define KEEP(i) PRIV(t + i * NR) = c##i##0 * alpha; PRIV(t + i * NR + VW) = c##i##1 * alpha;
#define SEND(i) GLOB(to + i * ld) = c##i##0 * alpha; GLOB(to + i * ld + VW) = c##i##1 * alpha;
#define ADD(i) GLOB(to + i * ld) += c##i##0 * alpha; GLOB(to + i * ld + VW) += c##i##1 * alpha;
#define ROWS4(F) F(0) F(1) F(2) F(3)
#define ROWS6(F) ROWS4(F) F(4) F(5)
#define ROWS8(F) ROWS6(F) F(6) F(7)
#define ROWS12(F) ROWS8(F) F(8) F(9) F(10) F(11)

// Where operands are read: in Ap and Bp, or with A_IN_PLACE and B_IN_PLACE where they lie, when a copy would not pay.
#ifdef A_IN_PLACE
#define A_OF __global const E*
#else
#define A_OF __local const E*
#endif
#if defined(B_IN_PLACE) || defined(B_PACKED)
#define B_OF __global const E*
#define B_AT GLOB_CONST
#else
#define B_OF __local const E*
#define B_AT LOC
#endif

// The sums of a tile over a depth of kc: rows of ap, found by AT(row) and NEXT, times the rows at bp, ldb apart.
#define SUMS(ROWS)                                                                    \
    T a, b0, b1;                                                                      \
    ROWS(CLEAR)                                                                       \
    int k = 0;                                                                        \
    for (; k + 4 <= kc;) { STEP(ROWS) STEP(ROWS) STEP(ROWS) STEP(ROWS) }              \
    for (; k < kc;) { STEP(ROWS) }

#define AT(i) ap[i * lda + k]
#define NEXT
// alpha times the sums: to the tile at `to` with `ld` elements per row (added to it if `old`), or to t[rows][NR] when
// `to` is 0. Tiles of fewer rows as well, so that few rows are computed in vain.
#define MICRO(name, ROWS)                                                                                             \
    static inline void name(E* t, A_OF ap, long lda, B_OF bp, long ldb, int kc, E alpha, __global E* to, long ld, \
                            int old) {                                                                                \
        SUMS(ROWS)                                                                                                    \
        if (to && old) { ROWS(ADD) }                                                                                  \
        else if (to) { ROWS(SEND) }                                                                                   \
        else { ROWS(KEEP) }                                                                                           \
    }
MICRO(micro4, ROWS4)
#if MR == 12
MICRO(micro8, ROWS8)
MICRO(micro12, ROWS12)
#else
MICRO(micro6, ROWS6)
#endif

// Rows of the next tile when `left` rows remain: HEIGHTS[left - 1], or MR behind the list.
__constant uchar heights[] = {HEIGHTS};
static inline int tile_rows(int left) { return left <= sizeof(heights) ? heights[left - 1] : MR; }

static inline void micro(int rows, E* t, A_OF ap, long lda, B_OF bp, long ldb, int kc, E alpha, __global E* to, long ld,
                         int old) {
    if (rows == 4) micro4(t, ap, lda, bp, ldb, kc, alpha, to, ld, old);
#if MR == 12
    else if (rows == 8) micro8(t, ap, lda, bp, ldb, kc, alpha, to, ld, old);
    else micro12(t, ap, lda, bp, ldb, kc, alpha, to, ld, old);
#else
    else micro6(t, ap, lda, bp, ldb, kc, alpha, to, ld, old);
#endif
}

// u[NR] += p[cols], and p[cols] = u, for one row of a tile.
static inline void add_row(E* u, __global const S* p, int cols) {
    if (cols == NR) {
        PRIV(u) += GET(p);
        PRIV(u + VW) += GET(p + VW);
    } else {
        for (int j = 0; j < cols; j++) u[j] += LOAD(p, j);
    }
}

static inline void put_row(__global S* p, const E* u, int cols) {
    if (cols == NR) {
        SET(p, PRIV(u));
        SET(p + VW, PRIV(u + VW));
    } else {
        for (int j = 0; j < cols; j++) STORE(p, j, u[j]);
    }
}

#ifdef NARROW
static inline void add_part(E* u, __global const E* p, int cols) { for (int j = 0; j < cols; j++) u[j] += p[j]; }
static inline void put_part(__global E* p, const E* u, int cols) { for (int j = 0; j < cols; j++) p[j] = u[j]; }
#else
#define add_part add_row
#define put_part put_row
#endif

#ifdef EPILOGUE
static inline T activate(T x, int act) { return act == 1 ? RELU(x) : act == 2 ? GELU(x) : act == 3 ? SILU(x) : x; }
#endif
