// winograd_weights_cpu.cl: dW = G^T [sum over tiles of Z . V] G for CPU devices. Follows winograd_cpu.cl.
//
// A work-item does CB input channels, OB outputs and the tiles of a split. part (splits, groups, 9 * C, M) holds its sums;
// conv_weights_sum of conv_cpu.cl adds the splits.
// Launch: global = (ceil(C / CB) * ceil(M / OB), splits, groups), local = (1, 1, 1); `each` tiles per split.
__kernel void winograd_weights(__global E* restrict part, __global const S* restrict G, __global const S* restrict X, long og,
                               long ox, const Tiles D) {
    __local E V[POINTS * APART(TB, LDV)], Z[POINTS * APART(TB, LDZ)], P[POINTS * APART(CB, OB)], band[6 * PITCH * VW];
    int M = D.M, C = D.C, g = get_global_id(2), blocks = (M + OB - 1) / OB;
    int c0 = get_global_id(0) / blocks * CB, m0 = get_global_id(0) % blocks * OB, c1 = min(c0 + CB, C), m1 = min(m0 + OB, M);
    long q0 = get_global_id(1) * D.each, q1 = min(q0 + D.each, D.Q);
    part += ((get_global_id(1) * get_global_size(2) + g) * 9 * C) * M;
    G += og + g * M * D.yc;
    X += ox + g * C * D.xc;
    for (long q = q0; q < q1; q += TB) {
        long end = min(q + TB, q1);
        patches(V, LDV, band, X, q, end, c0, c1, D.H, D.W, D.xn, D.xc, D.xh, D.xspan - g * C * D.xc, &D);
        tiles(Z, LDZ, band, G, q, end, m0, m1, D.Ho, D.Wo, D.yn, D.yc, D.yh, D.yspan - g * M * D.yc, &D);
        for (int i = 0; i < POINTS; i++)
            for (int m = 0; m < m1 - m0; m += NR)
                for (int c = 0, step; c < c1 - c0; c += step) {
                    step = tile_rows(c1 - c0 - c);
                    over_tiles(step, P + i * APART(CB, OB) + c * OB + m, OB, V + i * APART(TB, LDV) + c, LDV, Z + i * APART(TB, LDZ) + m, LDZ, end - q,
                               q > q0);
                }
    }
    for (int c = 0; c < c1 - c0; c++)
        for (int m = 0; m < m1 - m0; m += VW) {
            __local const E* p = P + c * OB + m;
            T r[3][6], out[9];
#define D(k) LOC(p + (6 * k + x) * APART(CB, OB))
#pragma unroll
            for (int x = 0; x < 6; x++) TAPS_GRAD_AXIS(COLUMN, D(0), D(1), D(2), D(3), D(4), D(5))
#undef D
#define OUT_TAP(k, value) out[3 * y + k] = value
#pragma unroll
            for (int y = 0; y < 3; y++) TAPS_GRAD_AXIS(OUT_TAP, r[y][0], r[y][1], r[y][2], r[y][3], r[y][4], r[y][5])
            __global E* to = part + (long)(c0 + c) * 9 * M + m0 + m;
            for (int t = 0; t < 9; t++, to += M) {
                if (m + VW <= m1 - m0) GLOB(to) = out[t];
                else for (int k = 0; k < m1 - m0 - m; k++) to[k] = ((E*)&out[t])[k];
            }
        }
}
