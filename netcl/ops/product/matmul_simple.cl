// matmul_simple.cl: C = alpha A B for integers (wrapping as NumPy does) and booleans (LOGICAL: or of ands).
// Launch: global = (N rounded up to whole groups, M, batch), one work-item per element of C.
typedef struct {
    long M, N, K, a_m, a_k, b_k, b_n, c_m, inner, a0, a1, b0, b1, c0, c1, accumulate;
} Dims;

__kernel void gemm_simple(__global S* C, __global const S* A, __global const S* B, long oC, long oA, long oB,
                          long alpha, const Dims D) {
    long n = get_global_id(0), m = get_global_id(1), z0 = get_global_id(2) / D.inner, z1 = get_global_id(2) % D.inner;
    if (n >= D.N) return;
    A += oA + z0 * D.a0 + z1 * D.a1 + m * D.a_m;
    B += oB + z0 * D.b0 + z1 * D.b1 + n * D.b_n;
    C += oC + z0 * D.c0 + z1 * D.c1 + m * D.c_m + n;
#if LOGICAL
    S sum = D.accumulate ? C[0] : 0;
    for (long k = 0; k < D.K; k++) sum |= (A[k * D.a_k] != 0) & (B[k * D.b_k] != 0);
    C[0] = sum;
#else
    S sum = 0;
    for (long k = 0; k < D.K; k++) sum += A[k * D.a_k] * B[k * D.b_k];
    C[0] = (S)(alpha * sum) + (D.accumulate ? C[0] : 0);
#endif
}
