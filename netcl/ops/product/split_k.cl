// split_k.cl: C = act(alpha * sum of parts + bias), or C += alpha * sum, for products whose k was divided.
//
// Part p of (batch, M, N) lies at part + p * step, in the compute type E. A group adds LANES elements; each of its
// SLICES lines takes every SLICES-th part, so that the order of the sum is fixed: one line for few parts, more for
// many. With FLAT, C is contiguous. With SUMS (one line) the parts of the sums of A's rows follow, M each.
// Launch: local (LANES * SLICES), global (elements (and rows) / LANES rounded up * local).
typedef struct {
    long M, N, step, c_m, c0, c1;
    int inner, parts, accumulate;
} Parts;

__kernel __attribute__((reqd_work_group_size(LANES * SLICES, 1, 1))) void split_k(
    __global S* C, __global const E* part, __global const S* bias,
#ifdef SUMS
    __global S* sums,
#endif
    long oC, long obias, float alpha, const Parts P) {
    const int lane = get_local_id(0) % LANES, slice = get_local_id(0) / LANES;
    const long i = (long)get_group_id(0) * LANES + lane, size = P.step;
    E sum = 0;
#ifdef SUMS
    if (i >= size && i < size + P.M) {
        for (int p = 0; p < P.parts; p++) sum += part[P.parts * P.step + p * P.M + i - size];
        STORE(sums, i - size, sum);
    }
#endif
#if SLICES > 1
    __local E lines[SLICES][LANES];
    if (i < size)
        for (int p = slice; p < P.parts; p += SLICES) sum += part[p * P.step + i];
    lines[slice][lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0 || i >= size) return;
    for (int s = 1; s < SLICES; s++) sum += lines[s][lane];
#else
    if (i >= size) return;
    for (int p = 0; p < P.parts; p++) sum += part[p * P.step + i];
#endif
#ifdef FLAT
    const long at = oC + i;
#else
    const long m = i / P.N % P.M, z = i / P.N / P.M;
    const long at = oC + z / P.inner * P.c0 + z % P.inner * P.c1 + m * P.c_m + i % P.N;
#endif
    sum *= (E)alpha;
    if (P.accumulate) sum += LOAD(C, at);
#ifdef EPILOGUE
    sum = ACT(sum + (HAS_BIAS ? LOAD(bias, obias + i % P.N) : (E)0));
#endif
    STORE(C, at, sum);
}
