// conv_gpu.cl: 2-D convolution on any device with work-groups, as matrix products whose operands are read in place.
//
//   conv          Y (M, Q) = act(W (M, K) X (K, Q) + bias)   M output channels of a group, Q = N * Ho * Wo pixels,
//   conv_weights  dW (M, K) = G (M, Q) X^T (Q, K)            K = C * KH * KW taps; X(k, q) is the input pixel that tap
//                                                            k of pixel q reads, or 0 in the padding.
//
// taps[k] = (channel, row and column relative to the first one that a pixel reads, 0). Tiles as in tile_gpu.cl: the next
// step is loaded into registers while this one is multiplied. conv_direct and conv_weights_direct are for groups of few
// channels, where a tile would be nearly empty: one output pixel per work-item, one filter per work-group.
// E is the compute type, S the storage type; sums stay in E. USE_<KERNEL> picks the kernel of a program: drivers compile all
// that they see, and some count the local memory of all.
typedef struct {
    long M, Q, K, C, H, W, sy, sx, py, px, Ho, Wo, xn, xc, xh, xw, yn, yc, yh, yw, depth, split_step;
} Dims;

#ifdef EPILOGUE
#define FINISH(v, m) ACT((v) + (HAS_BIAS ? LOAD(bias, ob + (m)) : (E)0))
#else
#define FINISH(v, m) (v)
#endif

// Output pixel q: where it lies in Y (or G), where the first pixel it reads lies in X, and that one's row and column.
typedef struct {
    I in, out;
    int row, column;
} Pixel;
static inline Pixel pixel(int q, const Dims* D) {
    const int P = (int)D->Ho * (int)D->Wo, n = q / P, p = q - n * P, i = p / (int)D->Wo, j = p - i * (int)D->Wo;
    Pixel at;
    at.row = i * (int)D->sy - (int)D->py;
    at.column = j * (int)D->sx - (int)D->px;
    at.in = n * (I)D->xn + at.row * (I)D->xh + at.column * (I)D->xw;
    at.out = n * (I)D->yn + i * (I)D->yh + j * (I)D->yw;
    return at;
}
static inline E tap(__global const S* X, Pixel at, int4 t, const Dims* D) {
    const bool inside = (uint)(at.row + t.y) < (uint)D->H && (uint)(at.column + t.z) < (uint)D->W;
    return inside ? LOAD(X, at.in + t.x * (I)D->xc + t.y * (I)D->xh + t.z * (I)D->xw) : (E)0;
}

// The i-th load of a work-item: along the tile's rows (or columns) first, or along k first.
#define LOADS(ROWS) ((ROWS * BK + WG - 1) / WG)
#define COLUMNS (WG % BN == 0 ? 1 : BN % WG == 0 ? BN / WG : LOADS(BN))   // different columns of a work-item's loads
#define INSIDE(i, ROWS) (ROWS * BK % WG == 0 || item + (i) * WG < ROWS * BK)

