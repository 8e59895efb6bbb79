// winograd_cpu.cl: 3x3 convolutions of stride 1 on CPU devices by F(4x4, 3x3). Follows panel_cpu.cl and winograd.cl.
//
// Each of the 36 points of . is a matrix product over channels, or over tiles. Vectors hold channels: a band of the
// image, one row of tiles high, is transposed so that channels lie next to each other, and only then transformed. So
// images of any width, padding and ragged edges cost the same, and products read V and Z where transforms left them.

#define ALONG 16                        // tiles of a band at most
#define RARELY static
#define PITCH (4 * ALONG + 2 + 7)       // pixels of a row of a band; a vector may reach 7 beyond it
#define LDV (CB + 16)                   // elements between tiles of V
#define LDZ (OB + 16)
// Elements between points: an odd number of lines, so that no sets collide
#define APART(rows, ld) ((rows) * (ld) + 16)

// Sizes; K = 36 C counts products, Q tiles, Ty x Tx of an image; strides in elements; `each` tiles per work-item.
typedef struct {
    long M, Q, K, C, H, W, Ho, Wo, py, px, Ty, Tx, xn, xc, xh, yn, yc, yh, yw, xspan, yspan, each, act, has_bias;
} Tiles;

// Tiles q .. q + count - 1 lie side by side, at row y and column x of tiles of image n.
typedef struct { long n; int y, x, count; } Run;

INLINE Run find_run(long q, long end, const Tiles* D) {
    Run r;
    long row = q / D->Tx;
    r.n = row / D->Ty;
    r.y = row % D->Ty;
    r.x = q - row * D->Tx;
    r.count = min(min((long)ALONG, D->Tx - r.x), end - q);
    return r;
}

// Peaks: for each pixel of a band the bits of its largest |value| over the channels, -1 outside of the image.
typedef int8 __attribute__((aligned(4))) Bits8;
#define BITS(p) (*(__local Bits8*)(p))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define PEAKS (6 * PITCH)
#define LANES (int8)(0, 1, 2, 3, 4, 5, 6, 7)

// Before the first channel of a band: 0 for the pixels of it that lie in an image of H x W.
INLINE void clear_peaks(__local int* peaks, int y, int x, int high, int wide, int H, int W) {
    for (int r = 0; r < high; r++, peaks += PITCH) {
        int first = (uint)(y + r) < (uint)H ? max(0, -x) : wide, end = min(wide, W - x);
        for (int j = 0; j < wide; j += 8) BITS(peaks + j) = LANES < first - j || LANES >= end - j;
    }
}

// transpose_block, and peaks that grow by the block; lanes where `beyond` is -1 have none.
INLINE void transpose_peaks(__local E* d, __global const S* s, long sc, __local int* peaks, int8 beyond) {
    V8 v;
    int8 most = BITS(peaks), bits;
#define FROM_IMAGE(c) (v = GET8(s + c * sc), bits = as_int8(v) & INT_MAX | beyond, most = LARGER(most, bits), v)
#define TO_BAND(k, v) LOC8(d + k * VW) = v
    TRANSPOSE8(FROM_IMAGE, TO_BAND)
    BITS(peaks) = most;
}

// Rows y .. y + high - 1 and columns x .. x + wide - 1 of VW channels of an image at s, transposed: pixels outside of
// it, and channels from `left` on, are 0. `room` is how many elements from s on may be read. Peaks grow by these.
INLINE void load_band(__local E* band, __local int* peaks, __global const S* s, int y, int x, int high, int wide,
                      int left, int H, int W, long sc, long sh, long room) {
    int j0 = min(max(0, -x), wide), j1 = max(j0, min(wide, W - x));
    // The rows of a channel follow each other in memory, so that the hardware fetches them ahead.
    for (int c = 0; c < VW; c += 8) {
        int channels = max(0, min(8, left - c));
        for (int r = max(0, -y); r < min(high, H - y); r++) {
            long first = (y + r) * sh + x;
            __local E* to = band + r * PITCH * VW + c;
            __local int* most = peaks + r * PITCH;
            int j = j0;
            if (channels == 8)
                for (; j < j1 && first + j + (c + 7) * sc + 8 <= room; j += 8) {
                    __global const S* from = s + first + j + c * sc;
                    if (j + 8 <= j1) transpose_peaks(to + j * VW, from, sc, most + j, 0);
                    else transpose_peaks(to + j * VW, from, sc, most + j, LANES >= j1 - j);
                }
            for (; j < j1; j++)
                for (int k = 0; k < 8; k++) {
                    E v = k < channels ? LOAD(s, first + j + (c + k) * sc) : (E)0;
                    to[j * VW + k] = v;
                    most[j] = LARGER(most[j], PEAK(v));
                }
        }
    }
    for (int r = 0; r < high; r++, band += PITCH * VW) {
        int inside = (uint)(y + r) < (uint)H;
        for (int j = 0; j < (inside ? j0 : wide); j++) LOC(band + j * VW) = (T)(0);
        for (int j = inside ? j1 : wide; j < wide; j++) LOC(band + j * VW) = (T)(0);
    }
}

