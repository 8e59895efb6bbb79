// conv_turn.cl: filters turned for the input gradient of a convolution.
// Weights for the input gradient of one residue: V[g][c][o][j][l] = W[g][o][c][h0 + (J-1-j) * hs][w0 + (L-1-l) * ws].
// Launch: global = (C, groups).
__kernel void conv_turn(__global S* V, __global const S* Wt, long ow, long O, long KH, long KW, long J, long L, long h0,
                        long hs, long w0, long ws) {
    long c = get_global_id(0), C = get_global_size(0), g = get_global_id(1);
    V += (g * C + c) * O * J * L;
    Wt += ow + (g * O * C + c) * KH * KW;
    for (long o = 0; o < O; o++, Wt += C * KH * KW)
        for (long j = 0; j < J; j++)
            for (long l = 0; l < L; l++) *V++ = Wt[(h0 + (J - 1 - j) * hs) * KW + w0 + (L - 1 - l) * ws];
}
