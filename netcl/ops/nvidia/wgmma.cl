// wgmma.cl: C = act(alpha * A B + bias) or C += alpha * A B on NVIDIA's warpgroup matrix units (sm_90).
//
// A group has 384 work-items: warpgroup 0 copies boxes of A and B to shared memory (bulk copies, ST stages deep), 1 and
// 2 multiply. Each of these holds MW blocks of 64 rows by NW columns, side by side as WM x WN = 2 x 1 or 1 x 2. A step
// of the k loop ("slice") is 128 bytes of k: 32 floats or 64 16-bit elements. Groups walk the tiles until none is left,
// so copies for the next tile overlap the stores of this one.
//
//   16-bit: both operands come from shared memory in either orientation (A_ALONG_M, B_ALONG_N), sums stay in the unit.
//   float:  (MW 1) A comes through registers, which round it to TF32 (PARTS 1) or split it into two TF32 parts, high
//           and low (PARTS 3), while the slice before is multiplied; pack.cl packed B along k, its low part BLO
//           elements behind the high one. The unit sums three products (low high, high low, high high) of one slice,
//           which then go to float sums, because it truncates when it accumulates. RAW_B: B is raw in either
//           orientation, and split in shared memory one slice ahead, which saves small products the packing. `exact`
//           computes results that are no number again, since infinity times a zero low part is no number.
//
// Tables (convolution): slice t of A lies at table[t] + (0, row) (TABLE_K), its block i of 64 rows at table[i] + (0, k)
// (TABLE_M). Output: C[row * row_step + col * col_step] (SWAP 0: col_step 1; SWAP 1: neighbours in a column are rows),
// or for PIXELS rows are pixels of a padded image. PARTIAL: plain sums of one part of k, for a reduction afterwards.
// Launch: any number of groups of 384. Layouts of shared memory and registers: PTX ISA 8.3, section 9.7.15.
#ifndef NAME
#define NAME gemm_wgmma
#endif
#ifndef MW
#define MW 1
#endif
#ifndef WM
#define WM 2
#endif
#define WN (2 / WM)
#define BM (64 * MW * WM)
#define BN (NW * WN)
#define SUMS (MW * NW / 2)
#define B_PARTS (PARTS == 3 ? 2 : 1)
#define STAGE (128 * (BM + B_PARTS * BN))
#ifdef RAW_B
#define LOADED (128 * (BM + BN))
#else
#define LOADED STAGE
#endif
#ifdef TF32
#define BK 32
#else
#define BK 64
#endif
#ifndef RASTER
#define RASTER 8    // rows of tiles that neighbouring groups share, for the cache
#endif
typedef struct {
    uint amap[32], bmap[32];            // tensor maps without addresses
    int M, N, slices, split;            // sizes, number of slices, slices per part
    int tiles_m, tiles_n, tiles, inner; // tiles in all, inner batch length
    int parts, az, aw, bz;              // parts of k; 1 where A and B walk the batch axes, 0 where they repeat
    int bw, pitch, height, OH;          // pixels: padded row and image sizes
    int OW, unused[3];
    int adim[4], bdim[4];               // extents in boxes' coordinates, for `exact`
    long astep[3], bstep[3], blo;       // and steps in elements
    long row_step, col_step, c0, c1, part_step, image_step, h_step;
} Job;

// descriptor of a matrix in shared memory with 128-byte swizzle: start, leading and stride offsets
#define MATRIX(at, lead, stride) \
    ((((ulong)(at) >> 4) & 0x3fff) | (ulong)((lead) >> 4) << 16 | (ulong)((stride) >> 4) << 32 | (ulong)1 << 62)
