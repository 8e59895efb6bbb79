// pool_cpu.cl: pooling of floats on CPU devices. VW outputs of a row at a time where all their windows lie inside the
// image; elsewhere one by one. Gradients go through the windows of a plane in order, so that every sum has one owner.
// Each work-item takes `rows` rows of the output (forward) or planes (gradients). Launch: local = (1). Follows
// memory.cl. V is a vector of VW of the compute type T, M the integers as wide; x has unit stride along its rows,
// `span` elements from its first to its end. The meaning of a window is that of pool.cl.
// INDICES: max_pool also writes where the maxima are.
#ifndef INDICES
#define INDICES 1
#endif
#define FIRST(start, step) ((start) < 0 ? (-(start) + (step) - 1) / (step) : 0)
#define END(start, step, taps, length) \
    ((start) + ((taps) - 1) * (step) < (length) ? (taps) : (start) >= (length) ? 0 \
     : ((length) - (start) + (step) - 1) / (step))

typedef struct {
    long C, H, W, Ho, Wo, KH, KW, sy, sx, py, px, dy, dx, xn, xc, xh, span, planes, rows, with_pad, divisor;
} Dims;

typedef JOIN(T, VW) V;
typedef JOIN(MT, VW) M;
typedef V VU __attribute__((aligned(sizeof(S))));
typedef M MU __attribute__((aligned(sizeof(MT))));
#ifdef NARROW
#define GET(p) JOIN(JOIN(LOAD_, NARROW), VW)(p)
#define SET(p, v) JOIN(JOIN(STORE_, NARROW), VW)(v, p)
#else
#define GET(p) (*(__global const VU*)(p))
#define SET(p, v) (*(__global VU*)(p) = (v))
#endif
#define EVERY(p) (sx == 1 ? GET(p) : (V)(GET(p).even, GET((p) + VW).even))
#define SIZES                                                                                          \
    int W = D.W, H = D.H, Wo = D.Wo, Ho = D.Ho, KH = D.KH, KW = D.KW, sx = D.sx, dx = D.dx, dy = D.dy; \
    long r0 = get_global_id(0) * D.rows, r1 = min(r0 + D.rows, D.planes * Ho), plane = r0 / Ho;        \
    int i = r0 - plane * Ho - 1;                                                                       \
    long at_plane = plane / D.C * D.xn + plane % D.C * D.xc;
// The next row: division is dear, so planes are counted.
#define ROW                                                                                            \
    if (++i == Ho) { i = 0; plane++; at_plane = plane / D.C * D.xn + plane % D.C * D.xc; }             \
    int y = i * (int)D.sy - (int)D.py, u0 = FIRST(y, dy), u1 = END(y, dy, KH, H);                      \
    long at_row = at_plane + y * D.xh;
// Outputs first .. last - 1 of a row have their windows inside the image.
#define INNER                                                                                          \
    int reach = W - 1 - (KW - 1) * dx + (int)D.px, first = ((int)D.px + sx - 1) / sx, last = 0;          \
    if (sx <= 2 && u1 > u0 && reach >= 0) last = reach / sx < Wo ? reach / sx + 1 : Wo;
// Whether VW outputs may be read at once, from j on, or from last - VW on if fewer are left: the vectors may overlap.
#define START (j < last - VW ? j : last - VW)
#define AT_ONCE                                                                                        \
    (j >= first && j < last && last - first >= VW &&                                                   \
     at_row + (u1 - 1) * dy * D.xh + (START + VW) * sx - D.px + (KW - 1) * dx <= D.span)

