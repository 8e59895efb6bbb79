// winograd_gpu.cl: the transforms of F(4x4, 3x3) on GPUs, each in a launch of its own. Follows winograd.cl.
//
//   forward   U (36, O, C) by winograd_filters, V (36, C, Q) by winograd_patches; Y by winograd_outputs from U V (36, O, Q)
//   weights   Z (36, O, Q) by winograd_tiles, V; dW by winograd_taps from Z V^T (36, O, C)
//
// The 36 products between them are one batched matrix product. Q counts 4x4 tiles of outputs, row by row of an image, image
// by image; a launch does those from `first` on, `pitch` to a row, of which the ones behind `count` are zero. Work-items are
// neighbours along the rows of what is large, so all accesses to it are coalesced.
typedef struct { long n, c, h, w; int H, W, py, px, down, across; } Image;    // steps; size, padding, tiles of an image

// Tile q: the first pixel that it reads or writes (its row is never inside for tiles behind the last), and where that lies.
typedef struct { long at; int row, column; } Tile;
static inline Tile tile(int q, int first, int count, const Image* form) {
    Tile t;
    const int line = (first + q) / form->across, n = line / form->down;
    t.row = q < count ? (line - n * form->down) * 4 - form->py : INT_MIN / 2;
    t.column = (first + q - line * form->across) * 4 - form->px;
    t.at = q < count ? n * form->n + t.row * form->h + t.column * form->w : 0;
    return t;
}

#ifdef NARROW
#define LOAD4(p) JOIN(JOIN(LOAD_, NARROW), 4A)(p)
#define STORE4(p, v) JOIN(JOIN(STORE_, NARROW), 4A)(v, p)
#else
#define LOAD4(p) (*(__global const float4*)(p))
#define STORE4(p, v) (*(__global float4*)(p) = (v))
#endif
#define COLUMN(k, value) r[k][x] = value
#define ROW(k, value) r[y][k] = value
#define POINT(k, value) to[(6 * k + x) * apart] = value

// Launch of both transforms: (pitch rounded up to whole groups, channels).
#define TRANSFORMED() \
    const int q = get_global_id(0); \
    if (q >= pitch) return; \
    const Tile t = tile(q, first, count, &form); \
    const long apart = get_global_size(1) * (long)pitch; \
    __global E* to = V + get_global_id(1) * (long)pitch + q; \
    X += ox + get_global_id(1) * form.c + t.at;
// Row y of a tile: WIDE pixels, four of which, from the PX-th on, are one aligned vector where IN_VEC is 4.
#define PIXELS(WIDE, PX) \
    E d[WIDE]; \
    const bool inside = (uint)(t.row + y) < (uint)form.H; \
    __global const S* from = X + y * form.h; \
    _Pragma("unroll") for (int x = 0; x < WIDE; x++) \
        if (IN_VEC == 1 || x < PX || x >= PX + 4) \
            d[x] = inside && (uint)(t.column + x) < (uint)form.W ? LOAD(from, x * form.w) : (E)0; \
    if (IN_VEC == 4) { \
        const float4 four = inside && t.column + PX < form.W ? LOAD4(from + PX) : (float4)(0); \
        d[PX] = four.x; d[PX + 1] = four.y; d[PX + 2] = four.z; d[PX + 3] = four.w; \
    }

__kernel void winograd_patches(__global E* V, __global const S* X, long ox, int first, int count, int pitch, const Image form) {
    TRANSFORMED()
    E r[6][6];
#pragma unroll
    for (int y = 0; y < 6; y++) {
        PIXELS(6, PADDING)
        PATCH_AXIS(ROW, d[0], d[1], d[2], d[3], d[4], d[5])
    }
#pragma unroll
    for (int x = 0; x < 6; x++) PATCH_AXIS(POINT, r[0][x], r[1][x], r[2][x], r[3][x], r[4][x], r[5][x])
}