#ifdef TF32
// The split of a register in three operations. Where x is not finite, or rounds up to infinity, its low part is not a
// number, and so is every product with it, which `exact` repairs.
static inline uint high_part(uint x) { return (x + 0x1000u) & 0xffffe000u; }
static inline uint low_part(uint x, uint h) { return as_uint(as_float(x) - as_float(h)); }
// x rounded to TF32 (the unit ignores the last bits); infinity, NaN and what would round up to infinity stay
static inline uint rounded(uint x) { return (x & 0x7fffffffu) < 0x7f7ff000u ? x + 0x1000u : x; }
#endif
// Where the i-th 64 rows of slice t of A lie. The innermost coordinate is a multiple of 16 bytes, the others are free.
#if defined(TABLE_K)
#define A_AT(t, i) \
    const int4 at_ = table[t]; \
    const int ax = at_.x, ay = at_.y + m0 + (i) * 64, az = at_.z, aw = z0 * J.aw
#elif defined(TABLE_M)
#define A_AT(t, i) \
    const int4 at_ = table[m0 / 64 + (i)]; \
    const int ax = at_.x, ay = at_.y + (t) * BK, az = at_.z, aw = z0 * J.aw
#elif defined(A_ALONG_M)
#define A_AT(t, i) const int ax = m0 + (i) * 64, ay = (t) * BK, az = z1 * J.az, aw = z0 * J.aw
#else
#define A_AT(t, i) const int ax = (t) * BK, ay = m0 + (i) * 64, az = z1 * J.az, aw = z0 * J.aw
#endif

#if PARTS == 3
// element (row, col) of the product over slices t0..t1 in plain float arithmetic
static inline float exact(__global const float* A, __global const float* B, __global const int4* table, const Job* job,
                          int row, int col, int t0, int t1, int z0, int z1) {
#define J (*job)
    const int m0 = row & ~63;
    float sum = 0.0f;
    for (int t = t0; t < t1; t++) {
        A_AT(t, 0);
        for (int e = 0; e < BK; e++) {
#ifdef A_ALONG_M
            const int x = ax + (row & 63), y = ay + e;
#else
            const int x = ax + e, y = ay + (row & 63);
#endif
            const int k = t * BK + e;
#ifdef B_ALONG_N
            const int bx = col, by = k;
#else
            const int bx = k, by = col;
#endif
            if (x < 0 || y < 0 || x >= J.adim[0] || y >= J.adim[1] || bx >= J.bdim[0] || by >= J.bdim[1]) continue;
            const float a = A[x + y * J.astep[0] + az * J.astep[1] + aw * J.astep[2]];
            __global const float* b = B + (bx + by * J.bstep[0] + z1 * J.bz * J.bstep[1] + z0 * J.bw * J.bstep[2]);
#ifdef RAW_B
            sum = fma(a, b[0], sum);
#else
            sum = fma(a, b[0] + b[J.blo], sum);
#endif
        }
    }
    return sum;
#undef J
}
#endif

#define DECODE(tile) \
    const int per_ = J.tiles_m * J.tiles_n, zs_ = (tile) / per_, rest_ = (tile) - zs_ * per_; \
    const int z_ = zs_ / J.parts, part = zs_ - z_ * J.parts, z0 = z_ / J.inner, z1 = z_ - z0 * J.inner; \
    const int first_ = rest_ / (RASTER * J.tiles_n) * RASTER, high_ = min(J.tiles_m - first_, RASTER); \
    const int r_ = rest_ - first_ * J.tiles_n, m0 = (first_ + r_ % high_) * BM, n0 = r_ / high_ * BN; \
    const int t0 = part * J.split, t1 = min(t0 + J.split, J.slices)

