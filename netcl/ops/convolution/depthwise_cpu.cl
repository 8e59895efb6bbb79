// depthwise_cpu.cl: convolution where every group has one input channel, on CPU devices. Follows panel_cpu.cl
// and memory.cl.
//
// A matrix product would have a single row, so each plane is convolved by itself: a band of its rows is copied to local
// memory with zeros around it (`wide` elements a row), after which no window needs a bounds check, and VW outputs of a
// row are summed at a time. x has unit stride along its rows. Launch: local = (1).
// USE_<KERNEL> picks the kernel of a program, since drivers compile everything they see.
#ifndef BAND
#define BAND 16384  // elements of the copied band (4096..32768), to stay in the second-level cache
#endif
#define AS(type, v) JOIN(as_, type)(v)

typedef struct {
    long count, O, each, H, W, KH, KW, sy, sx, py, px, dy, dx, Ho, Wo, xn, xc, xh, yn, yc, yh, yw, planes, wide, band,
        act, has_bias;
} Dims;

#define ZERO(r) T s##r = (T)(0);
#define EVERY1(p) LOC(p)
#define EVERY2(p) ((T)(LOC(p).even, LOC((p) + VW).even))

// Rows y .. y + rows - 1 of a plane (from -py on), with the padding, to local memory.
static inline void copy_band(__local E* d, __global const S* x, int y, int rows, const Dims* D) {
    int W = D->W, px = D->px, wide = D->wide;
    for (int r = 0; r < rows; r++, y++, d += wide) {
        int c = 0;
        if (y >= 0 && y < D->H) {
            __global const S* p = x + y * D->xh;
            for (; c < px; c++) d[c] = 0;
            for (; c + VW <= px + W; c += VW) LOC(d + c) = GET(p + c - px);
            for (; c < px + W; c++) d[c] = LOAD(p, c - px);
        }
        for (; c < wide; c++) d[c] = 0;
    }
}

#ifdef USE_DEPTHWISE
#ifdef EPILOGUE
#define FINISH(sum) activate(sum + b, D.act)
#else
#define FINISH(sum) sum
#endif
// Four rows of outputs from column j on, of each tap in turn. The last vector of a row may overlap the one before, and
// the last rows the ones before.
#define FOUR(F) F(0) F(1) F(2) F(3)
#define ADD_TAP(r) s##r = READ(p + r * step) * tap + s##r;
#define KEEP_SUM(r) sums[r] = s##r;
#define TAP_BY_TAP                                                                    \
    for (int u = 0; u < KH; u++)                                                      \
        for (int v = 0; v < KW; v++) {                                                \
            __local const E* p = row + u * (int)D.dy * wide + j * sx + v * (int)D.dx; \
            T tap = (T)(taps[u * KW + v]);                                            \
            FOUR(ADD_TAP)                                                             \
        }
// The same where KH is 3 and nothing is left out between rows: each row of the band is read once.
#define MEET(r, t) s##r = x * t + s##r;
#define THREE_BY_THREE                                                                       \
    __local const E* p = row + j;                                                            \
    for (int v = 0; v < KW; v++, p += D.dx) {                                                \
        T x = LOC(p), t0 = (T)(taps[v]), t1 = (T)(taps[KW + v]), t2 = (T)(taps[2 * KW + v]); \
        MEET(0, t0) x = LOC(p + wide);                                                       \
        MEET(0, t1) MEET(1, t0) x = LOC(p + 2 * wide);                                       \
        MEET(0, t2) MEET(1, t1) MEET(2, t0) x = LOC(p + 3 * wide);                           \
        MEET(1, t2) MEET(2, t1) MEET(3, t0) x = LOC(p + 4 * wide);                           \
        MEET(2, t2) MEET(3, t1) x = LOC(p + 5 * wide);                                       \
        MEET(3, t2)                                                                          \
    }
