// pool_cpu.cl: pooling of floats on CPU devices. Four outputs of a row at a time where all their windows lie inside the
// image; elsewhere one by one. Gradients go through the windows of a plane in order, so that every sum has one owner.
// Each work-item takes `rows` rows of the output (forward) or planes (gradients). Launch: local = (1).
// V is a vector of four of the compute type T, M the integers as wide; x has unit stride along its rows, `span` elements
// from its first to its end. The meaning of a window is that of pool.cl.
#define FIRST(start, step) ((start) < 0 ? (-(start) + (step) - 1) / (step) : 0)
#define END(start, step, taps, length) \
    ((start) + ((taps) - 1) * (step) < (length) ? (taps) : (start) >= (length) ? 0 : ((length) - (start) + (step) - 1) / (step))

typedef struct {
    long C, H, W, Ho, Wo, KH, KW, sy, sx, py, px, dy, dx, xn, xc, xh, span, planes, rows, with_pad, divisor;
} Dims;

typedef V VU __attribute__((aligned(sizeof(S))));
#ifdef HALF
#define GET(p) vload_half4(0, p)
#define SET(p, v) vstore_half4_rte(v, 0, p)
#else
#define GET(p) (*(__global const VU*)(p))
#define SET(p, v) (*(__global VU*)(p) = (v))
#endif
#define FOUR(p) (sx == 1 ? GET(p) : (V)(GET(p).even, GET((p) + 4).even))
#define SIZES                                                                                          \
    int W = D.W, H = D.H, Wo = D.Wo, Ho = D.Ho, KH = D.KH, KW = D.KW, sx = D.sx, dx = D.dx, dy = D.dy; \
    long r0 = get_global_id(0) * D.rows, r1 = min(r0 + D.rows, D.planes * Ho);
#define ROW                                                                                            \
    int plane = r / Ho, i = r - (long)plane * Ho, y = i * (int)D.sy - (int)D.py;                       \
    int u0 = FIRST(y, dy), u1 = END(y, dy, KH, H);                                                     \
    long at_row = plane / D.C * D.xn + plane % D.C * D.xc + y * D.xh;
// Whether the windows of outputs j .. j + 3 are inside, and may be read four at a time.
#define INSIDE                                                                    \
    (j + 4 <= Wo && sx <= 2 && x >= 0 && x + 3 * sx + (KW - 1) * dx < W &&        \
     at_row + (u1 - 1) * dy * D.xh + x + (KW - 1) * dx + 4 * sx <= D.span)

__kernel void max_pool(__global S* Y, __global int* At, __global const S* X, long oy, long ox, const Dims D) {
    SIZES
    X += ox;
    for (long r = r0; r < r1; r++) {
        ROW
        __global S* out = Y + oy + r * Wo;
        __global int* place = At + r * Wo;
        for (int j = 0; j < Wo;) {
            int x = j * sx - (int)D.px;
            if (INSIDE && u1 > u0) {
                V best = (V)(0);
                M at = (M)(-1);
                for (int u = u0; u < u1; u++) {
                    __global const S* p = X + at_row + u * dy * D.xh + x;
                    M here = (M)(0, sx, 2 * sx, 3 * sx) + ((y + u * dy) * W + x);
                    for (int v = 0; v < KW; v++, p += dx, here += dx) {
                        V value = FOUR(p);
                        M better = (at < 0) | (value > best) | ((value != value) & (best == best));
                        best = better ? value : best;
                        at = better ? here : at;
                    }
                }
                SET(out + j, best);
                for (int l = 0; l < 4; l++) place[j + l] = ((const MT*)&at)[l];
                j += 4;
                continue;
            }
            T best = (T)(-INFINITY);
            int at = -1, v0 = FIRST(x, dx), v1 = END(x, dx, KW, W);
            for (int u = u0; u < u1; u++)
                for (int v = v0; v < v1; v++) {
                    T value = LOAD(X, at_row + u * dy * D.xh + x + v * dx);
                    if (at < 0 || value > best || (value != value && best == best)) {
                        best = value;
                        at = (y + u * dy) * W + x + v * dx;
                    }
                }
            STORE(out, j, best);
            place[j++] = at;
        }
    }
}

// Elements that a window from `start` counts as, along an axis.
static inline int counted(int start, int k, int length, int pad, int with_pad) {
    int end = min(start + k, length + pad);
    return with_pad ? end - start : min(end, length) - max(start, 0);
}

__kernel void avg_pool(__global S* Y, __global const S* X, long oy, long ox, const Dims D) {
    SIZES
    X += ox;
    for (long r = r0; r < r1; r++) {
        ROW
        __global S* out = Y + oy + r * Wo;
        T high = D.divisor ? (T)D.divisor : (T)counted(y, KH, H, D.py, D.with_pad);
        for (int j = 0; j < Wo;) {
            int x = j * sx - (int)D.px;
            if (INSIDE && u1 > u0) {
                V sum = (V)(0);
                for (int u = u0; u < u1; u++) {
                    __global const S* p = X + at_row + u * D.xh + x;
                    for (int v = 0; v < KW; v++) sum += FOUR(p + v);
                }
                SET(out + j, sum / (D.divisor ? high : high * KW));
                j += 4;
                continue;
            }
            T sum = 0;
            int v0 = FIRST(x, 1), v1 = END(x, 1, KW, W);
            for (int u = u0; u < u1; u++)
                for (int v = v0; v < v1; v++) sum += LOAD(X, at_row + u * D.xh + x + v);
            STORE(out, j, sum / (D.divisor ? high : high * counted(x, KW, W, D.px, D.with_pad)));
            j++;
        }
    }
}

// Not for half: dX itself holds the partial sums.
#ifndef HALF
#define PLANES                                                                                    \
    long size = D.H * D.W, outs = D.Ho * D.Wo, p0 = get_global_id(0) * D.rows;                    \
    for (long plane = p0; plane < min(p0 + D.rows, D.planes); plane++) {                          \
        __global S* to = dX + od + plane * size;                                                  \
        __global const S* from = G + og + plane * outs;                                           \
        for (long i = 0; i < size; i++) to[i] = 0;

__kernel void max_pool_grad(__global S* dX, __global const S* G, __global const int* At, long od, long og, long oa,
                            const Dims D) {
    PLANES
        __global const int* at = At + oa + plane * outs;
        for (long i = 0; i < outs; i++)
            if (at[i] >= 0) to[at[i]] += from[i];
    }
}

__kernel void avg_pool_grad(__global S* dX, __global const S* G, long od, long og, const Dims D) {
    int W = D.W, H = D.H, Wo = D.Wo, KH = D.KH, KW = D.KW, sx = D.sx;
    PLANES
        for (int i = 0, y = -D.py; i < D.Ho; i++, y += D.sy) {
            int u0 = FIRST(y, 1), u1 = END(y, 1, KH, H);
            T high = D.divisor ? (T)D.divisor : (T)counted(y, KH, H, D.py, D.with_pad);
            for (int j = 0, x = -D.px; j < Wo; j++, x += sx) {
                T share = *from++ / (D.divisor ? high : high * counted(x, KW, W, D.px, D.with_pad));
                int v0 = FIRST(x, 1), v1 = END(x, 1, KW, W);
                for (int u = u0; u < u1; u++)
                    for (int v = v0; v < v1; v++) to[(y + u) * W + x + v] += share;
            }
        }
    }
}
#endif