#ifdef TF32
// the fragments of one slice of A: 16 rows by 8 of k per warp, four times
#ifdef A_ALONG_M
#define FRAGMENT(r, kk, sa) do { \
    const int m_ = wm * 64 + warp * 16 + g, k_ = (kk) * 8 + t4, chunk_ = (m_ & 31) >> 2; \
    const uint at_ = (sa) + (m_ >> 5) * 4096 + k_ * 128 + (m_ & 3) * 4; \
    LOAD_WORD((r)[0], at_ + ((chunk_ ^ (k_ & 7)) << 4)); \
    LOAD_WORD((r)[1], at_ + (((chunk_ + 2) ^ (k_ & 7)) << 4)); \
    LOAD_WORD((r)[2], at_ + 512 + ((chunk_ ^ ((k_ + 4) & 7)) << 4)); \
    LOAD_WORD((r)[3], at_ + 512 + (((chunk_ + 2) ^ ((k_ + 4) & 7)) << 4)); \
} while (0)
#else
#define FRAGMENT(r, kk, sa) do { \
    const int m_ = wm * 64 + warp * 16 + (lane & 15), chunk_ = (kk) * 2 + (lane >> 4); \
    LOAD_MATRIX(r, (sa) + m_ * 128 + ((chunk_ ^ (m_ & 7)) << 4)); \
} while (0)
#endif
#if PARTS == 3
#define PREPARE(set, kk) \
    for (int q = 0; q < 4; q++) { \
        const uint h_ = high_part(a[set][kk][q]); \
        lo[set][kk][q] = low_part(a[set][kk][q], h_); \
        a[set][kk][q] = h_; \
    }
#define PRODUCTS(set, kk, sb) do { \
    const ulong bh_ = MATRIX((sb) + (kk) * 32, 16, 1024), bl_ = MATRIX((sb) + BN * 128 + (kk) * 32, 16, 1024); \
    WG_PRODUCT(acc, lo[set][kk], bh_, (kk) > 0); \
    WG_PRODUCT(acc, a[set][kk], bl_, 1); \
    WG_PRODUCT(acc, a[set][kk], bh_, 1); \
} while (0)
#define COLLECT() \
    _Pragma("unroll") for (int j = 0; j < SUMS; j++) { \
        PIN(acc[j]); \
        sum[j] += acc[j]; \
    }
#else
#define PREPARE(set, kk) for (int q = 0; q < 4; q++) a[set][kk][q] = rounded(a[set][kk][q]);
#define PRODUCTS(set, kk, sb) do { \
    const ulong b_ = MATRIX((sb) + (kk) * 32, 16, 1024); \
    WG_PRODUCT(acc, a[set][kk], b_, 1); \
} while (0)
#define COLLECT()
#endif
#define SPLIT_TO(at, v) do { \
    uint4 high_, low_; \
    high_.x = high_part((v).x); low_.x = low_part((v).x, high_.x); \
    high_.y = high_part((v).y); low_.y = low_part((v).y, high_.y); \
    high_.z = high_part((v).z); low_.z = low_part((v).z, high_.z); \
    high_.w = high_part((v).w); low_.w = low_part((v).w, high_.w); \
    STORE_FOUR(at, high_); \
    STORE_FOUR((at) + BN * 128, low_); \
} while (0)
#if !defined(RAW_B)
#define SPLIT_B(sb)
#elif defined(B_ALONG_N)
// A work-item transposes a block of 4 x 4. Those of eight neighbours lie on a diagonal, so that neither their rows nor
// their columns meet on a bank.
#define SPLIT_B(sb) do { \
    const int u_ = item - 128, kb_ = u_ & 7, nb_ = (u_ & 7) ^ (u_ >> 3 & 7), box_ = u_ >> 6; \
    uint4 r_[4]; \
    if (box_ < BN / 32) \
        _Pragma("unroll") for (int q = 0; q < 4; q++) \
            LOAD_FOUR(r_[q], (sb) + box_ * 4096 + (kb_ * 4 + q) * 128 + ((nb_ ^ ((kb_ * 4 + q) & 7)) << 4)); \
    MULTIPLIERS_MEET(); \
    if (box_ < BN / 32) { \
        uint4 c_[4]; \
        c_[0].x = r_[0].x; c_[0].y = r_[1].x; c_[0].z = r_[2].x; c_[0].w = r_[3].x; \
        c_[1].x = r_[0].y; c_[1].y = r_[1].y; c_[1].z = r_[2].y; c_[1].w = r_[3].y; \
        c_[2].x = r_[0].z; c_[2].y = r_[1].z; c_[2].z = r_[2].z; c_[2].w = r_[3].z; \
        c_[3].x = r_[0].w; c_[3].y = r_[1].w; c_[3].z = r_[2].w; c_[3].w = r_[3].w; \
        _Pragma("unroll") for (int q = 0; q < 4; q++) { \
            const int n_ = box_ * 32 + nb_ * 4 + q; \
            SPLIT_TO((sb) + n_ * 128 + ((kb_ ^ (n_ & 7)) << 4), c_[q]); \
        } \
    } \
    FENCE_ASYNC(); \
    MULTIPLIERS_MEET(); \
} while (0)
#else
#define SPLIT_B(sb) do { \
    _Pragma("unroll") for (int q = 0; q < BN / 32; q++) { \
        const uint at_ = (sb) + (item - 128 + q * 256) * 16; \
        uint4 r_; \
        LOAD_FOUR(r_, at_); \
        SPLIT_TO(at_, r_); \
    } \
    FENCE_ASYNC(); \
    MULTIPLIERS_MEET(); \
} while (0)
#endif
#define FRAGMENTS(set, sa) \
    _Pragma("unroll") for (int kk = 0; kk < 4; kk++) { \
        FRAGMENT(a[set][kk], kk, sa); \
        _Pragma("unroll") PREPARE(set, kk) \
    } \
    SPLIT_B((sa) + BM * 128);
