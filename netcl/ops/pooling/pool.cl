// pool.cl: maximum and average over windows of (N, C, H, W), and their gradients; no gradient is added twice or by two
// work-items, because every element of dx gathers from the windows that cover it.
//
// A work-item computes `cols` elements of each of `rows` rows of the result: whole rows on CPU devices, one element on
// GPUs. Launch: global = (ceil(Wr / cols), ceil(N * C * Hr / rows)) rounded up to whole groups; Hr x Wr is the result.
// S is the storage type, T the compute type (S for integers), I the type of sizes and offsets. ADAPTIVE: windows from
// floor(i H / Ho) to ceil((i + 1) H / Ho) instead of a fixed size. INDICES: max_pool also writes where the maxima are.
#ifndef ADAPTIVE
#define ADAPTIVE 0
#endif

typedef struct {
    I C, H, W, Ho, Wo, KH, KW, sy, sx, py, px, dy, dx, xn, xc, xh, xw, planes, rows, cols, with_pad, divisor;
} Dims;

// For every (plane, i, j) of this work-item in a result of `high` x `wide`; r = plane * high + i.
#define EACH(high, wide)                                                                             \
    I c0 = (I)get_global_id(0) * D.cols, c1 = min(c0 + D.cols, (wide));                              \
    I r0 = (I)get_global_id(1) * D.rows, r1 = min(r0 + D.rows, D.planes * (high));                   \
    for (I r = r0; r < r1; r++)                                                                      \
        for (I j = c0, plane = r / (high), i = r - plane * (high); j < c1; j++)

static inline I plane_of(I plane, const Dims* D) { return plane / D->C * D->xn + plane % D->C * D->xc; }

// First tap of a window at `start` (may be negative) that is inside, and the first from `end` on that is not.
static inline int first_tap(int start, int step) { return start < 0 ? (-start + step - 1) / step : 0; }
static inline int end_tap(int start, int step, int taps, int length) {
    return start + (taps - 1) * step < length ? taps : start >= length ? 0 : (length - start + step - 1) / step;
}

// y = maximum, at = y * W + x of the first element that has it (NaN counts as the largest). Windows outside give -1.
__kernel void max_pool(__global S* Y, __global int* At, __global const S* X, long oY, long oX, const Dims D) {
    X += oX;
    EACH(D.Ho, D.Wo) {
        int y = i * D.sy - D.py, x = j * D.sx - D.px, at = -1;
        int u1 = end_tap(y, D.dy, D.KH, D.H), v0 = first_tap(x, D.dx), v1 = end_tap(x, D.dx, D.KW, D.W);
        T best = (T)LOWEST;
        for (int u = first_tap(y, D.dy); u < u1; u++) {
            int row = y + u * (int)D.dy;
            __global const S* p = X + plane_of(plane, &D) + row * D.xh;
            for (int v = v0; v < v1; v++) {
                int column = x + v * (int)D.dx;
                T value = LOAD(p, column * D.xw);
                if (at < 0 || value > best || (value != value && best == best)) {
                    best = value;
                    at = row * (int)D.W + column;
                }
            }
        }
        STORE(Y, oY + r * D.Wo + j, best);
#if INDICES
        At[r * D.Wo + j] = at;
#endif
    }
}

// The windows that may cover pixel h: lo .. hi.
#if ADAPTIVE
#define COVER(lo, hi, h, H, Ho, k, s, p) int lo = (h) * Ho / H, hi = (((h) + 1) * Ho + H - 1) / H - 1;
#else
#define COVER(lo, hi, h, H, Ho, k, s, p)                                                  \
    int lo = (h) + p - (k) < 0 ? 0 : ((h) + p - (k)) / s + 1, hi = min(Ho - 1, ((h) + p) / s);
#endif

// dx = sum of g over the windows whose maximum lies here. G and At are (planes, Ho, Wo), contiguous; dx too.
__kernel void max_pool_grad(__global S* dX, __global const S* G, __global const int* At, long odX, long oG, long oAt,
                            const Dims D) {
    I reach_y = (D.KH - 1) * D.dy + 1, reach_x = (D.KW - 1) * D.dx + 1;
    EACH(D.H, D.W) {
        COVER(y0, y1, i, D.H, D.Ho, reach_y, D.sy, D.py)
        COVER(x0, x1, j, D.W, D.Wo, reach_x, D.sx, D.px)
        int here = i * (int)D.W + j;
        ACC sum = 0;
        for (int y = y0; y <= y1; y++)
            for (int x = x0; x <= x1; x++) {
                I w = (plane * D.Ho + y) * D.Wo + x;
                if (At[oAt + w] == here) sum += LOAD(G, oG + w);
            }
        STORE(dX, odX + r * D.W + j, sum);
    }
}

// Bounds of window i along one axis, and how many elements it counts as.
#if ADAPTIVE
#define WINDOW(a, b, count, i, H, Ho, k, s, p) \
    int a = (i) * H / Ho, b = (((i) + 1) * H + Ho - 1) / Ho, count = b - a;
#else
#define WINDOW(a, b, count, i, H, Ho, k, s, p)                                    \
    int a = (i) * s - p, b = min(a + k, H + p), count = b - a;                    \
    a = max(a, 0);                                                                \
    b = min((I)b, H);                                                          \
    if (!D.with_pad) count = b - a;
#endif

__kernel void avg_pool(__global S* Y, __global const S* X, long oY, long oX, const Dims D) {
    X += oX;
    EACH(D.Ho, D.Wo) {
        WINDOW(y0, y1, high, i, D.H, D.Ho, D.KH, D.sy, D.py)
        WINDOW(x0, x1, wide, j, D.W, D.Wo, D.KW, D.sx, D.px)
        ACC sum = 0;
        for (int y = y0; y < y1; y++) {
            __global const S* p = X + plane_of(plane, &D) + y * D.xh;
            for (int x = x0; x < x1; x++) sum += LOAD(p, x * D.xw);
        }
        STORE(Y, oY + r * D.Wo + j, sum / (ACC)(D.divisor ? D.divisor : (long)high * wide));
    }
}

__kernel void avg_pool_grad(__global S* dX, __global const S* G, long odX, long oG, const Dims D) {
    EACH(D.H, D.W) {
        COVER(y0, y1, i, D.H, D.Ho, D.KH, D.sy, D.py)
        COVER(x0, x1, j, D.W, D.Wo, D.KW, D.sx, D.px)
        ACC sum = 0;
        for (int y = y0; y <= y1; y++) {
            WINDOW(a, b, high, y, D.H, D.Ho, D.KH, D.sy, D.py)
            for (int x = x0; x <= x1; x++) {
                WINDOW(c, d, wide, x, D.W, D.Wo, D.KW, D.sx, D.px)
                ACC count = (ACC)(D.divisor ? D.divisor : (long)high * wide);
                sum += LOAD(G, oG + (plane * D.Ho + y) * D.Wo + x) / count;
            }
        }
        STORE(dX, odX + r * D.W + j, sum);
    }
}
