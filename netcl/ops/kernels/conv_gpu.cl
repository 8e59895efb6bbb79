// conv_gpu.cl: 2-D convolution on any device with work-groups, as matrix products whose operands are read in place.
//
//   conv          Y (M, Q) = act(W (M, K) X (K, Q) + bias)   M output channels of a group, Q = N * Ho * Wo pixels,
//   conv_weights  dW (M, K) = G (M, Q) X^T (Q, K)            K = C * KH * KW taps; X(k, q) is the input pixel that tap
//                                                            k of pixel q reads, or 0 in the padding.
//
// A work-group computes a BM x BN tile through BK-deep steps in local memory, RM x RN elements per work-item.
// Launch: local = (BN / RN, BM / RM, 1).   E is the compute type, S the storage type; sums stay in E.
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

typedef struct {
    long M, Q, K, C, H, W, KH, KW, sy, sx, py, px, dy, dx, Ho, Wo, xn, xc, xh, xw, yn, yc, yh, yw, act, has_bias, depth;
} Dims;

#ifdef EPILOGUE
static inline E activate(E x, int act) { return act == 1 ? RELU(x) : act == 2 ? GELU(x) : act == 3 ? SILU(x) : x; }
#endif

// X(k, q) of group g.
static inline E pixel(__global const S* X, int g, int k, long q, const Dims* D) {
    int P = D->Ho * D->Wo, window = D->KH * D->KW, n = q / P, p = q % P, c = k / window, t = k % window;
    int y = p / (int)D->Wo * (int)D->sy - (int)D->py + t / (int)D->KW * (int)D->dy;
    int x = p % (int)D->Wo * (int)D->sx - (int)D->px + t % (int)D->KW * (int)D->dx;
    if (y < 0 || y >= D->H || x < 0 || x >= D->W) return 0;
    return LOAD(X, n * D->xn + (g * D->C + c) * D->xc + y * D->xh + x * D->xw);
}

// Element of a (n, channel, y, x) tensor with strides yn.. at pixel q of its first channel.
static inline long place(long q, const Dims* D) {
    long P = D->Ho * D->Wo, n = q / P, p = q % P;
    return n * D->yn + p / D->Wo * D->yh + p % D->Wo * D->yw;
}

#define CLEAR for (int i = 0; i < RM; i++) for (int j = 0; j < RN; j++) c[i][j] = 0;
#define MULTIPLY(depth)                                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                        \
    for (int k = 0; k < (depth); k++) {                                  \
        E b[RN];                                                         \
        for (int j = 0; j < RN; j++) b[j] = Bs[k][x + j * GN];           \
        for (int i = 0; i < RM; i++) {                                   \
            E a = As[k][y + i * GM];                                     \
            for (int j = 0; j < RN; j++) c[i][j] += a * b[j];            \
        }                                                                \
    }                                                                    \
    barrier(CLK_LOCAL_MEM_FENCE);

// Launch: groups of work-items (ceil(Q / BN), ceil(M / BM), groups). Y has any strides; weights are (groups, M, K).
__kernel void conv(__global S* Y, __global const S* X, __global const S* Wt, __global const S* bias, long oy, long ox,
                   long ow, long ob, const Dims D) {
    __local E As[BK][BM + 1], Bs[BK][BN];
    int x = get_local_id(0), y = get_local_id(1), item = y * GN + x, g = get_global_id(2), M = D.M, K = D.K;
    long q0 = get_group_id(0) * (long)BN;
    int m0 = get_group_id(1) * BM;
    X += ox;
    Wt += ow + (long)g * M * K;
    Y += oy + g * M * D.yc;
    E c[RM][RN];
    CLEAR
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int e = item; e < BM * BK; e += GM * GN) {
            int m = e / BK, k = e % BK;
            As[k][m] = m0 + m < M && k0 + k < K ? LOAD(Wt, (long)(m0 + m) * K + k0 + k) : (E)0;
        }
        for (int e = item; e < BN * BK; e += GM * GN) {
            int n = e % BN, k = e / BN;
            Bs[k][n] = q0 + n < D.Q && k0 + k < K ? pixel(X, g, k0 + k, q0 + n, &D) : (E)0;
        }
        MULTIPLY(min(BK, K - k0))
    }
    for (int j = 0; j < RN; j++) {
        long q = q0 + x + j * GN;
        if (q >= D.Q) continue;
        long at = place(q, &D);
        for (int i = 0; i < RM; i++) {
            int m = m0 + y + i * GM;
            if (m >= M) continue;
            E v = c[i][j];
#ifdef EPILOGUE
            if (D.has_bias) v += LOAD(bias, ob + g * M + m);
            v = activate(v, D.act);
#endif
            STORE(Y, at + m * D.yc, v);
        }
    }
}

// part (splits, groups, M, K) = sums over `depth` pixels each. Launch: groups of work-items (ceil(K / BN), ceil(M / BM),
// splits * number of groups). conv_weights_sum adds the splits.
__kernel void conv_weights(__global E* part, __global const S* G, __global const S* X, long og, long ox, int groups,
                           const Dims D) {
    __local E As[BK][BM + 1], Bs[BK][BN];
    int x = get_local_id(0), y = get_local_id(1), item = y * GN + x, M = D.M, K = D.K;
    int g = get_global_id(2) % groups, k0 = get_group_id(0) * BN, m0 = get_group_id(1) * BM;
    long q0 = get_global_id(2) / groups * D.depth, q1 = min(q0 + D.depth, D.Q);
    part += get_global_id(2) * M * K;
    G += og + g * M * D.yc;
    X += ox;
    E c[RM][RN];
    CLEAR
    for (long q = q0; q < q1; q += BK) {
        for (int e = item; e < BM * BK; e += GM * GN) {
            int m = e / BK, k = e % BK;
            As[k][m] = m0 + m < M && q + k < q1 ? LOAD(G, place(q + k, &D) + (m0 + m) * D.yc) : (E)0;
        }
        for (int e = item; e < BN * BK; e += GM * GN) {
            int n = e / BK, k = e % BK;
            Bs[k][n] = k0 + n < K && q + k < q1 ? pixel(X, g, k0 + n, q + k, &D) : (E)0;
        }
        MULTIPLY((int)min((long)BK, q1 - q))
    }
    for (int i = 0; i < RM; i++)
        for (int j = 0; j < RN; j++) {
            int m = m0 + y + i * GM, k = k0 + x + j * GN;
            if (m < M && k < K) part[(long)m * K + k] = c[i][j];
        }
}

// dW (all elements) = sum over splits. Launch: global rounded up to whole groups.
__kernel void conv_weights_sum(__global S* dW, __global const E* part, long od, long size, long splits) {
    long i = get_global_id(0);
    if (i >= size) return;
    E sum = 0;
    for (long s = 0; s < splits; s++) sum += part[s * size + i];
    STORE(dW, od + i, sum);
}
