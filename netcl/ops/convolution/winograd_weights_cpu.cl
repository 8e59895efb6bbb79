// winograd_weights_cpu.cl: dW = G^T [sum over tiles of Z . V] G for CPU devices. Follows winograd_cpu.cl.
//
// A work-item does CB input channels, OB outputs and the tiles of a split. part (splits, groups, 9 * C, M) holds its
// sums; conv_weights_sum of conv_cpu.cl adds the splits.
// Tiles that are computed directly add nothing to P, but to part.

// p[i] += v[i] for the first `count` of VW lanes.
INLINE void add_lanes(__global E* p, T v, int count) {
    if (count >= VW) GLOB(p) += v;
    else for (int i = 0; i < count; i++) p[i] += ((E*)&v)[i];
}

// To part (9 * C, M): what a tile of high x wide outputs adds to the gradients of filters m0 .. m1 - 1 at channels
// c0 .. c1 - 1.
RARELY void add_direct(__global E* part, __local E* band, __local int* peaks, __global const S* G, __global const S* X,
                       Run at, int high, int wide, int c0, int c1, int m0, int m1, const Tiles* D) {
    for (int m = m0; m < m1; m += VW) {
        T g[16];
        long first = at.n * D->yn + m * D->yc;
        load_band(band, peaks, G + first, 4 * at.y, 4 * at.x, 4, 4, m1 - m, D->Ho, D->Wo, D->yc, D->yh, 0);
        for (int i = 0; i < 16; i++) g[i] = LOC(band + (i / 4 * PITCH + i % 4) * VW);
        for (int c = c0; c < c1; c++) {
            E d[36];
            gather_patch(d, X + at.n * D->xn + c * D->xc, 4 * at.y - (int)D->py, 4 * at.x - (int)D->px, D->H, D->W,
                         D->xh);
            for (int k = 0; k < 9; k++) {
                T sum = (T)(0);
                for (int y = 0; y < high; y++)
                    for (int x = 0; x < wide; x++) sum += (T)(d[6 * (y + k / 3) + x + k % 3]) * g[4 * y + x];
                add_lanes(part + (9L * c + k) * D->M + m, sum, m1 - m);
            }
        }
    }
}

// Launch: global = (ceil(C / CB) * ceil(M / OB), splits, groups), local = (1, 1, 1); `each` tiles per split.
__kernel void winograd_weights(__global E* restrict part, __global const S* restrict G, __global const S* restrict X,
                               long oG, long oX, const Tiles D) {
    __local E V[POINTS * APART(TB, LDV)], Z[POINTS * APART(TB, LDZ)], P[POINTS * APART(CB, OB)], band[6 * PITCH * VW];
    __local int peaks[PEAKS], saved[2 * TB * PATCH + 8];
    int M = D.M, C = D.C, g = get_global_id(2), blocks = (M + OB - 1) / OB, groups = get_global_size(2);
    int c0 = get_global_id(0) / blocks * CB, m0 = get_global_id(0) % blocks * OB, c1 = min(c0 + CB, C),
        m1 = min(m0 + OB, M);
    long q0 = get_global_id(1) * D.each, q1 = min(q0 + D.each, D.Q);
    part += ((get_global_id(1) * get_global_size(2) + g) * 9 * C) * M;
    __global const S *all_G = G + oG, *all_X = X + oX;
    G += oG + g * M * D.yc;
    X += oX + g * C * D.xc;
    int some = 0, limit_x = -1, limit_g = -1;
    for (long q = q0; q < q1; q += TB) {
        long end = min(q + TB, q1);
        for (int i = 0; i < 2 * TB * PATCH; i++) saved[i] = -1;
        patches(V, LDV, band, peaks, saved, X, q, end, c0, c1, D.H, D.W, D.xn, D.xc, D.xh, D.xspan - g * C * D.xc, &D);
        tiles(Z, LDZ, band, peaks, saved + TB * PATCH, G, q, end, m0, m1, D.Ho, D.Wo, D.yn, D.yc, D.yh,
              D.yspan - g * M * D.yc, &D);
        for (int t = 0; t < end - q; t++) {
            int x = contrast(saved + t * PATCH, 6, 6), y = contrast(saved + (TB + t) * PATCH, 4, 4);
            if (x >= 0) x = x > find_limit(&limit_x, all_X, D.Q / (D.Ty * D.Tx), groups * C, D.H, D.W, D.xn, D.xc,
                                           D.xh, 1);
            if (y >= 0) y = y > find_limit(&limit_g, all_G, D.Q / (D.Ty * D.Tx), groups * M, D.Ho, D.Wo, D.yn, D.yc,
                                           D.yh, D.yw);
            if (x <= 0 && y <= 0) continue;
            Run at = find_run(q + t, end, &D);
            int high = min(4, (int)D.Ho - 4 * at.y), wide = min(4, (int)D.Wo - 4 * at.x);
            for (int i = 0; i < POINTS; i++) {
                for (int c = 0; c < c1 - c0; c++) V[i * APART(TB, LDV) + t * LDV + c] = 0;
                for (int m = 0; m < m1 - m0; m++) Z[i * APART(TB, LDZ) + t * LDZ + m] = 0;
            }
            for (int i = 9 * c0; i < 9 * c1 && !some; i++)
                for (int m = m0; m < m1; m++) part[(long)i * M + m] = 0;
            some = 1;
            add_direct(part, band, peaks, G, X, at, high, wide, c0, c1, m0, m1, &D);
        }
        for (int i = 0; i < POINTS; i++)
            for (int m = 0; m < m1 - m0; m += NR)
                for (int c = 0, step; c < c1 - c0; c += step) {
                    step = tile_rows(c1 - c0 - c);
                    over_tiles(step, P + i * APART(CB, OB) + c * OB + m, OB, V + i * APART(TB, LDV) + c, LDV,
                               Z + i * APART(TB, LDZ) + m, LDZ, end - q, q > q0);
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
                if (some) add_lanes(to, out[t], m1 - m0 - m);
                else if (m + VW <= m1 - m0) GLOB(to) = out[t];
                else for (int k = 0; k < m1 - m0 - m; k++) to[k] = ((E*)&out[t])[k];
            }
        }
}
