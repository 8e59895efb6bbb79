// matmul_parts.cl: C = act(alpha * sum of parts + bias), or C += alpha * sum, for products whose k was divided.
//
// Part p of (batch, M, N) lies at part + p * step, in the compute type E; the order of the sum is fixed. With SUMS the
// parts of the sums of A's rows follow, M each. Launch: one element (or row) per work-item, rounded up to whole groups.
typedef struct {
    long M, N, step, c_m, c0, c1;
    int inner, parts, accumulate, unused;
} Parts;

__kernel void matmul_parts(__global S* C, __global const E* part, __global const S* bias, long oc, long obias, long size,
                           float alpha, const Parts P
#ifdef SUMS
                           , __global S* sums
#endif
                           ) {
    const long i = get_global_id(0);
    E sum = 0;
#ifdef SUMS
    if (i >= size && i < size + P.M) {
        for (int p = 0; p < P.parts; p++) sum += part[P.parts * P.step + p * P.M + i - size];
        STORE(sums, i - size, sum);
    }
#endif
    if (i >= size) return;
    for (int p = 0; p < P.parts; p++) sum += part[p * P.step + i];
    const long n = i % P.N, m = i / P.N % P.M, z = i / P.N / P.M;
    const long at = oc + z / P.inner * P.c0 + z % P.inner * P.c1 + m * P.c_m + n;
    sum *= (E)alpha;
    if (P.accumulate) sum += LOAD(C, at);
#ifdef EPILOGUE
    sum = ACT(sum + (HAS_BIAS ? LOAD(bias, obias + n) : (E)0));
#endif
    STORE(C, at, sum);
}
