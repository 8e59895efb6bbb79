// pack.cl: operands copied into the layout that the matrix-unit kernels want: along k, rows padded to `pitch` elements.
//
//   to[part][z][row][k] = part of X[z, row, k]        z: batch index or phase
//
// PARTS 1 copies (ROUND: to TF32), PARTS 3 splits a float x into high + low, both TF32, low = 0 where x is not finite.
// The source is any strided array. MAP_ROWS and MAP_K make rows or k the pixels of padded images (convolution): pixel p
// is (image, h, w) = (p / (height * width), ...) at source position (h * sh + a * ry - oy, w * sw + b * rx - ox), and
// zero outside the image, z = (a, b) in rows of `views`: the phases of a stride, each a matrix of its own, or the taps
// of a filter, whose `slots` lie behind one another in every row. A work-item writes 16 bytes at a time. Where the
// source does not run along k, tiles pass through local memory. VEC: the source, too, can be read in 16 bytes.
// Launch: local (256, 1), global (tiles along k * tiles along rows * 256, z).
#ifdef FLOAT
#define EACH 4
#else
#define EACH 8
#endif
#define TILE_K (16 * EACH)
#ifdef ALONG_K
#define TILE_R 64
#else
#define TILE_R 32
#endif

typedef struct {
    long row_step, k_step, z0_step, z1_step;   // of the source; for pixels row_step or k_step is that of w
    long image_step, h_step, part_step, to0_step, to1_step;
    int rows, k, inner, row_pitch, slots;      // elements from row to row, and of a row that one z writes
    int width, height, W, H, images;           // padded row and image; extents of the source
    int sh, sw, views, ry, rx, oy, ox, tiles_k;
} Pack;

#ifdef FLOAT
#define WORD float
#define EXPONENT 0x7f800000u
static inline float high_part(float v) {
    uint x = as_uint(v), h = (x + 0x1000u) & 0xffffe000u;
    if ((h & EXPONENT) == EXPONENT) h = (x & 0xffffe000u) | ((x & 0x7fffffffu) > EXPONENT ? 0x400000u : 0u);
    return as_float(h);
}
static inline float low_part(float v, float h) {
    return (as_uint(h) & EXPONENT) == EXPONENT ? 0.0f : as_float((as_uint(v - h) + 0x1000u) & 0xffffe000u);
}
#else
#define WORD ushort
#endif

#define NOWHERE (-0x7fffffffffffffffL)
// offset of pixel p in the source, NOWHERE where it is padding
static inline long pixel_at(int p, int phase, long w_step, const Pack* P) {
    const int size = P->width * P->height, image = p / size, rest = p - image * size;
    const int h = rest / P->width * P->sh + phase / P->views * P->ry - P->oy;
    const int w = rest % P->width * P->sw + phase % P->views * P->rx - P->ox;
    const bool inside = image < P->images && (uint)h < (uint)P->H && (uint)w < (uint)P->W;
    return inside ? image * P->image_step + h * P->h_step + w * w_step : NOWHERE;
}
#ifdef MAP_ROWS
#define ROW_OFFSET(r) pixel_at(r, phase, P.row_step, &P)
#else
#define ROW_OFFSET(r) ((r) * P.row_step)
#endif
#ifdef MAP_K
#define K_OFFSET(k) pixel_at(k, phase, P.k_step, &P)
#else
#define K_OFFSET(k) ((k) * P.k_step)
#endif

