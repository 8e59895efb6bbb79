// depthwise_cpu.cl: convolution where every group has one input channel, on CPU devices. Follows panel_cpu.cl.
//
// A matrix product would have a single row, so each plane is convolved by itself: a band of its rows is copied to local
// memory with zeros around it (`wide` elements a row), after which no window needs a bounds check, and VW outputs of a row
// are summed at a time. x has unit stride along its rows. Launch: local = (1); each work-item takes `planes` planes.
#ifndef BAND
#define BAND 16384  // elements of the copied band (4096..32768), to stay in the second-level cache
#endif
#define AS(type, v) JOIN(as_, type)(v)

typedef struct {
    long count, O, each, H, W, KH, KW, sy, sx, py, px, dy, dx, Ho, Wo, xn, xc, xh, yn, yc, yh, yw, planes, wide, band, act,
        has_bias;
} Dims;

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

#define ROWS(EVERY)                                                                                   \
    for (; j < Wo; j += VW) {                                                                         \
        T sum = (T)(0);                                                                               \
        for (int u = 0; u < KH; u++) {                                                                \
            __local const E* p = row + u * (int)D.dy * wide + j * sx;                                 \
            for (int v = 0; v < KW; v++) sum = EVERY(p + v * (int)D.dx) * (T)(taps[u * KW + v]) + sum;    \
        }                                                                                             \
        FINISH                                                                                        \
    }
#ifdef EPILOGUE
#define FINISH_ACT sum = activate(sum + b, D.act);
#else
#define FINISH_ACT
#endif
#define FINISH                                                                                        \
    FINISH_ACT                                                                                        \
    if (D.yw == 1 && j + VW <= Wo) { SET(out + j, sum); }                                             \
    else for (int l = 0; l < VW && j + l < Wo; l++) STORE(out, (j + l) * D.yw, ((const E*)&sum)[l]);

__kernel void depthwise(__global S* Y, __global const S* X, __global const S* Wt, __global const S* bias, long oy, long ox,
                        long ow, long ob, const Dims D) {
    __local E band[BAND];
    int KH = D.KH, KW = D.KW, Wo = D.Wo, wide = D.wide, sx = D.sx;
    long p0 = get_global_id(0) * D.planes, p1 = min(p0 + D.planes, D.count);
    for (long plane = p0; plane < p1; plane++) {
        long n = plane / D.O, o = plane % D.O;
        __global const S* x = X + ox + n * D.xn + o / D.each * D.xc;
        E taps[MOST];
        for (int t = 0; t < KH * KW; t++) taps[t] = LOAD(Wt, ow + o * KH * KW + t);
#ifdef EPILOGUE
        E b = D.has_bias ? (E)LOAD(bias, ob + o) : (E)0;
#endif
        for (int i0 = 0; i0 < D.Ho; i0 += D.band) {
            int i1 = min(i0 + (int)D.band, (int)D.Ho);
            copy_band(band, x, i0 * D.sy - D.py, (i1 - 1 - i0) * D.sy + (KH - 1) * D.dy + 1, &D);
            for (int i = i0; i < i1; i++) {
                __global S* out = Y + oy + n * D.yn + o * D.yc + i * D.yh;
                __local const E* row = band + (i - i0) * (int)D.sy * wide;
                int j = 0;
                if (sx == 1) { ROWS(EVERY1) }
                else if (sx == 2) { ROWS(EVERY2) }
                else
                    for (; j < Wo; j += VW) {
                        T sum;
                        for (int l = 0; l < VW; l++) {
                            E s = 0;
                            for (int u = 0; u < KH && j + l < Wo; u++)
                                for (int v = 0; v < KW; v++)
                                    s += row[u * (int)D.dy * wide + (j + l) * sx + v * (int)D.dx] * taps[u * KW + v];
                            ((E*)&sum)[l] = s;
                        }
                        FINISH
                    }
            }
        }
    }
}

// dW (O, KH, KW): each work-item sums over all images of one output channel. G has unit stride along its rows.
// Lanes behind the end of a row are dropped from the product, since 0 * infinity is not 0.
#define SUM(EVERY)                                                                                           \
    for (int j = 0; j < Wo; j += VW) {                                                                       \
        int full = j + VW <= Wo;                                                                             \
        T up = full ? GET(g + j) : (T)(0);                                                                   \
        if (!full) for (int l = 0; l < Wo - j; l++) ((E*)&up)[l] = LOAD(g, j + l);                           \
        for (int v = 0; v < n; v++) {                                                                        \
            T product = EVERY(p + j * sx + v * (int)D.dx) * up;                                              \
            if (!full) product = AS(VECTOR, AS(MASKS, product) & keep);                                      \
            part[v] += product;                                                                              \
        }                                                                                                    \
    }

__kernel void depthwise_weights(__global S* dW, __global const S* G, __global const S* X, long od, long og, long ox,
                                const Dims D) {
    __local E band[BAND];
    int KH = D.KH, KW = D.KW, Wo = D.Wo, wide = D.wide, sx = D.sx, n = D.KW;
    long o = get_global_id(0);
    T sums[MOST];
    for (int t = 0; t < KH * KW; t++) sums[t] = (T)(0);
    MASKS keep;
    for (int l = 0; l < VW; l++) ((MASK*)&keep)[l] = l < Wo % VW ? -1 : 0;
    for (long image = 0; image < D.count; image++) {
        __global const S* x = X + ox + image * D.xn + o / D.each * D.xc;
        for (int i0 = 0; i0 < D.Ho; i0 += D.band) {
            int i1 = min(i0 + (int)D.band, (int)D.Ho);
            copy_band(band, x, i0 * D.sy - D.py, (i1 - 1 - i0) * D.sy + (KH - 1) * D.dy + 1, &D);
            for (int i = i0; i < i1; i++)
                for (int u = 0; u < KH; u++) {
                    __global const S* g = G + og + image * D.yn + o * D.yc + i * D.yh;
                    __local const E* p = band + ((i - i0) * (int)D.sy + u * (int)D.dy) * wide;
                    T* part = sums + u * KW;
                    if (sx == 1) { SUM(EVERY1) }
                    else if (sx == 2) { SUM(EVERY2) }
                    else
                        for (int v = 0; v < KW; v++) {
                            E s = 0;
                            for (int j = 0; j < Wo; j++) s += p[j * sx + v * (int)D.dx] * LOAD(g, j);
                            ((E*)&part[v])[0] += s;
                        }
                }
        }
    }
    for (int t = 0; t < KH * KW; t++) {
        E s = 0;
        for (int l = 0; l < VW; l++) s += ((const E*)&sums[t])[l];
        STORE(dW, od + o * KH * KW + t, s);
    }
}