#define COLUMN(k, value) r[k][x] = value
#define POINT(k, value) LOC(to + (6 * y + k) * apart) = value

// 36 vectors at `to`, `apart`: B^T d B of the patch at s, its rows PITCH pixels apart.
INLINE void transform_patch(__local E* to, long apart, __local const E* s) {
    T r[6][6];
#define D(k) LOC(s + (k * PITCH + x) * VW)
#pragma unroll
    for (int x = 0; x < 6; x++) PATCH_AXIS(COLUMN, D(0), D(1), D(2), D(3), D(4), D(5))
#undef D
#pragma unroll
    for (int y = 0; y < 6; y++) PATCH_AXIS(POINT, r[y][0], r[y][1], r[y][2], r[y][3], r[y][4], r[y][5])
}

// The same: A g A^T of the tile at s.
INLINE void transform_tile(__local E* to, long apart, __local const E* s) {
    T r[6][4];
#define D(k) LOC(s + (k * PITCH + x) * VW)
#pragma unroll
    for (int x = 0; x < 4; x++) TILE_AXIS(COLUMN, D(0), D(1), D(2), D(3))
#undef D
#pragma unroll
    for (int y = 0; y < 6; y++) TILE_AXIS(POINT, r[y][0], r[y][1], r[y][2], r[y][3])
}

// Saved peaks: of a tile's patch over all channels, PATCH numbers: 6 rows of 8, of which 6 or fewer count.
#define PATCH 48
INLINE void save_peaks(__local int* saved, __local const int* peaks, int rows) {
    for (int i = 0; i < rows; i++, saved += 8, peaks += PITCH) BITS(saved) = LARGER(BITS(saved), BITS(peaks));
}

// Bits of the largest of rows x columns pixels where one of these in the image is less by more than SPREAD bits,
// else -1.
INLINE int contrast(__local const int* saved, int rows, int columns) {
    int8 most = -1, least = LARGEST;
    for (int i = 0; i < rows; i++) {
        int8 v = LANES < columns ? BITS(saved + 8 * i) : -1;
        most = LARGER(most, v);
        v = v < 0 ? LARGEST : v;
        least = min(least, v);
    }
    int4 m = LARGER(most.lo, most.hi), n = min(least.lo, least.hi);
    int2 p = LARGER(m.lo, m.hi), q = min(n.lo, n.hi);
    int large = LARGER(p.x, p.y), small = min(q.x, q.y);
    return UNEQUAL(large, small) ? large : -1;
}

// Bits of the limit of tiles of a whole tensor, which is found where *limit is less than 0.
RARELY int find_limit(int* limit, __global const S* s, long N, long C, long H, long W, long sn, long sc, long sh,
                      long sw) {
    if (*limit < 0) {
        int counts[256], e = 256, above = 0;
        for (int i = 0; i < 256; i++) counts[i] = 0;
        for (int i = 0; i < SAMPLES; i++) counts[sample(s, i, N, C, H, W, sn, sc, sh, sw) >> 23]++;
        while (above <= RARE(counts[0])) above += counts[--e];
        *limit = LIMIT(e);
    }
    return *limit;
}