__kernel void max_pool(__global S* Y, __global int* At, __global const S* X, long oY, long oX, const Dims D) {
    SIZES
    X += oX;
    M lanes;
    for (int l = 0; l < VW; l++) ((MT*)&lanes)[l] = l;
    for (long r = r0; r < r1; r++) {
        ROW
        INNER
        __global S* out = Y + oY + r * Wo;
        __global int* place = At + r * Wo;
        for (int j = 0; j < Wo;) {
            if (AT_ONCE) {
                j = START;
                int x = j * sx - (int)D.px;
                V best = EVERY(X + at_row + u0 * dy * D.xh + x);
                M at = lanes * (MT)sx + (MT)((y + u0 * dy) * W + x);
                for (int u = u0; u < u1; u++) {
                    __global const S* p = X + at_row + u * dy * D.xh + x;
                    M here = lanes * (MT)sx + (MT)((y + u * dy) * W + x);
                    for (int v = 0; v < KW; v++, p += dx, here += dx) {
                        V value = EVERY(p);
                        M better = ~(value <= best) & (best == best);     // larger, or the first NaN
                        best = better ? value : best;
                        at = better ? here : at;
                    }
                }
                SET(out + j, best);
                if (INDICES & (sizeof(MT) == sizeof(int))) *(__global MU*)(place + j) = at;
                else if (INDICES) for (int l = 0; l < VW; l++) place[j + l] = ((const MT*)&at)[l];
                j += VW;
                continue;
            }
            int x = j * sx - (int)D.px;
            T best = (T)(-INFINITY);
            int at = -1, v0 = FIRST(x, dx), v1 = END(x, dx, KW, W);
            for (int u = u0; u < u1; u++)
                for (int v = v0; v < v1; v++) {
                    T value = LOAD(X, at_row + u * dy * D.xh + x + v * dx);
                    int better = (at < 0) | (value > best) | ((value != value) & (best == best));  // no jumps
                    best = better ? value : best;
                    at = better ? (y + u * dy) * W + x + v * dx : at;
                }
            STORE(out, j, best);
            if (INDICES) place[j] = at;
            j++;
        }
    }
}

// Elements that a window from `start` counts as, along an axis.
static inline int counted(int start, int k, int length, int pad, int with_pad) {
    int end = min(start + k, length + pad);
    return with_pad ? end - start : min(end, length) - max(start, 0);
}

__kernel void avg_pool(__global S* Y, __global const S* X, long oY, long oX, const Dims D) {
    SIZES
    X += oX;
    for (long r = r0; r < r1; r++) {
        ROW
        INNER
        __global S* out = Y + oY + r * Wo;
        T high = D.divisor ? (T)D.divisor : (T)counted(y, KH, H, D.py, D.with_pad);
        for (int j = 0; j < Wo;) {
            if (AT_ONCE) {
                j = START;
                int x = j * sx - (int)D.px;
                V sum = (V)(0);
                for (int u = u0; u < u1; u++) {
                    __global const S* p = X + at_row + u * D.xh + x;
                    for (int v = 0; v < KW; v++) sum += EVERY(p + v);
                }
                SET(out + j, sum / (D.divisor ? high : high * KW));
                j += VW;
                continue;
            }
            int x = j * sx - (int)D.px;
            T sum = 0;
            int v0 = FIRST(x, 1), v1 = END(x, 1, KW, W);
            for (int u = u0; u < u1; u++)
                for (int v = v0; v < v1; v++) sum += LOAD(X, at_row + u * D.xh + x + v);
            STORE(out, j, sum / (D.divisor ? high : high * counted(x, KW, W, D.px, D.with_pad)));
            j++;
        }
    }
}

// Not for narrow types: dX itself holds the partial sums.
#ifndef NARROW
#define PLANES                                                                                    \
    long size = D.H * D.W, outs = D.Ho * D.Wo, p0 = get_global_id(0) * D.rows;                    \
    for (long plane = p0; plane < min(p0 + D.rows, D.planes); plane++) {                          \
        __global S* to = dX + odX + plane * size;                                                  \
        __global const S* from = G + oG + plane * outs;                                           \
        for (long i = 0; i < size; i++) to[i] = 0;

__kernel void max_pool_grad(__global S* dX, __global const S* G, __global const int* At, long odX, long oG, long oAt,
                            const Dims D) {
    PLANES
        __global const int* at = At + oAt + plane * outs;
        for (long i = 0; i < outs; i++)
            if (at[i] >= 0) to[at[i]] += from[i];
    }
}

__kernel void avg_pool_grad(__global S* dX, __global const S* G, long odX, long oG, const Dims D) {
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
