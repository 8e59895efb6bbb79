// matmul_gpu.cl: C = act(alpha * A B + bias), or C += alpha * A B, for any device with work-groups. Any strides of A and B.
//
// A work-group computes a BM x BN tile of C; along K it copies BM x BK of A and BK x BN of B to local memory, and every
// work-item multiplies RM x RN elements in registers. A work-item's rows and columns lie a whole group apart, so that
// neighbours read neighbouring words of local memory and write neighbouring words of C.
// Launch: local = (BN / RN, BM / RM, 1), global = (ceil(N / BN), ceil(M / BM), batch) groups.
// E is the compute type, S the storage type; sums stay in E.
#ifndef BM
#define BM 64       // rows of a group's tile (16..128), a multiple of RM
#endif
#ifndef BN
#define BN 64       // columns of a group's tile (16..128), a multiple of RN
#endif
#ifndef BK
#define BK 16       // depth of a step (8..32)
#endif
#ifndef RM
#define RM 4        // rows per work-item (1..8)
#endif
#ifndef RN
#define RN 4        // columns per work-item (1..8)
#endif
#define GN (BN / RN)
#define GM (BM / RM)

// Sizes, strides in elements, batch strides. z = z0 * inner + z1 is the batch index.
typedef struct {
    long M, N, K, sam, sak, sbk, sbn, scm, inner, a0, a1, b0, b1, c0, c1, accumulate, act, has_bias;
} Dims;

#ifdef EPILOGUE
static inline E activate(E x, int act) { return act == 1 ? RELU(x) : act == 2 ? GELU(x) : act == 3 ? SILU(x) : x; }
#endif

__kernel void gemm(__global S* C, __global const S* A, __global const S* B, __global const S* bias, long oc, long oa,
                   long ob, long obias, float alpha, const Dims D) {
    __local E As[BK][BM + 1], Bs[BK][BN];
    int x = get_local_id(0), y = get_local_id(1), item = y * GN + x, M = D.M, N = D.N, K = D.K;
    int n0 = get_group_id(0) * BN, m0 = get_group_id(1) * BM;
    long z0 = get_global_id(2) / D.inner, z1 = get_global_id(2) % D.inner;
    A += oa + z0 * D.a0 + z1 * D.a1;
    B += ob + z0 * D.b0 + z1 * D.b1;
    C += oc + z0 * D.c0 + z1 * D.c1;
    E c[RM][RN];
    for (int i = 0; i < RM; i++)
        for (int j = 0; j < RN; j++) c[i][j] = 0;
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int e = item; e < BM * BK; e += GM * GN) {
            int along = D.sak == 1, m = along ? e / BK : e % BM, k = along ? e % BK : e / BM;  // neighbours read neighbours
            As[k][m] = m0 + m < M && k0 + k < K ? LOAD(A, (m0 + m) * D.sam + (k0 + k) * D.sak) : (E)0;
        }
        for (int e = item; e < BN * BK; e += GM * GN) {
            int along = D.sbk == 1, n = along ? e / BK : e % BN, k = along ? e % BK : e / BN;
            Bs[k][n] = n0 + n < N && k0 + k < K ? LOAD(B, (k0 + k) * D.sbk + (n0 + n) * D.sbn) : (E)0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        int depth = min(BK, K - k0);
        for (int k = 0; k < depth; k++) {
            E b[RN];
            for (int j = 0; j < RN; j++) b[j] = Bs[k][x + j * GN];
            for (int i = 0; i < RM; i++) {
                E a = As[k][y + i * GM];
                for (int j = 0; j < RN; j++) c[i][j] += a * b[j];
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < RM; i++)
        for (int j = 0; j < RN; j++) {
            int m = m0 + y + i * GM, n = n0 + x + j * GN;
            if (m >= M || n >= N) continue;
            __global S* to = C + m * D.scm + n;
            E v = c[i][j] * (E)alpha;
            if (D.accumulate) v += LOAD(to, 0);
#ifdef EPILOGUE
            if (D.has_bias) v += LOAD(bias, obias + n);
            v = activate(v, D.act);
#endif
            STORE(to, 0, v);
        }
}
