// transpose_filters.cl: filters for the input gradient of a convolution at one residue (residue.py), reversed too:
//   V[g][c][o][j][l] = W[g][o][c][h0 + (J-1-j) * hs][w0 + (L-1-l) * ws].
// Launch: global = (C, groups, any), the last of which share the filters. A copy of the reversed view takes longer.
__kernel void transpose_filters(__global S* V, __global const S* Wt, long oWt, long O, long KH, long KW, long J, long L,
                                long h0, long hs, long w0, long ws) {
    long c = get_global_id(0), C = get_global_size(0), g = get_global_id(1);
    for (long o = get_global_id(2); o < O; o += get_global_size(2)) {
        __global S* to = V + ((g * C + c) * O + o) * J * L;
        __global const S* from = Wt + oWt + ((g * O + o) * C + c) * KH * KW;
        for (long j = 0; j < J; j++)
            for (long l = 0; l < L; l++) *to++ = from[(h0 + (J - 1 - j) * hs) * KW + w0 + (L - 1 - l) * ws];
    }
}