// The same of the output's gradient, which has no padding.
__kernel void winograd_tiles(__global E* V, __global const S* X, long ox, int first, int count, int pitch, const Image form) {
    TRANSFORMED()
    E r[4][6];
#pragma unroll
    for (int y = 0; y < 4; y++) {
        PIXELS(4, 0)
        TILE_AXIS(ROW, d[0], d[1], d[2], d[3])
    }
#pragma unroll
    for (int x = 0; x < 6; x++) TILE_AXIS(POINT, r[0][x], r[1][x], r[2][x], r[3][x])
}

#ifdef EPILOGUE
#define FINISH(v) ACT((v) + extra)
#else
#define FINISH(v) (v)
#endif

// OUT_VEC 4: rows of Y lie at multiples of four elements. Launch: (count rounded up to whole groups, O).
__kernel void winograd_outputs(__global S* Y, __global const E* P, __global const S* bias, long oy, long ob, int first,
                               int count, int pitch, const Image form) {
    const int q = get_global_id(0), o = get_global_id(1);
    if (q >= count) return;
    const Tile t = tile(q, first, count, &form);
    const long apart = get_global_size(1) * (long)pitch;
    P += o * (long)pitch + q;
    Y += oy + o * form.c + t.at;
#ifdef EPILOGUE
    const E extra = HAS_BIAS ? LOAD(bias, ob + o) : (E)0;
#endif
    E r[4][6];
#define SUM(k) P[(6 * k + x) * apart]
#pragma unroll
    for (int x = 0; x < 6; x++) SUMS_AXIS(COLUMN, SUM(0), SUM(1), SUM(2), SUM(3), SUM(4), SUM(5))
#pragma unroll
    for (int y = 0; y < 4; y++) {
        E out[4];
#define OUT(k, value) out[k] = FINISH(value)
        SUMS_AXIS(OUT, r[y][0], r[y][1], r[y][2], r[y][3], r[y][4], r[y][5])
        if (t.row + y >= form.H) continue;
        __global S* to = Y + y * form.h;
        if (OUT_VEC == 4 && t.column + 4 <= form.W) STORE4(to, (float4)(out[0], out[1], out[2], out[3]));
        else {
#pragma unroll
            for (int x = 0; x < 4; x++)
                if (t.column + x < form.W) STORE(to, x * form.w, out[x]);
        }
    }
}

// U of `count` filters W, `per` to a row and `rows` to a group. TURNED: of those that the gradient of the input meets, W
// (groups, per, rows, 3, 3) read from its last tap to the first. Launch: count rounded up to whole groups.
__kernel void winograd_filters(__global E* U, __global const S* W, long ow, int count, int rows, int per) {
    const int i = get_global_id(0);
    if (i >= count) return;
#if TURNED
    const int row = i / per, k = i - row * per, g = row / rows;
    W += ow + (((long)g * per + k) * rows + row - g * rows) * 9;
#else
    W += ow + i * 9L;
#endif
    E r[6][3];
#define TAP(k) LOAD(W, TURNED ? 8 - 3 * k - x : 3 * k + x)
#pragma unroll
    for (int x = 0; x < 3; x++) TAPS_AXIS(COLUMN, TAP(0), TAP(1), TAP(2))
#define FILTER(k, value) U[(6 * y + k) * (long)count + i] = value
#pragma unroll
    for (int y = 0; y < 6; y++) TAPS_AXIS(FILTER, r[y][0], r[y][1], r[y][2])
}

// dW of `count` filters from their 36 sums P. Launch: count rounded up to whole groups.
__kernel void winograd_taps(__global S* W, __global const E* P, long ow, int count) {
    const int i = get_global_id(0);
    if (i >= count) return;
    W += ow + i * 9L;
    E r[3][6];
#undef SUM
#define SUM(k) P[(6 * k + x) * (long)count + i]
#pragma unroll
    for (int x = 0; x < 6; x++) TAPS_GRAD_AXIS(COLUMN, SUM(0), SUM(1), SUM(2), SUM(3), SUM(4), SUM(5))
#define OUT_TAP(k, value) STORE(W, 3 * y + k, value)
#pragma unroll
    for (int y = 0; y < 3; y++) TAPS_GRAD_AXIS(OUT_TAP, r[y][0], r[y][1], r[y][2], r[y][3], r[y][4], r[y][5])
}
