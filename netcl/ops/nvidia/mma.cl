// mma.cl: C = act(alpha * A B + bias) or C += alpha * A B on NVIDIA's warp matrix units (mma.sync, compute
// capability 8.0).
//
// A group of WM x WN warps computes a BM x BN tile; steps of BK along k pass through ST stages of shared memory, filled
// by copies that complete later. Operands lie in memory along k or along their other axis (A_ALONG_M, B_ALONG_N);
// chunks of 16 bytes are exchanged within rows so that neither copies nor fragment loads meet on a bank. Outside the
// matrix copies read nothing and give zeros.
//   16-bit operands: float sums in the unit.
//   float (TF32): operands are rounded to TF32 (PARTS 1), or split into high and low (PARTS 3), three products of 8 of
//   k are summed by the unit and then added to ordinary float sums, because the unit truncates when it accumulates. A
//   result that is not a number is computed again in plain float arithmetic, as wgmma.cl explains.
// Launch: local (WM * WN * 32), global (tiles * local, batch * parts). Fragments: PTX ISA 8.3, section 9.7.14.
#ifndef NAME
#define NAME gemm_mma
#endif
#ifndef BM
#define BM 128
#endif
#ifndef BN
#define BN 128
#endif
#ifndef WM
#define WM 2
#endif
#ifndef WN
#define WN 2
#endif
#ifndef ST
#define ST 3
#endif
#ifndef RASTER
#define RASTER 8
#endif
#ifdef TF32
#define ES 4
#ifndef BK
#define BK 16
#endif
#define FULL_SHAPE "m16n8k8"
#else
#define ES 2
#ifndef BK
#define BK 32
#endif
#define FULL_SHAPE "m16n8k16"
#endif
#define STEP_K (32 / ES)            // k per instruction
#define NT (WM * WN * 32)
#define TM (BM / WM)
#define TN (BN / WN)
#define MI (TM / 16)
#define NI (TN / 8)
#define STAGE ((BM + BN) * BK * ES)
#define EACH (16 / ES)              // elements of a chunk

typedef struct {
    int M, N, K, split, tiles_m, tiles_n, parts, inner;
    long a_m, a_k, b_k, b_n, c_m, a0, a1, b0, b1, c0, c1, part_step;
} Job;

#if ALIGNED
#define COPY(to, from, n) COPY16(to, from, n)
#else
#define COPY(to, from, n) do { \
    _Pragma("unroll") for (int w_ = 0; w_ < 4; w_++) COPY4((to) + w_ * 4, (from) + w_, (n) > w_ * 4 ? 4 : 0); \
} while (0)
#endif
// where chunk c of a row lies: rows of R bytes along k, or along the other axis
#define PLACE_K(r, c) ((r) * (BK * ES) + (((c) ^ (BK * ES == 64 ? ((r) >> 1) & 3 : (r) & 7)) << 4))
#define PLACE_R(k, c, R) ((k) * ((R) * ES) + (((c) ^ (ES == 2 ? (k) & 7 : ((k) & 3) * 2)) << 4))
// copies R rows (or columns) of BK elements from row0 and k0 on
#define FETCH_K(at, from, step, row0, rows, R) \
    _Pragma("unroll") for (int i_ = 0; i_ < (R) * BK / EACH / NT; i_++) { \
        const int r_ = item / (BK / EACH) + i_ * (NT / (BK / EACH)), c_ = item % (BK / EACH), k_ = k0 + c_ * EACH; \
        const int n_ = (row0) + r_ < (rows) ? clamp((k1 - k_) * ES, 0, 16) : 0; \
        COPY((at) + PLACE_K(r_, c_), (from) + ((row0) + r_) * (step) + k_, n_); \
    }
#define FETCH_R(at, from, step, row0, rows, R) \
    _Pragma("unroll") for (int i_ = 0; i_ < (R) * BK / EACH / NT; i_++) { \
        const int r_ = item / ((R) / EACH) + i_ * (NT / ((R) / EACH)), c_ = item % ((R) / EACH), \
            x_ = (row0) + c_ * EACH; \
        const int n_ = k0 + r_ < k1 ? clamp(((rows) - x_) * ES, 0, 16) : 0; \
        COPY((at) + PLACE_R(r_, c_, R), (from) + (k0 + r_) * (step) + x_, n_); \
    }
#ifdef A_ALONG_M
#define FETCH_A(at) FETCH_R(at, A, J.a_k, m0, J.M, BM)
#else
#define FETCH_A(at) FETCH_K(at, A, J.a_m, m0, J.M, BM)
#endif
#ifdef B_ALONG_N
#define FETCH_B(at) FETCH_R(at, B, J.b_k, n0, J.N, BN)
#else
#define FETCH_B(at) FETCH_K(at, B, J.b_n, n0, J.N, BN)
#endif