#ifdef USE_CONV
// Launch: groups (tiles of Q * tiles of M, groups of channels).
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void conv(
    __global S* Y, __global const S* X, __global const S* Wt, __global const S* bias, __global const int4* taps, long oy,
    long ox, long ow, long ob, const Dims D) {
    __local __attribute__((aligned(64))) E As[2 * BK * BM], Bs[2 * BK * BN];
    const int item = get_local_id(0), tiles_m = (int)((D.M + BM - 1) / BM), tile = get_group_id(0), g = get_group_id(1);
    const int m0 = tile % tiles_m * BM, q0 = tile / tiles_m * BN, k1 = D.K;
    PLACE_ITEM();
    X += ox + g * D.C * D.xc;
    Wt += ow + (long)g * D.M * D.K;
    Y += oy + g * D.M * D.yc;
    Pixel at[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) at[i] = pixel(min(q0 + (item + i * WG) % BN, (int)D.Q - 1), &D);
#define GATHER() \
    _Pragma("unroll") for (int i = 0; i < LOADS(BN); i++) { \
        const int k = k0 + (item + i * WG) / BN; \
        b_next[i] = k < k1 && INSIDE(i, BN) ? tap(X, at[i % COLUMNS], taps[k], &D) : (E)0; \
    }
#define SCATTER(to) \
    _Pragma("unroll") for (int i = 0; i < LOADS(BN); i++) \
        if (INSIDE(i, BN)) (to)[item + i * WG] = b_next[i];
    E c[RM][RN], b_next[LOADS(BN)];
    E4 a_next[COUNT(BM, A_VEC)];
    CLEAR()
    int k0 = 0, turn = 0;
    FETCH(a_next, Wt, D.K, 1, m0, D.M, BM, A_VEC, 1)
    GATHER()
    PUT(As, a_next, BM, A_VEC, 1)
    SCATTER(Bs)
    barrier(CLK_LOCAL_MEM_FENCE);
    while (k0 < k1) {
        k0 += BK;
        const bool more = k0 < k1;
        if (more) {
            Wt += BK;
            FETCH(a_next, Wt, D.K, 1, m0, D.M, BM, A_VEC, 1)
            GATHER()
        }
        __local const E* as = As + turn * BK * BM;
        __local const E* bs = Bs + turn * BK * BN;
        MULTIPLY(as, bs, 1, 0)
        turn ^= 1;
        if (more) {
            PUT(As + turn * BK * BM, a_next, BM, A_VEC, 1)
            SCATTER(Bs + turn * BK * BN)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#pragma unroll
    for (int j = 0; j < RN; j++) {
        const int q = q0 + COLUMN(j);
        if (q >= D.Q) continue;
        const I to = pixel(q, &D).out;
#pragma unroll
        for (int i = 0; i < RM; i++) {
            const int m = m0 + ROW(i);
            if (m < D.M) STORE(Y, to + m * (I)D.yc, FINISH(c[i][j], g * D.M + m));
        }
    }
}
#endif

#ifdef USE_CONV_WEIGHTS
// part (splits, groups, M, K) = sums over `depth` pixels each; conv_parts.cl adds the splits. G has the strides of Y.
// Launch: groups (tiles of K * tiles of M, splits * groups of channels).
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void conv_weights(
    __global E* part, __global const S* G, __global const S* X, __global const int4* taps, long og, long ox, int groups,
    const Dims D) {
    __local __attribute__((aligned(64))) E As[2 * BK * BM], Bs[2 * BK * BN];
    __local int4 columns[BN];
    const int item = get_local_id(0), tiles_m = (int)((D.M + BM - 1) / BM), tile = get_group_id(0);
    const int g = get_group_id(1) % groups, m0 = tile % tiles_m * BM, n0 = tile / tiles_m * BN;
    const int q0 = get_group_id(1) / groups * (int)D.depth, k1 = min((long)q0 + D.depth, D.Q);
    PLACE_ITEM();
    X += ox + g * D.C * D.xc;
    G += og + g * D.M * D.yc;
    part += get_group_id(1) * D.M * D.K;
    for (int n = item; n < BN; n += WG) columns[n] = taps[min(n0 + n, (int)D.K - 1)];
    barrier(CLK_LOCAL_MEM_FENCE);
    E c[RM][RN], a_next[LOADS(BM)], b_next[LOADS(BN)];
    CLEAR()
#define GATHER_BOTH() \
    _Pragma("unroll") for (int i = 0; i < LOADS(BM); i++) { \
        const int q = k0 + (item + i * WG) % BK, m = m0 + (item + i * WG) / BK; \
        a_next[i] = q < k1 && m < D.M && INSIDE(i, BM) ? LOAD(G, pixel(q, &D).out + m * (I)D.yc) : (E)0; \
    } \
    _Pragma("unroll") for (int i = 0; i < LOADS(BN); i++) { \
        const int q = k0 + (item + i * WG) % BK, n = (item + i * WG) / BK; \
        b_next[i] = q < k1 && INSIDE(i, BN) ? tap(X, pixel(q, &D), columns[n], &D) : (E)0; \
    }
#define PUT_TURNED(to, v, ROWS) \
    _Pragma("unroll") for (int i = 0; i < LOADS(ROWS); i++) { \
        const int k = (item + i * WG) % BK, r = (item + i * WG) / BK; \
        if (INSIDE(i, ROWS)) (to)[k * ROWS + SWAP_ROW(r, k, ROWS, 1)] = v[i]; \
    }
    int k0 = q0, turn = 0;
    GATHER_BOTH()
    PUT_TURNED(As, a_next, BM)
    PUT_TURNED(Bs, b_next, BN)
    barrier(CLK_LOCAL_MEM_FENCE);
    while (k0 < k1) {
        k0 += BK;
        const bool more = k0 < k1;
        if (more) { GATHER_BOTH() }
        __local const E* as = As + turn * BK * BM;
        __local const E* bs = Bs + turn * BK * BN;
        MULTIPLY(as, bs, 1, 1)
        turn ^= 1;
        if (more) {
            PUT_TURNED(As + turn * BK * BM, a_next, BM)
            PUT_TURNED(Bs + turn * BK * BN, b_next, BN)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++) {
            const int m = m0 + ROW(i), n = n0 + COLUMN(j);
            if (m < D.M && n < D.K) part[(long)m * D.K + n] = c[i][j];
        }
}
#endif

#ifdef USE_CONV_DIRECT
// Launch: one output element per work-item, (Q rounded up to whole groups, output channels).
__kernel void conv_direct(__global S* Y, __global const S* X, __global const S* Wt, __global const S* bias,
                          __global const int4* taps, long oy, long ox, long ow, long ob, const Dims D) {
    const int q = get_global_id(0), o = get_global_id(1), g = o / (int)D.M;
    if (q >= D.Q) return;
    const Pixel at = pixel(q, &D);
    X += ox + g * D.C * D.xc;
    Wt += ow + o * D.K;
    E sum = 0;
    for (int k = 0; k < D.K; k++) sum += LOAD(Wt, k) * tap(X, at, taps[k], &D);
    STORE(Y, oy + o * (I)D.yc + at.out, FINISH(sum, o));
}
#endif

#ifdef USE_CONV_WEIGHTS_DIRECT
// part (splits, output channels, K) as in conv_weights, FEW taps of one filter per group of DIRECT work-items.
// Launch: groups (ceil(K / FEW), output channels, splits).
#define FEW 9
#ifndef DIRECT
#define DIRECT 128
#endif
__kernel __attribute__((reqd_work_group_size(DIRECT, 1, 1))) void conv_weights_direct(
    __global E* part, __global const S* G, __global const S* X, __global const int4* taps, long og, long ox, int groups,
    const Dims D) {
    __local E sums[DIRECT];
    const int item = get_local_id(0), t0 = get_group_id(0) * FEW, o = get_group_id(1), split = get_group_id(2);
    const int q1 = (int)min((split + 1) * D.depth, D.Q);
    X += ox + o / (int)D.M * D.C * D.xc;
    G += og + o * D.yc;
    part += ((long)split * get_num_groups(1) + o) * D.K;
    E sum[FEW];
#pragma unroll
    for (int t = 0; t < FEW; t++) sum[t] = 0;
    for (int q = split * (int)D.depth + item; q < q1; q += DIRECT) {
        const Pixel at = pixel(q, &D);
        const E gradient = LOAD(G, at.out);
#pragma unroll
        for (int t = 0; t < FEW; t++) sum[t] += gradient * tap(X, at, taps[min(t0 + t, (int)D.K - 1)], &D);
    }
#pragma unroll
    for (int t = 0; t < FEW; t++) {
        sums[item] = sum[t];
        for (int half_ = DIRECT / 2; half_ > 0; half_ /= 2) {
            barrier(CLK_LOCAL_MEM_FENCE);
            if (item < half_) sums[item] += sums[item + half_];
        }
        if (item == 0 && t0 + t < D.K) part[t0 + t] = sums[0];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
#endif