// V of tiles q0 .. q1 - 1 and channels c0 .. c1 - 1, and Z likewise: T tiles x ld elements for each point. Saved peaks
// grow by these channels.
#define TRANSFORM(name, function, extra, OFF_Y, OFF_X) \
    INLINE void name(__local E* V, int ld, __local E* band, __local int* peaks, __local int* saved, \
                     __global const S* X, long q0, long q1, int c0, int c1, int H, int W, long sn, long sc, \
                     long sh, long span, const Tiles* D) { \
        for (long q = q0; q < q1;) { \
            Run run = find_run(q, q1, D); \
            int y = 4 * run.y - OFF_Y, x = 4 * run.x - OFF_X, high = 4 + extra, wide = 4 * run.count + extra; \
            clear_peaks(peaks, y, x, high, wide, H, W); \
            for (int c = c0; c < c1; c += VW) { \
                long at = run.n * sn + c * sc; \
                load_band(band, peaks, X + at, y, x, high, wide, c1 - c, H, W, sc, sh, span - at); \
                for (int t = 0; t < run.count; t++) \
                    function(V + (q - q0 + t) * ld + (c - c0), APART(TB, ld), band + 4 * t * VW); \
            } \
            for (int t = 0; t < run.count; t++) save_peaks(saved + (q - q0 + t) * PATCH, peaks + 4 * t, high); \
            q += run.count; \
        } \
    }
TRANSFORM(patches, transform_patch, 2, (int)D->py, (int)D->px)
TRANSFORM(tiles, transform_tile, 0, 0, 0)

// The 6x6 pixels at s, at row y and column x of an image of H x W: 0 outside of it.
INLINE void gather_patch(E* d, __global const S* s, int y, int x, int H, int W, long sh) {
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++)
            d[6 * i + j] = (uint)(y + i) < (uint)H && (uint)(x + j) < (uint)W ? LOAD(s, (y + i) * sh + x + j) : (E)0;
}

// Rows of sums to `to` with ld elements per row, added to those there if `old`.
#undef AT
#undef NEXT
#undef B_AT
#define LEAVE(i) LOC(to + i * ld) = c##i##0; LOC(to + i * ld + VW) = c##i##1;
#define GROW(i) LOC(to + i * ld) += c##i##0; LOC(to + i * ld + VW) += c##i##1;
#define PRODUCT(name, B, ROWS)                                                                                      \
    INLINE void name(__local E* to, int ld, __local const E* ap, int lda, B const E* bp, int ldb, int kc, int old) { \
        SUMS(ROWS)                                                                                                  \
        if (old) { ROWS(GROW) } else { ROWS(LEAVE) }                                                                \
    }
#if MR == 12
#define PRODUCTS(name, B)                                                                                           \
    PRODUCT(name##4, B, ROWS4) PRODUCT(name##8, B, ROWS8) PRODUCT(name##12, B, ROWS12)                               \
    INLINE void name(int rows, __local E* to, int ld, __local const E* ap, int lda, B const E* bp, int ldb, int kc, \
                     int old) { \
        if (rows == 4) name##4(to, ld, ap, lda, bp, ldb, kc, old);                                                  \
        else if (rows == 8) name##8(to, ld, ap, lda, bp, ldb, kc, old);                                             \
        else name##12(to, ld, ap, lda, bp, ldb, kc, old);                                                           \
    }
#else
#define PRODUCTS(name, B)                                                                                           \
    PRODUCT(name##4, B, ROWS4) PRODUCT(name##6, B, ROWS6)                                                            \
    INLINE void name(int rows, __local E* to, int ld, __local const E* ap, int lda, B const E* bp, int ldb, int kc, \
                     int old) { \
        if (rows == 4) name##4(to, ld, ap, lda, bp, ldb, kc, old);                                                  \
        else name##6(to, ld, ap, lda, bp, ldb, kc, old);                                                            \
    }
#endif
#define AT(i) ap[i * lda + k]
#define NEXT
#define B_AT GLOB_CONST
PRODUCTS(over_channels, __global)
#undef AT
#undef NEXT
#undef B_AT
#define AT(i) ap[i]
#define NEXT ap += lda;
#define B_AT LOC
PRODUCTS(over_tiles, __local)