#ifdef TF32
// The split of a register in three operations. Where x is not finite, or rounds up to infinity, its low part is not a
// number, and so is every product with it, which is repaired.
static inline uint high_part(uint x) { return (x + 0x1000u) & 0xffffe000u; }
static inline uint low_part(uint x, uint h) { return as_uint(as_float(x) - as_float(h)); }
// x rounded to TF32 (the unit ignores the last bits); infinity, NaN and what would round up to infinity stay
static inline uint rounded(uint x) { return (x & 0x7fffffffu) < 0x7f7ff000u ? x + 0x1000u : x; }
#endif

#if defined(PARTIAL)
#define FINISHED(v, at, col) (v)
#elif defined(ACCUMULATE)
#define FINISHED(v, at, col) ((v) * alpha + ((col) < J.N ? LOAD(c, at) : 0.0f))
#elif defined(EPILOGUE)
#define FINISHED(v, at, col) ACT((v) * alpha + (HAS_BIAS && (col) < J.N ? LOAD(bias, obias + (col)) : 0.0f))
#else
#define FINISHED(v, at, col) ((v) * alpha)
#endif

__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void NAME(
    __global OUT* C, __global const S* A, __global const S* B, __global const S* bias, long oC, long oA, long oB,
    long obias, float alpha, const Job J) {
    SHARED(shared, ST * STAGE);
    const uint s0 = LOCAL(shared);
    const int item = get_local_id(0), warp = item >> 5, lane = item & 31, g = lane >> 2, t4 = lane & 3;
    const int tile = get_group_id(0), zp = get_group_id(1), z = zp / J.parts, part = zp - z * J.parts;
    const int z0 = z / J.inner, z1 = z - z0 * J.inner;
    const int first = tile / (RASTER * J.tiles_n) * RASTER, high = min(J.tiles_m - first, RASTER);
    const int rest = tile - first * J.tiles_n, m0 = (first + rest % high) * BM, n0 = rest / high * BN;
    const int k_first = part * J.split, k1 = min(k_first + J.split, J.K), steps = (k1 - k_first + BK - 1) / BK;
    A += oA + z0 * J.a0 + z1 * J.a1;
    B += oB + z0 * J.b0 + z1 * J.b1;
    float acc[MI][NI][4];
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
        for (int j = 0; j < NI; j++)
#pragma unroll
            for (int q = 0; q < 4; q++) acc[i][j][q] = 0.0f;
    int k0 = k_first;
#pragma unroll
    for (int s = 0; s < ST - 1; s++) {
        if (s < steps) {
            FETCH_A(s0 + s * STAGE);
            FETCH_B(s0 + s * STAGE + BM * BK * ES);
        }
        k0 += BK;
        COPY_GROUP();
    }
    const int wm = warp % WM * TM, wn = warp / WM * TN;
    int rs = 0, ws = ST - 1;
    for (int t = 0; t < steps; t++) {
        COPY_WAIT(ST - 2);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (t + ST - 1 < steps) {
            FETCH_A(s0 + ws * STAGE);
            FETCH_B(s0 + ws * STAGE + BM * BK * ES);
        }
        k0 += BK;
        COPY_GROUP();
        const uint sa = s0 + rs * STAGE, sb = sa + BM * BK * ES;
#pragma unroll
        for (int kk = 0; kk < BK / STEP_K; kk++) {
            uint a[MI][4], b[NI][2];
#pragma unroll
            for (int i = 0; i < MI; i++) {
#if !defined(A_ALONG_M)
                const int r = wm + i * 16 + (lane & 15);
                LOAD_MATRIX(a[i], sa + PLACE_K(r, kk * 2 + (lane >> 4)));
#elif ES == 2
                const int k = kk * 16 + (lane & 7) + ((lane >> 4) << 3);
                LOAD_MATRIX_T(a[i], sa + PLACE_R(k, (wm + i * 16) / 8 + ((lane >> 3) & 1), BM));
#else
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const int k = kk * 8 + t4 + (q >> 1) * 4, r = wm + i * 16 + g + (q & 1) * 8;
                    LOAD_WORD(a[i][q], sa + PLACE_R(k, r / 4, BM) + (r & 3) * 4);
                }
#endif
            }
#pragma unroll
            for (int j = 0; j < NI; j += 2) {
                uint two[4];
#if !defined(B_ALONG_N)
                const int r = wn + j * 8 + (lane & 7) + ((lane >> 4) << 3);
                LOAD_MATRIX(two, sb + PLACE_K(r, kk * 2 + ((lane >> 3) & 1)));
#elif ES == 2
                LOAD_MATRIX_T(two, sb + PLACE_R(kk * 16 + (lane & 15), wn / 8 + j + (lane >> 4), BN));
#else
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const int k = kk * 8 + t4 + (q & 1) * 4, r = wn + (j + (q >> 1)) * 8 + g;
                    LOAD_WORD(two[q], sb + PLACE_R(k, r / 4, BN) + (r & 3) * 4);
                }
#endif
                b[j][0] = two[0];
                b[j][1] = two[1];
                b[j + 1][0] = two[2];
                b[j + 1][1] = two[3];
            }
#ifndef TF32
#pragma unroll
            for (int i = 0; i < MI; i++)
#pragma unroll
                for (int j = 0; j < NI; j++) MMA(FULL_SHAPE, KIND, acc[i][j], a[i], b[j]);
#elif PARTS == 1
#pragma unroll
            for (int j = 0; j < NI; j++) {
                b[j][0] = rounded(b[j][0]);
                b[j][1] = rounded(b[j][1]);
            }
#pragma unroll
            for (int i = 0; i < MI; i++) {
#pragma unroll
                for (int q = 0; q < 4; q++) a[i][q] = rounded(a[i][q]);
#pragma unroll
                for (int j = 0; j < NI; j++) MMA(FULL_SHAPE, KIND, acc[i][j], a[i], b[j]);
            }
#else
            uint low_a[4], low_b[NI][2];
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int q = 0; q < 2; q++) {
                    const uint h = high_part(b[j][q]);
                    low_b[j][q] = low_part(b[j][q], h);
                    b[j][q] = h;
                }