// multiplies slice t, whose fragments are in set `now`, and meanwhile prepares the next one in set `then`
#define SLICE(now, then, t) do { \
    const uint sb_ = s0 + s * STAGE + BM * 128 + wn * NW * 128, done_at = empty + s * 8; \
    WG_FENCE(); \
    _Pragma("unroll") for (int kk = 0; kk < 4; kk++) PRODUCTS(now, kk, sb_); \
    WG_COMMIT(); \
    if (++s == ST) { s = 0; phase ^= 1; } \
    if ((t) + 1 < t1) { \
        BAR_WAIT(full + s * 8, phase); \
        FRAGMENTS(then, s0 + s * STAGE) \
    } \
    WG_WAIT(0); \
    if (one) BAR_ARRIVE(done_at); \
    COLLECT() \
} while (0)
#endif

#ifdef PIXELS
// offset of the pixel of row `r`, or -1 where the row is padding
static inline long row_at(int r, const Job* job) {
    const int image = r / (job->pitch * job->height), rest = r - image * job->pitch * job->height;
    const int h = rest / job->pitch, w = rest - h * job->pitch;
    const bool inside = r < job->M && h < job->OH && w < job->OW;
    return inside ? image * job->image_step + h * job->h_step + w * job->row_step : -1;
}
#define BIAS_START (obias + z0 * J.N)   // z0: the group of channels
#define ROW_AT(r) row_at(r, &J)
// of the row after an even one: rows of pixels have even lengths
static inline long next_row(int r, long even, const Job* job) {
    return even >= 0 && r % job->pitch + 1 < job->OW ? even + job->row_step : -1;
}
#define NEXT_ROW(r, even) next_row(r, even, &J)
#define BIAS_BY_ROW 0
#else
#define BIAS_START obias
#define BIAS_BY_ROW SWAP
#define ROW_AT(r) ((r) < J.M ? (r) * J.row_step : -1L)
#define NEXT_ROW(r, even) ROW_AT((r) + 1)
#endif
#define COL_STEP (SWAP ? J.col_step : 1)
#define BIAS_AT(i, n) ((i) < (n) ? LOAD(bias, BIAS_START + (i)) : 0.0f)
#define BIAS(row, col) (BIAS_BY_ROW ? BIAS_AT(row, J.M) : BIAS_AT(col, J.N))
// one value of the result: scaled, added to what was there, or biased and activated
#if defined(PARTIAL)
#define FINISHED(v, row, off, col) (v)
#elif defined(ACCUMULATE)
#define FINISHED(v, row, off, col) \
    ((v) * alpha + ((off) >= 0 && (col) < J.N ? LOAD(c, (off) + (col) * COL_STEP) : 0.0f))