#define ROWS(SUM)                                                                                   \
    for (int j = 0; j < Wo; j += VW) {                                                              \
        if (j + VW > Wo && Wo >= VW) j = Wo - VW;                                                   \
        FOUR(ZERO)                                                                                  \
        SUM                                                                                         \
        FOUR(KEEP_SUM)                                                                              \
        for (int r = 0; r < 4; r++) send(out + r * D.yh + j * D.yw, FINISH(sums[r]), Wo - j, D.yw); \
    }

// Long strides, and bands of less than four rows.
#define ONE_BY_ONE                                                                                                \
    for (int r = 0; r < 4 && i + r < i1; r++)                                                                     \
        for (int j = 0; j < Wo; j += VW) {                                                                        \
            for (int l = 0; l < VW && j + l < Wo; l++) {                                                          \
                __local const E* p = row + r * step + (j + l) * sx;                                               \
                E s = 0;                                                                                          \
                for (int u = 0; u < KH; u++)                                                                      \
                    for (int v = 0; v < KW; v++) s += p[u * (int)D.dy * wide + v * (int)D.dx] * taps[u * KW + v]; \
                ((E*)sums)[l] = s;                                                                                \
            }                                                                                                     \
            send(out + r * D.yh + j * D.yw, FINISH(sums[0]), Wo - j, D.yw);                                       \
        }

// Up to VW elements of a row, every `yw`-th place.
static inline void send(__global S* p, T v, int left, long yw) {
    if (yw == 1 && left >= VW) { SET(p, v); }
    else for (int l = 0; l < VW && l < left; l++) STORE(p, l * yw, ((const E*)&v)[l]);
}

#define LINE (64 / (int)sizeof(S))  // elements of a cache line

// Where the input of an output's plane starts.
static inline long plane_of(const Dims* D, long plane) { return plane / D->O * D->xn + plane % D->O / D->each * D->xc; }

// Ask for the rows of a plane that the outputs i .. i + 3 read, while another plane is computed.
static inline void ask(__global const S* x, int i, const Dims* D) {
    for (int y = i * (int)D->sy, end = y + 4 * (int)D->sy; y < end && y < D->H; y++)
        for (int c = 0; c < D->W; c += LINE) AHEAD(x + y * D->xh + c, 0);
}

// Each work-item takes `planes` planes.
__kernel void depthwise(__global S* Y, __global const S* X, __global const S* Wt, __global const S* bias, long oY,
                        long oX, long oWt, long obias, const Dims D) {
    __local E band[BAND];
    int KH = D.KH, KW = D.KW, Wo = D.Wo, wide = D.wide, sx = D.sx, step = D.sy * wide;
    T sums[4];
    long p0 = get_global_id(0) * D.planes, p1 = min(p0 + D.planes, D.count);
    for (long plane = p0; plane < p1; plane++) {
        long n = plane / D.O, o = plane % D.O;
        __global const S* x = X + oX + plane_of(&D, plane);
        E taps[MOST];
        for (int t = 0; t < KH * KW; t++) taps[t] = LOAD(Wt, oWt + o * KH * KW + t);
#ifdef EPILOGUE
        E b = D.has_bias ? (E)LOAD(bias, obias + o) : (E)0;
#endif
        for (int i0 = 0; i0 < D.Ho; i0 += D.band) {
            int i1 = min(i0 + (int)D.band, (int)D.Ho);
            copy_band(band, x, i0 * D.sy - D.py, (i1 - 1 - i0) * D.sy + (KH - 1) * D.dy + 1, &D);
            for (int i = i0; i < i1; i += 4) {
                if (i + 4 > i1) i = max(i1 - 4, i0);
                __global S* out = Y + oY + n * D.yn + o * D.yc + i * D.yh;
                __local const E* row = band + (i - i0) * step;
                for (int c = 0; c < 4 * D.yh; c += LINE) AHEAD(out + 4 * D.yh + c, 1);
                if (plane + 1 < p1) ask(X + oX + plane_of(&D, plane + 1), i, &D);
                if (sx > 2 || i + 4 > i1) { ONE_BY_ONE }
                else if (KH == 3 && sx == 1 && step == wide && D.dy == 1) { ROWS(THREE_BY_THREE) }
#define READ EVERY1
                else if (sx == 1) { ROWS(TAP_BY_TAP) }
#undef READ
#define READ EVERY2
                else { ROWS(TAP_BY_TAP) }
#undef READ
            }
        }
    }
}
#endif

