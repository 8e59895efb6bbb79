// conv_parts.cl: dW (all elements) = the sum of `parts` arrays of `size` behind one another, in an order that never changes.
//
// A group adds LANES elements; its SLICES lines take every SLICES-th part. E is the compute type, S the storage type.
// Launch: local (LANES * SLICES), global (elements / LANES rounded up * local).
__kernel __attribute__((reqd_work_group_size(LANES * SLICES, 1, 1))) void conv_weights_sum(
    __global S* dW, __global const E* part, long od, long size, long parts) {
    __local E sums[SLICES][LANES];
    const int lane = get_local_id(0) % LANES, slice = get_local_id(0) / LANES;
    const long i = (long)get_group_id(0) * LANES + lane;
    E sum = 0;
    if (i < size)
        for (long p = slice; p < parts; p += SLICES) sum += part[p * size + i];
    sums[slice][lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0 || i >= size) return;
    for (int s = 1; s < SLICES; s++) sum += sums[s][lane];
    STORE(dW, od + i, sum);
}
