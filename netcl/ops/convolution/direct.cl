// direct.cl: convolutions of filters with few taps, as first layers have: direct sums out of registers.
//
//   Y[n, o, i, j] = act(bias[o] + sum over c, u, v of Wt[o, c, u, v] X[n, c, i sy + u dy - py, j sx + v dx - px])
//
// A work-item holds the C * KH * KW input pixels of EACH output pixels, a whole group apart, and walks over OUTS output
// channels. Their filters lie in local memory, in rows of whole fours, and all work-items read the same one at a time.
// E is the compute type, S the storage type, I the type of offsets.
// Launch: local (WG), global (groups of WG * EACH output pixels, ceil(O / OUTS)).
#define TAPS (C * KH * KW)
#define ROW ((TAPS + 3) / 4 * 4)
#define JOIN4(E) JOIN(E, 4)
typedef JOIN4(E) E4;

typedef struct {
    long xn, xc, xh, xw, yn, yc, yh, yw;
    int Q, O, H, W, sy, sx, py, px, dy, dx, Ho, Wo;
} Dims;

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void conv_direct(
    __global S* Y, __global const S* X, __global const S* Wt, __global const S* bias, long oY, long oX, long oWt,
    long obias, const Dims D) {
    __local __attribute__((aligned(64))) E filters[OUTS * ROW];
    const int item = get_local_id(0), q0 = get_group_id(0) * (WG * EACH) + item, o0 = get_group_id(1) * OUTS;
    const int outs = min(OUTS, D.O - o0);
    Wt += oWt + o0 * TAPS;
    for (int i = item; i < OUTS * ROW; i += WG) {
        const int o = i / ROW, k = i - o * ROW;
        filters[i] = k < TAPS && o < outs ? LOAD(Wt, o * TAPS + k) : (E)0;
    }
    X += oX;
    Y += oY + o0 * D.yc;
    E x[EACH][ROW];
    I to[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int q = min(q0 + e * WG, D.Q - 1), P = D.Ho * D.Wo, n = q / P, p = q - n * P, i = p / D.Wo,
            j = p - i * D.Wo;
        const int row = i * D.sy - D.py, column = j * D.sx - D.px;
        const I from = n * (I)D.xn + row * (I)D.xh + column * (I)D.xw;
        to[e] = n * (I)D.yn + i * (I)D.yh + j * (I)D.yw;
#pragma unroll
        for (int k = 0; k < ROW; k++) {
            const int c = k / (KH * KW), u = k / KW % KH * D.dy, v = k % KW * D.dx;
            const bool inside = k < TAPS && (uint)(row + u) < (uint)D.H && (uint)(column + v) < (uint)D.W;
            x[e][k] = inside ? LOAD(X, from + c * (I)D.xc + u * (I)D.xh + v * (I)D.xw) : (E)0;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int o = 0; o < outs; o++) {
        __local const E* f = filters + o * ROW;
        E sum[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) sum[e] = 0;
#pragma unroll
        for (int k = 0; k < ROW; k += 4) {
            const E4 four = *(__local const E4*)(f + k);
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                sum[e] = MAD(four.s0, x[e][k], sum[e]);
                if (k + 1 < TAPS) sum[e] = MAD(four.s1, x[e][k + 1], sum[e]);
                if (k + 2 < TAPS) sum[e] = MAD(four.s2, x[e][k + 2], sum[e]);
                if (k + 3 < TAPS) sum[e] = MAD(four.s3, x[e][k + 3], sum[e]);
            }
        }
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (q0 + e * WG < D.Q) STORE(Y, to[e] + o * (I)D.yc, FINISH(sum[e], o0 + o));
    }
}