#elif defined(EPILOGUE)
#define FINISHED(v, row, off, col) ACT((v) * alpha + (HAS_BIAS ? BIAS(row, col) : 0.0f))
#else
#define FINISHED(v, row, off, col) ((v) * alpha)
#endif
#define EXCHANGE(x, y, mask) \
    do { uint s_ = t4 & (mask) ? x : y; SHUFFLE_XOR(s_, mask); if (t4 & (mask)) x = s_; else y = s_; } while (0)

// the fragment of a lane is (row, col), (row, col + 1) and the same eight rows below, for every eight columns
#if !defined(NARROW_OUT)
#define STORE_ROWS(r, row, off, i, h) \
    __global float* to = (__global float*)c + (off) + col0 * COL_STEP; \
    const int left = off >= 0 ? J.N - col0 : 0; \
    _Pragma("unroll") for (int j = 0; j < NW / 8; j++) { \
        const int v_ = (i) * (NW / 2) + j * 4 + (h) * 2; \
        const float x = FINISHED(sum[v_], row, off, col0 + j * 8), \
            y = FINISHED(sum[v_ + 1], row, off, col0 + j * 8 + 1); \
        if (j * 8 < left) { \
            if (VEC && !SWAP) { \
                float2 xy; xy.x = x; xy.y = y; \
                *(__global float2*)(to + j * 8) = xy; \
            } else { \
                to[j * 8 * COL_STEP] = x; \
                if (j * 8 + 1 < left) to[(j * 8 + 1) * COL_STEP] = y; \
            } \
        } \
    }
#elif SWAP
// pairs of rows: the 8x8 blocks are transposed first
#define STORE_ROWS(r, row, off, i, h) \
    const long even = ROW_AT(r + t4 * 2), odd = NEXT_ROW(r + t4 * 2, even); \
    _Pragma("unroll") for (int j = 0; j < NW / 8; j++) { \
        const int col = col0 + j * 8, v_ = (i) * (NW / 2) + j * 4 + (h) * 2, at_col = col0 - t4 * 2 + j * 8 + g; \
        uint pair; \
        PACK_NARROW(pair, FINISHED(sum[v_], row, off, col), FINISHED(sum[v_ + 1], row, off, col + 1)); \
        TRANSPOSE(pair); \
        if (at_col < J.N) { \
            __global ushort* to = (__global ushort*)c + at_col * COL_STEP; \
            if (even >= 0 && odd == even + 1 && (((ulong)(to + even)) & 3) == 0) *(__global uint*)(to + even) = pair; \
            else { \
                if (even >= 0) to[even] = (ushort)pair; \
                if (odd >= 0) to[odd] = (ushort)(pair >> 16); \
            } \
        } \
    }
#else
// four lanes exchange their pairs, so that each has eight neighbouring columns
#define STORE_ROWS(r, row, off, i, h) \
    _Pragma("unroll") for (int j = 0; j < NW / 8; j += 4) { \
        uint p[4]; \
        _Pragma("unroll") for (int q = 0; q < 4; q++) { \
            const int col = col0 + (j + q) * 8, v_ = (i) * (NW / 2) + (j + q) * 4 + (h) * 2; \
            PACK_NARROW(p[q], FINISHED(sum[v_], row, off, col), FINISHED(sum[v_ + 1], row, off, col + 1)); \
            if (!VEC && off >= 0) { \
                if (col < J.N) ((__global ushort*)c)[off + col] = (ushort)p[q]; \
                if (col + 1 < J.N) ((__global ushort*)c)[off + col + 1] = (ushort)(p[q] >> 16); \
            } \
        } \
        if (VEC) { \
            EXCHANGE(p[0], p[1], 1); \
            EXCHANGE(p[2], p[3], 1); \
            EXCHANGE(p[0], p[2], 2); \
            EXCHANGE(p[1], p[3], 2); \
            const int at_col = col0 - t4 * 2 + (j + t4) * 8; \
            if (off >= 0 && at_col < J.N) { \
                uint4 four; four.x = p[0]; four.y = p[1]; four.z = p[2]; four.w = p[3]; \
                *(__global uint4*)((__global ushort*)c + off + at_col) = four; \
            } \
        } \
    }
