// register_tiled.cl: convolutions of groups with few channels, depthwise ones above all, and their gradients, on GPUs.
//
// Follows strips.cl, which gives layout and launch. USE_<KERNEL> picks the kernel of a program.
#define TAPS (KH * KW)

#ifdef USE_CONV
// TRANSPOSED 0: Y of X. TRANSPOSED 1: the gradient of X (Y here) from that of Y (X here). DEPTH channels of X meet in
// one of Y.
__kernel void conv(__global S* Y, __global const S* X, __global const S* Wt, __global const S* bias, long oY, long oX,
                   long oWt, long obias, const Dims D) {
    const I tile = get_global_id(0);
    if (tile >= D.tiles) return;
    TILE_AT(tile)
    const I n = (U)plane / (U)D.C;
    const int o = (int)(plane - n * D.C), group = (uint)o / (uint)D.mine;
    X += oX + n * (I)D.xn + group * DEPTH * (I)D.xc;
    Wt += oWt + (TRANSPOSED ? group * (DEPTH - 1) * D.mine + o : o * DEPTH) * TAPS;
    E sum[TH][TW], s[SPANX], taps[TAPS];
    UNROLL for (int t = 0; t < TH; t++)
        UNROLL for (int e = 0; e < TW; e++) sum[t][e] = 0;
    for (int more = DEPTH; more > 0; more--, X += D.xc, Wt += TRANSPOSED ? D.mine * TAPS : TAPS) {
        UNROLL for (int k = 0; k < TAPS; k++) taps[k] = LOAD(Wt, k);
        UNROLL for (int r = 0; r < SPANY; r++) {
            read_strip(s, X + (y0 + r) * (I)D.xh, (I)D.xw, x0, D.W, (uint)(y0 + r) < (uint)D.H, (E)0);
            UNROLL for (int t = 0; t < TH; t++)
                if (MEETS_ROW(t, r))
                    PAIRS(e, v) sum[t][e] = MAD(taps[TAP_ROW(t, r) * KW + v], s[AT(e, v)], sum[t][e]);
        }
    }
    UNROLL for (int t = 0; t < TH; t++)
        if (i0 + t < D.Rh) {
            UNROLL for (int e = 0; e < TW; e++) sum[t][e] = FINISH(sum[t][e], o);
            write_row(Y + oY + (plane * D.Rh + i0 + t) * (I)D.Rw + j0, sum[t], D.Rw - j0);
        }
}
#endif

#ifdef USE_CONV_WEIGHTS
// part (splits, output channels, channels of a group, taps) = sums over `chunk` tiles each; split_k.cl adds the splits.
// G is contiguous, and tiles end where its rows do, so that pixels which no output reads, finite or not, meet nothing.
// Launch: groups (splits, output channels * channels of a group) of WG.
#define ROUND (TAPS < 16 ? TAPS : 16)   // sums that a group adds at once
READER(read_gradient, E, S, TW, 0, VY, GET)
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void conv_weights(
    __global E* part, __global const S* G, __global const S* X, long oG, long oX, const Dims D) {
    __local E sums[ROUND][WG];
    const int item = get_local_id(0), o = get_group_id(1) / D.theirs;
    const I start = get_group_id(0) * (I)D.chunk, end = min(start + (I)D.chunk, (I)D.tiles / D.C);
    X += oX + (o / D.mine * D.theirs + get_group_id(1) % D.theirs) * (I)D.xc;
    G += oG;
    part += ((long)get_group_id(0) * get_num_groups(1) + get_group_id(1)) * TAPS;
    E sum[TAPS], g[TH][TW], s[SPANX];
    UNROLL for (int k = 0; k < TAPS; k++) sum[k] = 0;
    for (I tile = start + item; tile < end; tile += WG) {
        TILE_AT(tile)
        UNROLL for (int t = 0; t < TH; t++)
            read_gradient(g[t], G + ((plane * D.C + o) * D.Rh + i0 + t) * (I)D.Rw, 1, j0, D.Rw, i0 + t < D.Rh, (E)0);
        UNROLL for (int r = 0; r < SPANY; r++) {
            read_strip(s, X + plane * (I)D.xn + (y0 + r) * (I)D.xh, (I)D.xw, x0, D.W, (uint)(y0 + r) < (uint)D.H, (E)0);
            UNROLL for (int t = 0; t < TH; t++)
                if (MEETS_ROW(t, r) && i0 + t < D.Rh)
                    PAIRS(e, v) sum[TAP_ROW(t, r) * KW + v] = MAD(g[t][e], s[AT(e, v)], sum[TAP_ROW(t, r) * KW + v]);
        }
    }
    UNROLL for (int k0 = 0; k0 < TAPS; k0 += ROUND) {
        UNROLL for (int k = 0; k < ROUND; k++)
            if (k0 + k < TAPS) sums[k][item] = sum[k0 + k];
        for (int left = WG / 2; left > 0; left /= 2) {
            barrier(CLK_LOCAL_MEM_FENCE);
            if (item < left) {
                UNROLL for (int k = 0; k < ROUND; k++)
                    if (k0 + k < TAPS) sums[k][item] += sums[k][item + left];
            }
        }
        if (item == 0)
            for (int k = 0; k < ROUND && k0 + k < TAPS; k++) part[k0 + k] = sums[k][0];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
#endif