#ifdef USE_DEPTHWISE_WEIGHTS
// dW (O, KH, KW): each work-item sums over all images of one output channel, N (1 or 3) taps of a filter row at a time.
// G has unit stride along its rows. The last vector of a row overlaps the one before where it can, and lanes that do
// not count are dropped from the product, since 0 * infinity is not 0.
#define ONE(F) F(0)
#define THREE(F) F(0) F(1) F(2)
#define MORE(r) s##r += READ(p + j * sx + r * dx) * up;
#define REST(r) s##r += AS(VECTOR, AS(MASKS, READ(p + rest * sx + r * dx) * up) & keep);
#define KEEP_SUM(r) sums[u * KW + v + r] += s##r;
#define TAPS(N)                                                                                 \
    {                                                                                           \
        N(ZERO)                                                                                 \
        for (int i = i0; i < i1; i++) {                                                         \
            __global const S* g = G + oG + image * D.yn + o * D.yc + i * D.yh;                  \
            __local const E* p = band + ((i - i0) * (int)D.sy + u * (int)D.dy) * wide + v * dx; \
            for (int j = 0; j + VW <= Wo; j += VW) { T up = GET(g + j); N(MORE) }               \
            if (Wo % VW) { T up = last(g, Wo); N(REST) }                                        \
        }                                                                                       \
        N(KEEP_SUM)                                                                             \
    }
#define BAND_TAPS                               \
    for (int u = 0; u < KH; u++) {              \
        int v = 0;                              \
        for (; v + 3 <= KW; v += 3) TAPS(THREE) \
        for (; v < KW; v++) TAPS(ONE)           \
    }

static inline T gather(__local const E* p, int sx) {
    T v;
    for (int l = 0; l < VW; l++) ((E*)&v)[l] = p[l * sx];
    return v;
}

// The last VW of n elements, or all of them and zeros.
static inline T last(__global const S* g, int n) {
    T v = (T)(0);
    if (n >= VW) return GET(g + n - VW);
    for (int l = 0; l < n; l++) ((E*)&v)[l] = LOAD(g, l);
    return v;
}

__kernel void depthwise_weights(__global S* dW, __global const S* G, __global const S* X, long odW, long oG, long oX,
                                const Dims D) {
    __local E band[BAND];
    int KH = D.KH, KW = D.KW, Wo = D.Wo, wide = D.wide, sx = D.sx, dx = D.dx, rest = max(Wo - VW, 0);
    long o = get_global_id(0);
    T sums[MOST];
    for (int t = 0; t < KH * KW; t++) sums[t] = (T)(0);
    MASKS keep;
    for (int l = 0; l < VW; l++) ((MASK*)&keep)[l] = (Wo < VW ? l < Wo : l >= VW - Wo % VW) ? -1 : 0;
    for (long image = 0; image < D.count; image++) {
        __global const S* x = X + oX + image * D.xn + o / D.each * D.xc;
        for (int i0 = 0; i0 < D.Ho; i0 += D.band) {
            int i1 = min(i0 + (int)D.band, (int)D.Ho);
            copy_band(band, x, i0 * D.sy - D.py, (i1 - 1 - i0) * D.sy + (KH - 1) * D.dy + 1, &D);
#define READ EVERY1
            if (sx == 1) BAND_TAPS
#undef READ
#define READ EVERY2
            else if (sx == 2) BAND_TAPS
#undef READ
#define READ(p) gather(p, sx)
            else BAND_TAPS
#undef READ
        }
    }
    for (int t = 0; t < KH * KW; t++) {
        E s = 0;
        for (int l = 0; l < VW; l++) s += ((const E*)&sums[t])[l];
        STORE(dW, odW + o * KH * KW + t, s);
    }
}
#endif
