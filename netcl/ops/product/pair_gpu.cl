// pair_gpu.cl: two products in one launch, where a launch costs more than the products do.
//
// `first` and `second` are matmul_gpu.cl, each with the forms of its operands; the tiles of both have the same sizes. A
// group computes one tile of one of them. y and sums: see MASK and SUMS there; where these are not defined, any memory.
// Launch: local (SL * WG), global (D1.groups + D2.groups) * local; the groups of the first product start first.
__kernel __attribute__((reqd_work_group_size(SL * WG, 1, 1))) void gemm_pair(
    __global OUT* c1, __global const S* a1, __global const S* b1, __global const S* y1, __global OUT* sums1,
    __global OUT* c2, __global const S* a2, __global const S* b2, __global const S* y2, __global OUT* sums2,
    long oa1, long ob1, long oy1, long oa2, long ob2, long oy2, const Dims D1, const Dims D2) {
    __local __attribute__((aligned(64))) E tiles[ROOM];
    const int group = get_group_id(0);
    if (group < D1.groups)
        first(tiles, group, 0, c1, a1, b1, a1, y1, sums1, 0, oa1, ob1, 0, oy1, 0, 1.0f, D1);
    else
        second(tiles, group - D1.groups, 0, c2, a2, b2, a2, y2, sums2, 0, oa2, ob2, 0, oy2, 0, 1.0f, D2);
}