#pragma unroll
            for (int i = 0; i < MI; i++) {
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const uint h = high_part(a[i][q]);
                    low_a[q] = low_part(a[i][q], h);
                    a[i][q] = h;
                }
#pragma unroll
                for (int j0 = 0; j0 < NI; j0 += 4) {
                    float t_[4][4];
#pragma unroll
                    for (int j = 0; j < 4; j++)
#pragma unroll
                        for (int q = 0; q < 4; q++) t_[j][q] = 0.0f;
#pragma unroll
                    for (int j = 0; j < 4; j++) MMA(FULL_SHAPE, KIND, t_[j], low_a, b[j0 + j]);
#pragma unroll
                    for (int j = 0; j < 4; j++) MMA(FULL_SHAPE, KIND, t_[j], a[i], low_b[j0 + j]);
#pragma unroll
                    for (int j = 0; j < 4; j++) MMA(FULL_SHAPE, KIND, t_[j], a[i], b[j0 + j]);
#pragma unroll
                    for (int j = 0; j < 4; j++)
#pragma unroll
                        for (int q = 0; q < 4; q++) acc[i][j0 + j][q] += t_[j][q];
                }
            }
#endif
        }
        rs = rs == ST - 1 ? 0 : rs + 1;
        ws = ws == ST - 1 ? 0 : ws + 1;
    }
#if PARTS == 3
    // One loop that is not unrolled: this must not cost the space of the whole epilogue. All sums are read and written
    // whatever e is: with `if (x == e)` the compiler indexes by e, and keeps the sums in memory from first to last.
    bool bad = false;
#pragma unroll
    for (int e = 0; e < MI * NI * 4; e++)
        bad |= acc[e / (NI * 4)][e / 4 % NI][e % 4] != acc[e / (NI * 4)][e / 4 % NI][e % 4];
    if (bad)
#pragma unroll 1
        for (int e = 0; e < MI * NI * 4; e++) {
            float v = 0.0f;
#pragma unroll
            for (int x = 0; x < MI * NI * 4; x++) {
                const float one = acc[x / (NI * 4)][x / 4 % NI][x % 4];
                v = x == e ? one : v;
            }
            const int row = m0 + wm + e / (NI * 4) * 16 + g + (e >> 1 & 1) * 8,
                col = n0 + wn + e / 4 % NI * 8 + t4 * 2 + (e & 1);
            if (v == v || row >= J.M || col >= J.N) continue;
            v = 0.0f;
            for (int k = k_first; k < k1; k++) v = fma(A[row * J.a_m + k * J.a_k], B[k * J.b_k + col * J.b_n], v);
#pragma unroll
            for (int x = 0; x < MI * NI * 4; x++) {
                const float one = acc[x / (NI * 4)][x / 4 % NI][x % 4];
                acc[x / (NI * 4)][x / 4 % NI][x % 4] = x == e ? v : one;
            }
        }
#endif
    __global OUT* c = C + (oC + part * J.part_step + z0 * J.c0 + z1 * J.c1);
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = m0 + wm + i * 16 + g + h * 8;
            if (row >= J.M) continue;
#pragma unroll
            for (int j = 0; j < NI; j++) {
                const int col = n0 + wn + j * 8 + t4 * 2;
                const long at = row * J.c_m + col;
                const float low = FINISHED(acc[i][j][h * 2], at, col),
                    high = FINISHED(acc[i][j][h * 2 + 1], at + 1, col + 1);
                if (col >= J.N) continue;
#ifdef NARROW_OUT
                uint pair;
                PACK_NARROW(pair, low, high);
                __global ushort* to = (__global ushort*)c + at;
#if VEC
                *(__global uint*)to = pair;
#else
                to[0] = (ushort)pair;
                if (col + 1 < J.N) to[1] = (ushort)(pair >> 16);
#endif
#else
                __global float* to = c + at;
#if VEC
                float2 both;
                both.x = low;
                both.y = high;
                *(__global float2*)to = both;
#else
                to[0] = low;
                if (col + 1 < J.N) to[1] = high;
#endif
#endif
            }
        }
}
