// matmul_gpu.cl: C = act(alpha * A B + bias), or C += alpha * A B, for any device with work-groups. Any strides of A and B.
//
// A work-group computes a BM x BN tile of C. Along K it moves BM x BK of A and BK x BN of B through two buffers in local
// memory, loading the next step into registers while it multiplies; every work-item holds RM x RN sums, in pieces of PM x PN
// that lie a whole group apart. Both tiles are kept with k outermost. Where an operand runs along k in memory, it is turned
// on the way in, its rows exchanged in blocks of 32 so that the writes meet on no bank.
//
//   A_VEC, B_VEC 4: four elements per load; the axis in memory, the other strides and the start are multiples of 4.
//   A_ALONG_K, B_ALONG_K: which axis runs along memory (neither may, for general strides; then A_VEC, B_VEC are 1).
//   PARTS: k is divided among `parts` groups per tile; they leave plain sums, which matmul_parts.cl adds up.
// Launch: local (BM / RM * BN / RN), global (tiles * local, batch * parts). E is the compute type, S the storage type, I
// the type of offsets within a matrix (int, or long where it must be).
#ifndef BM
#define BM 64       // rows of a group's tile (16..256), a multiple of RM
#endif
#ifndef BN
#define BN 64       // columns of a group's tile (16..256), a multiple of RN
#endif
#ifndef BK
#define BK 16       // depth of a step (8..32), a multiple of 4
#endif
#ifndef RM
#define RM 4        // rows per work-item (1..8)
#endif
#ifndef RN
#define RN 4        // columns per work-item (1..16)
#endif
#ifndef RASTER
#define RASTER 8    // rows of tiles that neighbouring groups share, for the cache
#endif
#define GM (BM / RM)
#define GN (BN / RN)
#define WG (GM * GN)
#define PM (RM % 4 == 0 ? 4 : RM % 2 == 0 ? 2 : 1)
#define PN (RN % 4 == 0 ? 4 : RN % 2 == 0 ? 2 : 1)
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define E4 CAT(E, 4)
#ifdef FP_FAST_FMAF
#define MAD(a, b, c) fma(a, b, c)
#else
#define MAD(a, b, c) ((a) * (b) + (c))
#endif
#define TURN (32 / (BK / 4))    // step of the exchange of rows

typedef struct {
    long M, N, K, a_m, a_k, b_k, b_n, c_m, a0, a1, b0, b1, c0, c1, part_step;
    int inner, tiles_m, tiles_n, parts, split, accumulate;
} Dims;

#ifdef HALF     // the forms for aligned vectors: others become four loads
#define LOAD4(p, i) vloada_half4(0, (p) + (i))
#define STORE4(p, i, v) vstorea_half4_rte(v, 0, (p) + (i))
#else
#define LOAD4(p, i) (*(__global const E4*)((p) + (i)))
#define STORE4(p, i, v) (*(__global E4*)((p) + (i)) = (v))
#endif
#ifdef EPILOGUE
#define FINISH(v, at, n) ACT((v) * (E)alpha + (HAS_BIAS ? LOAD(bias, obias + (n)) : (E)0))
#else
#define FINISH(v, at, n) ((v) * (E)alpha + (D.accumulate ? (E)LOAD(at, 0) : (E)0))
#endif

// The loads of one operand: COUNT of VEC elements per work-item, `row` and `k` of the i-th.
#define COUNT(ROWS, VEC) ((ROWS * BK / VEC + WG - 1) / WG)
#define ROW_OF(i, ROWS, VEC, ALONG_K) (ALONG_K ? (item + (i) * WG) / (BK / VEC) : (item + (i) * WG) % (ROWS / VEC) * VEC)
#define K_OF(i, ROWS, VEC, ALONG_K) (ALONG_K ? (item + (i) * WG) % (BK / VEC) * VEC : (item + (i) * WG) / (ROWS / VEC))
#define SWAP_ROW(r, k, ROWS, ALONG_K) (ALONG_K && ROWS % 32 == 0 && TURN >= 4 && BK <= 32 ? (r) ^ ((k) / 4 * TURN) : (r))
// Rows past the end repeat the last one (their sums are not stored); past the end of k there are zeros.
#define FETCH(reg, from, r_step, k_step, r0, rows, ROWS, VEC, ALONG_K) \
    _Pragma("unroll") for (int i = 0; i < COUNT(ROWS, VEC); i++) { \
        const int k = K_OF(i, ROWS, VEC, ALONG_K), last = (int)(rows) - (ALONG_K ? 1 : VEC); \
        const I at = min((r0) + ROW_OF(i, ROWS, VEC, ALONG_K), last) * (I)(r_step) + k * (I)(k_step); \
        const bool in = k0 + k < k1 && (ROWS * BK / VEC % WG == 0 || k < BK); \
        if (VEC == 4) reg[i] = in ? LOAD4(from, at) : (E4)(0); \
        else reg[i].s0 = in ? LOAD(from, at) : (E)0; \
    }
#define PUT(to, reg, ROWS, VEC, ALONG_K) \
    _Pragma("unroll") for (int i = 0; i < COUNT(ROWS, VEC); i++) { \
        const int k = K_OF(i, ROWS, VEC, ALONG_K), r = ROW_OF(i, ROWS, VEC, ALONG_K); \
        if (ROWS * BK / VEC % WG != 0 && (k >= BK || r >= ROWS)) continue; \
        __local E* p = (to) + k * ROWS + SWAP_ROW(r, k, ROWS, ALONG_K); \
        if (VEC == 1) p[0] = reg[i].s0; \
        else if (ALONG_K) { p[0] = reg[i].s0; p[ROWS] = reg[i].s1; p[2 * ROWS] = reg[i].s2; p[3 * ROWS] = reg[i].s3; } \
        else *(__local E4*)p = reg[i]; \
    }
