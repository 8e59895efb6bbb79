// matmul_gpu.cl: C = act(alpha * A B + bias), or C += alpha * A B, for any device with work-groups. Any strides of A
// and B.
//
// A work-group computes a BM x BN tile of C. Along K it moves BM x BK of A and BK x BN of B through two buffers in
// local memory, loading the next step into registers while it multiplies (tile_gpu.cl).
//
//   A_VEC, B_VEC 4: four elements per load; the axis in memory, the other strides and the start are multiples of 4.
//   A_ALONG_K, B_ALONG_K: which axis runs along memory (neither may, for general strides; then A_VEC, B_VEC are 1).
//   PARTIAL: k is divided among `parts` groups per tile; they leave plain sums, which split_k.cl adds up.
//   MASK: A counts only where `mask`, laid out like A, is positive (the gradient of relu by its output; NaN stays NaN).
//   SL: a group has so many slices of WG items, which share k among them and add up in local memory: for few tiles.
//   SUMS: the groups of the first column also write the sums of A's rows over their part of k.
//   PRODUCT: instead of a kernel, a function of this name for pair_gpu.cl, which has this file twice with other
//   defines.
// Launch: local (SL * BM / RM * BN / RN), global (tiles * local, batch * parts). `split` is a multiple of SL * BK.
#ifndef RASTER
#define RASTER 8    // rows of tiles that neighbouring groups share, for the cache
#endif
#ifndef SL
#define SL 1        // slices of a group (1..8)
#endif
#define TILES (2 * BK * (BM + BN))    // elements of a slice's two buffers
#define LEFT (BM * BN + BM)           // and of its sums, when they are added up
#define ROOM (SL * TILES > (SL - 1) * LEFT ? SL * TILES : (SL - 1) * LEFT)

#ifndef FINISH
typedef struct {
    long M, N, K, a_m, a_k, b_k, b_n, c_m, a0, a1, b0, b1, c0, c1, part_step;
    int inner, tiles_m, tiles_n, parts, split, groups;
} Dims;
#endif

#undef FINISH
#undef FETCH_A
#if defined(ACCUMULATE)
#define FINISH(v, at, n) ((v) * (E)alpha + (E)LOAD(at, 0))
#elif defined(EPILOGUE)
#define FINISH(v, at, n) ACT((v) * (E)alpha + (HAS_BIAS ? LOAD(bias, obias + (n)) : (E)0))
#else
#define FINISH(v, at, n) ((v) * (E)alpha)
#endif
#ifdef MASK
#define FETCH_A() \
    FETCH(a_next, A, D.a_m, D.a_k, m0, D.M, BM, A_VEC, A_ALONG_K) \
    FETCH(y_next, mask, D.a_m, D.a_k, m0, D.M, BM, A_VEC, A_ALONG_K) \
    _Pragma("unroll") for (int i = 0; i < COUNT(BM, A_VEC); i++) \
        a_next[i] = y_next[i] > 0 ? a_next[i] : y_next[i] - y_next[i];   // Mesa would take 0 * y for 0
#else
#define FETCH_A() FETCH(a_next, A, D.a_m, D.a_k, m0, D.M, BM, A_VEC, A_ALONG_K)
#endif

