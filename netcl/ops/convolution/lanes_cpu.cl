// lanes_cpu.cl: blocks of the matrix X(k, q) of a convolution on CPU devices: the input pixel that tap k (channel,
// filter row, filter column) of output pixel q reads, or 0 in the padding. X is never stored, only packed in blocks, VW
// pixels at a time. Follows panel_cpu.cl.
// x has unit stride along its last axis; `span` is the number of elements between the first and the end of x.

#define TAPS 16     // widest filter row the vector path takes
#define TABLE 64    // taps of the largest filter whose lanes are listed
#define AS(type, v) JOIN(as_, type)(v)
#define MASKED(v, keep) AS(VECTOR, AS(MASKS, v) & (keep))

typedef struct {
    long M, Q, K, C, H, W, KH, KW, sy, sx, py, px, dy, dx, Ho, Wo, xn, xc, xh, span;
    long yn, yc, yh, yw, mc, nc, kstep, act, has_bias;
} Dims;

// Output pixels q .. q + VW - 1 (those before `end`): part 0 of them lies in one output row, part 1 in the next.
typedef struct {
    long q, end;
    long from[2];               // element of x that lane 0 reads at tap (0, 0), as if the part covered every lane
    int row[2];                 // input row of tap row 0; H where the part is empty
    int scalar;                 // lanes lie in more than two rows, or the filter is beyond the vector path
    int joined;                 // lanes cross rows of one image that follow each other in x as they do in y
    MASKS keep[2][TAPS];        // all ones where a lane of the part reads inside its row at tap column kw
    int listed;                 // `at` is filled
    // The element of x's channel 0 that a lane reads at a tap, -1 in the padding.
    MASK at[TABLE * VW] __attribute__((aligned(64)));
} Lanes;

static inline void find_lanes(Lanes* L, long q, long end, const Dims* D) {
#if VW == 16
    const MASKS lane = (MASKS)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#elif VW == 8
    const MASKS lane = (MASKS)(0, 1, 2, 3, 4, 5, 6, 7);
#else
    const MASKS lane = (MASKS)(0, 1, 2, 3);
#endif
    int Wo = D->Wo, P = D->Ho * Wo, sx = D->sx, px = D->px;
    long n = q / P;
    int p = q - n * P, y = p / Wo, x = p - y * Wo, first = min(VW, Wo - x), count = min((long)VW, end - q);
    L->q = q;
    L->end = end;
    L->listed = 0;
    L->scalar = D->KW > TAPS || sx > 2 || count > first + Wo;
    L->joined = count > first && p + VW <= P && sx == 1 && D->sy == 1 && D->xh == Wo && D->W == Wo;
    L->row[0] = y * D->sy - D->py;
    L->from[0] = n * D->xn + L->row[0] * D->xh + x * sx - px;
    if (++y == D->Ho) { y = 0; n++; }
    L->row[1] = y * D->sy - D->py;
    L->from[1] = n * D->xn + L->row[1] * D->xh - px - first * sx;
    if (count <= first) L->row[1] = D->H;
    if (L->scalar) return;
    MASKS in0 = lane < (MASK)min(first, count), in1 = (lane >= (MASK)first) & (lane < (MASK)count);
    MASKS x0 = lane * (MASK)sx + (MASK)(x * sx - px), x1 = (lane - (MASK)first) * (MASK)sx - (MASK)px;
    for (int t = 0; t < D->KW; t++, x0 += (MASK)D->dx, x1 += (MASK)D->dx) {
        L->keep[0][t] = in0 & (x0 >= (MASK)0) & (x0 < (MASK)D->W);
        L->keep[1][t] = in1 & (x1 >= (MASK)0) & (x1 < (MASK)D->W);
    }
}

// Input row, column and element of tap (0, 0) at each lane; row H behind the end.
static void find_pixels(int* iy, int* ix, long* from, const Lanes* L, const Dims* D) {
    int Wo = D->Wo, Ho = D->Ho, sy = D->sy, sx = D->sx, py = D->py, px = D->px, P = Ho * Wo;
    long n = L->q / P;
    int p = L->q - n * P, y = p / Wo, x = p - y * Wo, count = min((long)VW, L->end - L->q);
    for (int l = 0; l < VW; l++) {
        iy[l] = l < count ? y * sy - py : (int)D->H;
        ix[l] = x * sx - px;
        from[l] = n * D->xn + (y * sy - py) * D->xh + ix[l];
        if (++x == Wo) { x = 0; if (++y == Ho) { y = 0; n++; } }
    }
}

// Rows k0 .. k0 + kc - 1 of X at the lanes to d, with `ld` elements per row: element by element.
static void pack_slowly(__local E* d, int ld, __global const S* X, const Lanes* L, int k0, int kc, const Dims* D) {
    int KW = D->KW, KH = D->KH, H = D->H, iy[VW], ix[VW];
    long from[VW];
    find_pixels(iy, ix, from, L, D);
    int c = k0 / (KH * KW), u = k0 / KW % KH, v = k0 % KW;
    for (int k = 0; k < kc; k++, d += ld) {
        long at = c * D->xc + u * D->dy * D->xh + v * D->dx;
        for (int l = 0; l < VW; l++) {
            int inside = (uint)(iy[l] + u * (int)D->dy) < H && (uint)(ix[l] + v * (int)D->dx) < D->W;
            d[l] = inside ? (E)LOAD(X, from[l] + at) : (E)0;
        }
        if (++v == KW) { v = 0; if (++u == KH) { u = 0; c++; } }
    }
}