#define READ(v, from, k, ROWS, PIECE, COUNT_, G, place, ALONG_K) \
    _Pragma("unroll") for (int c = 0; c < COUNT_ / PIECE; c++) { \
        __local const E* p = (from) + (k) * ROWS + SWAP_ROW((c * G + place) * PIECE, k, ROWS, ALONG_K); \
        if (PIECE == 4) { \
            const E4 four = *(__local const E4*)p; \
            v[c * PIECE] = four.s0; v[c * PIECE + PIECE / 4] = four.s1; \
            v[c * PIECE + PIECE / 2] = four.s2; v[c * PIECE + PIECE - 1] = four.s3; \
        } else { \
            v[c * PIECE] = p[0]; \
            if (PIECE == 2) v[c * PIECE + PIECE - 1] = p[PIECE - 1]; \
        } \
    }

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void gemm(
    __global OUT* C, __global const S* A, __global const S* B, __global const S* bias, long oc, long oa, long ob, long obias,
    float alpha, const Dims D) {
    __local __attribute__((aligned(64))) E As[2 * BK * BM], Bs[2 * BK * BN];
    const int item = get_local_id(0), tile = get_group_id(0), zp = get_group_id(1), z = zp / D.parts, part = zp % D.parts;
    const int first = tile / (RASTER * D.tiles_n) * RASTER, high = min(D.tiles_m - first, RASTER);
    const int rest = tile - first * D.tiles_n, m0 = (first + rest % high) * BM, n0 = rest / high * BN;
#if GM % 8 == 0 && GN % 4 == 0      // 32 neighbours form a block of 8 x 4: less to read from local memory
    const int block = item / 32, y = block % (GM / 8) * 8 + item % 32 / 4, x = block / (GM / 8) * 4 + item % 4;
#else
    const int y = item / GN, x = item % GN;
#endif
    const int k_first = part * D.split, k1 = min((long)k_first + D.split, D.K);
    A += oa + z / D.inner * D.a0 + z % D.inner * D.a1;
    B += ob + z / D.inner * D.b0 + z % D.inner * D.b1;
    E c[RM][RN];
    E4 a_next[COUNT(BM, A_VEC)], b_next[COUNT(BN, B_VEC)];
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++) c[i][j] = 0;
    int k0 = k_first, turn = 0;
    A += k0 * D.a_k;
    B += k0 * D.b_k;
    FETCH(a_next, A, D.a_m, D.a_k, m0, D.M, BM, A_VEC, A_ALONG_K)
    FETCH(b_next, B, D.b_n, D.b_k, n0, D.N, BN, B_VEC, B_ALONG_K)
    PUT(As, a_next, BM, A_VEC, A_ALONG_K)
    PUT(Bs, b_next, BN, B_VEC, B_ALONG_K)
    barrier(CLK_LOCAL_MEM_FENCE);
    while (k0 < k1) {
        k0 += BK;
        const bool more = k0 < k1;
        if (more) {
            A += BK * D.a_k;
            B += BK * D.b_k;
            FETCH(a_next, A, D.a_m, D.a_k, m0, D.M, BM, A_VEC, A_ALONG_K)
            FETCH(b_next, B, D.b_n, D.b_k, n0, D.N, BN, B_VEC, B_ALONG_K)
        }
        __local const E* as = As + turn * BK * BM;
        __local const E* bs = Bs + turn * BK * BN;
#pragma unroll
        for (int k = 0; k < BK; k++) {
            E a[RM], b[RN];
            READ(a, as, k, BM, PM, RM, GM, y, A_ALONG_K)
            READ(b, bs, k, BN, PN, RN, GN, x, B_ALONG_K)
#pragma unroll
            for (int i = 0; i < RM; i++)
#pragma unroll
                for (int j = 0; j < RN; j++) c[i][j] = MAD(a[i], b[j], c[i][j]);
        }
        turn ^= 1;
        if (more) {
            PUT(As + turn * BK * BM, a_next, BM, A_VEC, A_ALONG_K)
            PUT(Bs + turn * BK * BN, b_next, BN, B_VEC, B_ALONG_K)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    C += oc + z / D.inner * D.c0 + z % D.inner * D.c1 + part * D.part_step;
#pragma unroll
    for (int i = 0; i < RM; i++) {
        const int m = m0 + (i / PM * GM + y) * PM + i % PM;
        if (m >= D.M) continue;
#pragma unroll
        for (int j = 0; j < RN; j += PN) {
            const int n = n0 + (j / PN * GN + x) * PN;
            __global OUT* to = C + m * D.c_m + n;
#ifdef PARTIAL
#define DONE(e) c[i][j + (e)]
#else
#define DONE(e) FINISH(c[i][j + (e)], to + (e), n + (e))
#endif
#if C_VEC && RN % 4 == 0
            if (n < D.N) {
                E4 four;
                four.s0 = DONE(0);
                four.s1 = DONE(PN / 4);
                four.s2 = DONE(PN / 2);
                four.s3 = DONE(PN - 1);
#ifdef PARTIAL
                *(__global E4*)to = four;
#else
                STORE4(to, 0, four);
#endif
            }
#else
#pragma unroll
            for (int e = 0; e < PN; e++)
                if (n + e < D.N) {
#ifdef PARTIAL
                    to[e] = DONE(e);
#else
                    STORE(to, e, DONE(e));
#endif
                }
#endif
        }
    }
}