#endif
#define STORE_TILE() \
    _Pragma("unroll") for (int i_ = 0; i_ < MW; i_++) \
        _Pragma("unroll") for (int h_ = 0; h_ < 2; h_++) { \
            const int top = row0 - g + i_ * 64 + h_ * 8, mine = top + g; \
            const long at_row = ROW_AT(mine); \
            STORE_ROWS(top, mine, at_row, i_, h_) \
        }

__kernel __attribute__((reqd_work_group_size(384, 1, 1))) void NAME(
    __global OUT* C, __global const S* A, __global const S* B, __global const S* bias, __global uint* maps,
    __global const int4* table, long oC, long oA, long oB, long obias, float alpha, const Job J) {
    SHARED(shared, ST * STAGE + 16 * ST);
    const uint s0 = LOCAL(shared), full = s0 + ST * STAGE, empty = full + 8 * ST;
    const int item = get_local_id(0), lane = item & 31, warp = (item >> 5) & 3, group = item >> 7;
    __global uint* amap = maps + get_group_id(0) * 64;
    A += oA;
    B += oB;
    if (item == 0) {
        for (int s = 0; s < ST; s++) {
            BAR_INIT(full + s * 8, 1);
            BAR_INIT(empty + s * 8, 2);
        }
        FENCE_ASYNC();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (group == 0) {
        REGISTERS_DOWN(40);
        if (item == 0) {
            for (int i = 0; i < 32; i++) {
                amap[i] = J.amap[i];
                amap[32 + i] = J.bmap[i];
            }
            *(__global ulong*)amap = (ulong)A;
            *(__global ulong*)(amap + 32) = (ulong)B;
            MAP_WRITTEN();
            MAP_READY(amap);
            MAP_READY(amap + 32);
            int s = 0;
            uint phase = 1;
            for (int tile = get_group_id(0); tile < J.tiles; tile += get_num_groups(0)) {
                DECODE(tile);
                for (int t = t0; t < t1; t++) {
                    BAR_WAIT(empty + s * 8, phase);
                    const uint bar = full + s * 8, sa = s0 + s * STAGE, sb = sa + BM * 128;
                    BAR_EXPECT(bar, LOADED);
#ifdef A_ALONG_M
                    for (int i = 0; i < BM / 64; i++) {
                        A_AT(t, i);
                        COPY_BOX(sa + i * 8192, amap, ax, ay, az, aw, bar);
#ifdef TF32
                        COPY_BOX(sa + i * 8192 + 4096, amap, ax + 32, ay, az, aw, bar);
#endif
                    }
#else
                    A_AT(t, 0);
                    COPY_BOX(sa, amap, ax, ay, az, aw, bar);
#endif
#ifdef B_ALONG_N
                    for (int i = 0; i < BN / BK; i++)     // boxes of 128 bytes by BK
                        COPY_BOX(sb + i * BK * 128, amap + 32, n0 + i * BK, t * BK, z1 * J.bz, z0 * J.bw, bar);
#else
                    COPY_BOX(sb, amap + 32, t * BK, n0, z1 * J.bz, z0 * J.bw, bar);
#if PARTS == 3 && !defined(RAW_B)
                    COPY_BOX(sb + BN * 128, amap + 32, t * BK, n0, z1 * J.bz, z0 * J.bw + J.bdim[3], bar);
#endif
#endif
                    if (++s == ST) { s = 0; phase ^= 1; }
                }
            }
        }
    } else {
        REGISTERS_UP(232);
        const int wm = (group - 1) % WM, wn = (group - 1) / WM, g = lane >> 2, t4 = lane & 3;
        const bool one = (item & 127) == 0;
        float sum[SUMS];
#if PARTS == 3
        float acc[SUMS];
        uint lo[2][4][4];
#else
#define acc sum
#endif
#ifdef TF32
        uint a[2][4][4];
#endif
        int s = 0;
        uint phase = 0;
        for (int tile = get_group_id(0); tile < J.tiles; tile += get_num_groups(0)) {
            DECODE(tile);
#pragma unroll
            for (int j = 0; j < SUMS; j++) sum[j] = 0.0f;
#ifdef TF32
            if (t0 < t1) {
                BAR_WAIT(full + s * 8, phase);
                FRAGMENTS(0, s0 + s * STAGE);
            }
            for (int t = t0; t < t1; t += 2) {
                SLICE(0, 1, t);
                if (t + 1 < t1) SLICE(1, 0, t + 1);
            }
#else
            int before = -1;
            for (int t = t0; t < t1; t++) {
                BAR_WAIT(full + s * 8, phase);
                const uint sa = s0 + s * STAGE, sb = sa + BM * 128;
                WG_FENCE();
#pragma unroll
                for (int kk = 0; kk < 4; kk++) {
#ifdef B_ALONG_N
                    const ulong b = MATRIX(sb + wn * (NW / 64) * 8192 + kk * 2048, 8192, 1024);
#else
                    const ulong b = MATRIX(sb + wn * NW * 128 + kk * 32, 16, 1024);
#endif
#pragma unroll
                    for (int i = 0; i < MW; i++) {
#ifdef A_ALONG_M
                        const ulong a = MATRIX(sa + (wm * MW + i) * 8192 + kk * 2048, 8192, 1024);
#else
                        const ulong a = MATRIX(sa + (wm * MW + i) * 8192 + kk * 32, 16, 1024);
#endif
                        WG_PRODUCT((acc + i * (NW / 2)), a, b, 1);
                    }
                }
                WG_COMMIT();
                WG_WAIT(1);
                if (before >= 0 && one) BAR_ARRIVE(empty + before * 8);
                before = s;
                if (++s == ST) { s = 0; phase ^= 1; }
            }
            WG_WAIT(0);
            if (before >= 0 && one) BAR_ARRIVE(empty + before * 8);
#endif
#pragma unroll
            for (int j = 0; j < SUMS; j++) PIN(sum[j]);
            const int row0 = m0 + wm * MW * 64 + warp * 16 + g, col0 = n0 + wn * NW + t4 * 2;
#if PARTS == 3
            bool bad = false;
#pragma unroll
            for (int j = 0; j < SUMS; j++) bad |= sum[j] != sum[j];
            if (bad)
#pragma unroll 1
                for (int e = 0; e < SUMS; e++) {    // all sums are read and written whatever e is: see mma.cl
                    float v = 0.0f;
#pragma unroll
                    for (int x = 0; x < SUMS; x++) { const float one = sum[x]; v = x == e ? one : v; }
                    const int block = e / (NW / 2), j = e % (NW / 2);
                    const int row = row0 + block * 64 + ((j >> 1) & 1) * 8, col = col0 + (j >> 2) * 8 + (j & 1);
                    if (v == v || row >= J.M || col >= J.N) continue;
                    v = exact(A, B, table, &J, row, col, t0, t1, z0, z1);
#pragma unroll
                    for (int x = 0; x < SUMS; x++) { const float one = sum[x]; sum[x] = x == e ? v : one; }
                }
#endif
            __global OUT* c = C + (oC + part * J.part_step + z0 * J.c0 + z1 * J.c1);
            STORE_TILE();
        }
    }
}