static void list_lanes(Lanes* L, const Dims* D) {
    int KW = D->KW, KH = D->KH, dy = D->dy, dx = D->dx, iy[VW], ix[VW];
    long from[VW];
    if (L->listed) return;
    L->listed = 1;
    find_pixels(iy, ix, from, L, D);
    MASKS ys, xs, fs;
    for (int l = 0; l < VW; l++) { ((MASK*)&ys)[l] = iy[l]; ((MASK*)&xs)[l] = ix[l]; ((MASK*)&fs)[l] = from[l]; }
    for (int u = 0, t = 0; u < KH; u++) {
        MASKS y = ys + (MASK)(u * dy), row = (y >= (MASK)0) & (y < (MASK)D->H);
        for (int v = 0; v < KW; v++, t++) {
            MASKS x = xs + (MASK)(v * dx), inside = row & (x >= (MASK)0) & (x < (MASK)D->W);
            *(MASKS*)(L->at + t * VW) = (inside & (fs + (MASK)(u * dy * D->xh + v * dx))) | ~inside;
        }
    }
}

// The same for whole filters, by a list of what each lane reads in a channel: for rows of few pixels.
static void pack_listed(__local E* d, int ld, __global const S* X, Lanes* L, int k0, int kc, const Dims* D) {
    int taps = D->KH * D->KW;
    list_lanes(L, D);
    X += k0 / taps * D->xc;
    for (int c = 0; c < kc / taps; c++, X += D->xc)
        for (int t = 0; t < taps; t++, d += ld) {
            const MASK* at = L->at + t * VW;
            for (int l = 0; l < VW; l++) {
                MASK i = at[l];
                E value = LOAD(X, i < 0 ? 0 : i);
                d[l] = i < 0 ? 0 : value;
            }
        }
}

// The same where all lanes of a tap are neighbours in x; 0 if a vector would reach past the ends of x.
INLINE int pack_joined(__local E* d, int ld, __global const S* X, Lanes* L, int k0, int kc, const Dims* D) {
    int KH = D->KH, KW = D->KW, taps = KH * KW, channels = kc / taps;
    long across = D->dx, down = D->dy * D->xh, deep = D->xc, first = L->from[0] + k0 / taps * deep;
    if (first < 0 || first + (channels - 1) * deep + (KH - 1) * down + (KW - 1) * across + VW > D->span) return 0;
    list_lanes(L, D);
    X += first;
    for (int u = 0; u < KH; u++)
        for (int v = 0; v < KW; v++, d += ld) {
            MASKS keep = *(const MASKS*)(L->at + (u * KW + v) * VW) >= (MASKS)(0);
            __global const S* p = X + u * down + v * across;
            __local E* e = d;
            for (int c = 0; c < channels; c++, p += deep, e += taps * ld) LOC(e) = MASKED(GET(p), keep);
        }
    return 1;
}

// VW elements from p on, or every other one.
#define EVERY1(p) GET(p)
#define EVERY2(p) ((T)(GET(p).even, GET((p) + VW).even))
// For every channel, the taps of one filter row.
#define CHANNELS(VALUE)                                                                           \
    for (int c = 0; c < channels; c++, e += taps * ld, p0 += D->xc, p1 += D->xc)                  \
        for (int t = 0; t < KW; t++) LOC(e + t * ld) = VALUE;
#define PACK(EVERY)                                                                               \
    if (ok0 && ok1) {                                                                             \
        CHANNELS(MASKED(EVERY(p0 + t * dx), L->keep[0][t]) + MASKED(EVERY(p1 + t * dx), L->keep[1][t])) \
    } else if (ok0) { CHANNELS(MASKED(EVERY(p0 + t * dx), L->keep[0][t])) }                       \
    else if (ok1) { CHANNELS(MASKED(EVERY(p1 + t * dx), L->keep[1][t])) }                         \
    else { CHANNELS((T)(0)) }

// The same by vectors, where the block is made of whole filters and no vector reaches past the ends of x.
INLINE void pack_lanes(__local E* d, int ld, __global const S* X, Lanes* L, int k0, int kc, const Dims* D) {
    int KW = D->KW, KH = D->KH, H = D->H, dx = D->dx, taps = KH * KW, channels = kc / taps;
    int whole = k0 % taps == 0 && kc % taps == 0, slow = L->scalar || !whole;
    int listable = whole && taps <= TABLE && D->span < INT_MAX;
    if (L->joined && listable && pack_joined(d, ld, X, L, k0, kc, D)) return;
    for (int u = 0; u < KH && !slow; u++) {
        int row = u * (int)D->dy, ok0 = (uint)(L->row[0] + row) < H, ok1 = (uint)(L->row[1] + row) < H;
        long at = k0 / taps * D->xc + row * D->xh, f0 = L->from[0] + at, f1 = L->from[1] + at;
        long limit = D->span - (channels - 1) * D->xc - (KW - 1) * dx - VW * D->sx;
        slow = (ok0 && (f0 < 0 || f0 > limit)) || (ok1 && (f1 < 0 || f1 > limit));
        __global const S* p0 = X + f0;
        __global const S* p1 = X + f1;
        __local E* e = d + u * KW * ld;
        if (slow) break;
        if (D->sx == 1) { PACK(EVERY1) } else { PACK(EVERY2) }
    }
    if (slow && listable) pack_listed(d, ld, X, L, k0, kc, D);
    else if (slow) pack_slowly(d, ld, X, L, k0, kc, D);
}