#ifdef PRODUCT
static inline void PRODUCT(__local E* tiles, const int tile, const int zp,
#else
__kernel __attribute__((reqd_work_group_size(SL * WG, 1, 1))) void gemm(
#endif
    __global OUT* C, __global const S* A, __global const S* B, __global const S* bias, __global const S* mask,
    __global OUT* sums, long oC, long oA, long oB, long obias, long omask, long osums, float alpha, const Dims D) {
#ifndef PRODUCT
    __local __attribute__((aligned(64))) E tiles[ROOM];
    const int tile = get_group_id(0), zp = get_group_id(1);
#endif
    const int lid = get_local_id(0), item = SL > 1 ? lid % WG : lid, slice = SL > 1 ? lid / WG : 0;
    __local E *As = tiles + slice * TILES, *Bs = As + 2 * BK * BM;
    const int z = zp / D.parts, part = zp % D.parts;
    const int first = tile / (RASTER * D.tiles_n) * RASTER, high = min(D.tiles_m - first, RASTER);
    const int rest = tile - first * D.tiles_n, m0 = (first + rest % high) * BM, n0 = rest / high * BN;
    PLACE_ITEM();
    const int share = D.split / SL, end = min((long)(part + 1) * D.split, D.K);
    const int steps = (min(share, end - part * D.split) + BK - 1) / BK;    // of the first slice, and so of all
    A += oA + z / D.inner * D.a0 + z % D.inner * D.a1;
    B += oB + z / D.inner * D.b0 + z % D.inner * D.b1;
    E c[RM][RN];
    E4 a_next[COUNT(BM, A_VEC)], b_next[COUNT(BN, B_VEC)];
    CLEAR()
    int k0 = part * D.split + slice * share, turn = 0;
    const int k1 = min(k0 + share, end);
    A += k0 * D.a_k;
    B += k0 * D.b_k;
#ifdef MASK
    E4 y_next[COUNT(BM, A_VEC)];
    mask += omask + z / D.inner * D.a0 + z % D.inner * D.a1 + k0 * D.a_k;
#endif
#ifdef SUMS
    E row[(BM + WG - 1) / WG] = {0};
#endif
    FETCH_A()
    FETCH(b_next, B, D.b_n, D.b_k, n0, D.N, BN, B_VEC, B_ALONG_K)
    PUT(As, a_next, BM, A_VEC, A_ALONG_K)
    PUT(Bs, b_next, BN, B_VEC, B_ALONG_K)
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = 1; step <= steps; step++) {
        const bool more = step < steps;
        if (more) {
            k0 += BK;
            A += BK * D.a_k;
            B += BK * D.b_k;
#ifdef MASK
            mask += BK * D.a_k;
#endif
            FETCH_A()
            FETCH(b_next, B, D.b_n, D.b_k, n0, D.N, BN, B_VEC, B_ALONG_K)
        }
        __local const E* as = As + turn * BK * BM;
        __local const E* bs = Bs + turn * BK * BN;
        MULTIPLY(as, bs, A_ALONG_K, B_ALONG_K)
#ifdef SUMS
        for (int i = 0, r = item; n0 == 0 && r < BM; i++, r += WG)
            for (int k = 0; k < BK; k++) row[i] += as[k * BM + SWAP_ROW(r, k, BM, A_ALONG_K)];
#endif
        turn ^= 1;
        if (more) {
            PUT(As + turn * BK * BM, a_next, BM, A_VEC, A_ALONG_K)
            PUT(Bs + turn * BK * BN, b_next, BN, B_VEC, B_ALONG_K)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#if SL > 1
    if (slice > 0) {
        __local E* to = tiles + (slice - 1) * LEFT;
        for (int i = 0; i < RM * RN; i++) to[i * WG + item] = c[i / RN][i % RN];
#ifdef SUMS
        for (int i = 0, r = item; r < BM; i++, r += WG) to[BM * BN + r] = row[i];
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0) return;
    for (__local const E* from = tiles; from < tiles + (SL - 1) * LEFT; from += LEFT) {
#pragma unroll
        for (int i = 0; i < RM * RN; i++) c[i / RN][i % RN] += from[i * WG + item];
#ifdef SUMS
        for (int i = 0, r = item; r < BM; i++, r += WG) row[i] += from[BM * BN + r];
#endif
    }
#endif
#ifdef SUMS
    for (int i = 0, r = item; n0 == 0 && r < BM && m0 + r < D.M; i++, r += WG) {
#ifdef PARTIAL
        sums[osums + part * D.M + m0 + r] = row[i];
#else
        STORE(sums, osums + m0 + r, row[i]);
#endif
    }
#endif
    C += oC + z / D.inner * D.c0 + z % D.inner * D.c1 + part * D.part_step;
#pragma unroll
    for (int i = 0; i < RM; i++) {
        const int m = m0 + ROW(i);
        if (m >= D.M) continue;
#pragma unroll
        for (int j = 0; j < RN; j += PN) {
            const int n = n0 + COLUMN(j);
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
#if defined(PARTIAL) || defined(WIDE)
                *(__global E4*)to = four;
#else
                STORE4(to, 0, four);
#endif
            }
#else
#pragma unroll
            for (int e = 0; e < PN; e++)
                if (n + e < D.N) {
#if defined(PARTIAL) || defined(WIDE)
                    to[e] = DONE(e);
#else
                    STORE(to, e, DONE(e));
#endif
                }
#endif
        }
    }
}