// writes EACH elements in the parts that are wanted
static inline void put(__global WORD* to, const WORD* v, long part_step) {
#ifdef FLOAT
    float4 high, low;
#if PARTS == 3
    high.x = high_part(v[0]); low.x = low_part(v[0], high.x);
    high.y = high_part(v[1]); low.y = low_part(v[1], high.y);
    high.z = high_part(v[2]); low.z = low_part(v[2], high.z);
    high.w = high_part(v[3]); low.w = low_part(v[3], high.w);
    *(__global float4*)(to + part_step) = low;
#elif defined(ROUND)
    high.x = high_part(v[0]); high.y = high_part(v[1]); high.z = high_part(v[2]); high.w = high_part(v[3]);
#else
    high.x = v[0]; high.y = v[1]; high.z = v[2]; high.w = v[3];
#endif
    *(__global float4*)to = high;
#else
    uint4 eight;
    eight.x = v[0] | (uint)v[1] << 16;
    eight.y = v[2] | (uint)v[3] << 16;
    eight.z = v[4] | (uint)v[5] << 16;
    eight.w = v[6] | (uint)v[7] << 16;
    *(__global uint4*)to = eight;
#endif
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void pack(
    __global WORD* to, __global const WORD* X, long oX, const Pack P) {
    const int tile = get_group_id(0), z = get_group_id(1), item = get_local_id(0);
    const int k0 = tile % P.tiles_k * TILE_K, r0 = tile / P.tiles_k * TILE_R, k_mine = k0 + item % 16 * EACH;
    to += z / P.inner * P.to0_step + z % P.inner * P.to1_step;
#if defined(MAP_ROWS) || defined(MAP_K)
    const int phase = z % P.inner;
    X += oX + z / P.inner * P.z0_step;
#else
    X += oX + z / P.inner * P.z0_step + z % P.inner * P.z1_step;
#endif
    WORD v[EACH];
#ifdef ALONG_K
    long k_at[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) k_at[e] = k_mine + e < P.k ? K_OFFSET(k_mine + e) : NOWHERE;
#pragma unroll
    for (int j = 0; j < TILE_R; j += 16) {
        const int r = r0 + item / 16 + j;
        if (r >= P.rows || k_mine >= P.slots) continue;
        const long r_at = ROW_OFFSET(r);
#ifdef VEC
        const float4 four = *(__global const float4*)(X + (r_at + k_at[0]));
        v[0] = four.x; v[1] = four.y; v[2] = four.z; v[3] = four.w;
#else
#pragma unroll
        for (int e = 0; e < EACH; e++) v[e] = k_at[e] != NOWHERE ? X[r_at + k_at[e]] : 0;
#endif
        put(to + ((long)r * P.row_pitch + k_mine), v, P.part_step);
    }
#else
    __local WORD transposed[TILE_R][TILE_K + 1];
    const int mine = r0 + item % 32;
    const long r_at = mine < P.rows ? ROW_OFFSET(mine) : NOWHERE;
#pragma unroll
    for (int i = 0; i < TILE_K; i += 8) {
        const int k = k0 + item / 32 + i;
        transposed[item % 32][item / 32 + i] = k < P.k && r_at != NOWHERE ? X[r_at + K_OFFSET(k)] : 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int j = 0; j < TILE_R; j += 16) {
        const int r = item / 16 + j;
#pragma unroll
        for (int e = 0; e < EACH; e++) v[e] = transposed[r][item % 16 * EACH + e];
        if (r0 + r < P.rows && k_mine < P.slots) put(to + ((long)(r0 + r) * P.row_pitch + k_mine), v, P.part_step);
    }
#endif
}

#ifdef WEIGHTS
// Weights of a convolution pass through local memory, so that both sides run along memory: their taps are together in
// the filters, their channels here. TAPS and CHANNELS are those of a group.
#define CHANNELS 64

// to[part][g][row][tap * slots + c] = Wt[g, row, c, tap_at[tap]], zero for c >= real.
// Launch: local (256), global (blocks of CHANNELS slots * blocks of TAPS taps * 256, rows, groups).
__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void pack_weights(
    __global WORD* to, __global const WORD* Wt, __global const int* tap_at, long oWt, long g_step, long row_step,
    long c_step, int taps, int slots, int real, long part_step) {
    __local WORD transposed[TAPS][CHANNELS + 1];
    const int item = get_local_id(0), row = get_global_id(1), g = get_global_id(2), blocks = (taps + TAPS - 1) / TAPS;
    const int t0 = get_group_id(0) % blocks * TAPS, c0 = get_group_id(0) / blocks * CHANNELS;
    Wt += oWt + g * g_step + row * row_step;
    to += (g * (long)get_global_size(1) + row) * taps * slots;
    for (int e = item; e < TAPS * CHANNELS; e += 256) {
        const int c = c0 + e / TAPS, tap = t0 + e % TAPS;
        transposed[e % TAPS][e / TAPS] = c < real && tap < taps ? Wt[c * c_step + tap_at[tap]] : 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = item; e < TAPS * CHANNELS; e += 256) {
        const int c = c0 + e % CHANNELS, tap = t0 + e / CHANNELS, i = tap * slots + c;
        if (c >= slots || tap >= taps) continue;
        const WORD v = transposed[e / CHANNELS][e % CHANNELS];
#if PARTS == 3
        const float h = high_part(v);
        to[i] = h;
        to[i + part_step] = low_part(v, h);
#elif defined(ROUND)
        to[i] = high_part(v);
#else
        to[i] = v;
#endif
    }
}

// dW[g, oc, c, tap] = sum of parts[g, tap * slots + c, oc], whose pieces lie `step` behind one another. dW is
// contiguous.
// Launch: local (256), global (blocks of TAPS elements of a filter * 256, blocks of 32 filters, groups).
__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void sum_weights(
    __global const float* part, __global S* dW, long odW, long step, int parts, int N, int slots, int real,
    int window) {
    __local float transposed[TAPS][33];
    const int item = get_local_id(0), f0 = get_group_id(0) * TAPS, oc0 = get_group_id(1) * 32, g = get_group_id(2);
    const int all = real * window;
#pragma unroll
    for (int i = 0; i < TAPS / 8; i++) {
        const int f = f0 + item / 32 + i * 8, oc = oc0 + item % 32, row = f % window * slots + f / window;
        __global const float* from = part + (((long)g * window * slots + row) * N + oc);
        float sum = 0.0f;
        if (f < all && oc < N)
            for (int p = 0; p < parts; p++) sum += from[p * step];
        transposed[f - f0][oc - oc0] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    dW += odW + ((long)g * N + oc0) * all + f0;
    for (int e = item; e < TAPS * 32; e += 256)
        if (f0 + e % TAPS < all && oc0 + e / TAPS < N)
            STORE(dW, (long)(e / TAPS) * all + e % TAPS, transposed[e % TAPS][e / TAPS]);
}
#endif
