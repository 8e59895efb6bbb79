// winograd_forward_cpu.cl: Y = A^T [F . V] A for CPU devices. Follows winograd_cpu.cl.

// F (groups, panels of NR outputs, 36, C * NR + VW) of weights (groups * M, C, 3, 3). Behind it, for each panel,
// whether the taps of a filter are so unequal that outputs which miss the largest must be computed directly.
// Launch: global = (panels, groups).
#define FILTER_STEP(C) ((C) * NR + VW)
__kernel void winograd_filters(__global E* F, __global const S* W, long oW, int M, int C) {
    __local E taps[72 * NR];
    __local int peaks[9 * NR];
    int panel = get_global_id(0), g = get_global_id(1), m = panel * NR, apart = FILTER_STEP(C), far = 0;
    __global E* marks = F + get_global_size(1) * get_global_size(0) * POINTS * apart + g * get_global_size(0);
    for (int i = 0; i < 9 * NR; i++) peaks[i] = 0;
    W += oW + ((long)g * M + m) * C * 9;
    F += ((long)g * get_global_size(0) + panel) * POINTS * apart;
    for (int c = 0; c < C; c += 8) {
        int channels = min(8, C - c), outs = min(NR, M - m);
        if (outs < NR) for (int i = 0; i < 72 * NR; i++) taps[i] = 0;
        copy_block(taps, NR, W + c * 9, channels * 9, outs, 1, C * 9);
        for (int i = 0; i < channels; i++)
            for (int k = 0; k < 9 * NR; k++) peaks[k] = LARGER(peaks[k], PEAK(taps[i * 9 * NR + k]));
        for (int i = 0; i < channels; i++)
            for (int h = 0; h < NR; h += VW) {
                T r[6][3];
                __local const E* s = taps + i * 9 * NR + h;
                __global E* to = F + (c + i) * NR + h;
#pragma unroll
                for (int x = 0; x < 3; x++)
                    TAPS_AXIS(COLUMN, LOC(s + x * NR), LOC(s + (3 + x) * NR), LOC(s + (6 + x) * NR))
#define FILTER(k, value) GLOB(to + (6 * y + k) * apart) = value
#pragma unroll
                for (int y = 0; y < 6; y++) TAPS_AXIS(FILTER, r[y][0], r[y][1], r[y][2])
            }
    }
    for (int i = 0; i < NR; i++) {
        int most = 0, least = LARGEST;
        for (int k = 0; k < 9; k++) {
            int peak = peaks[k * NR + i];
            most = LARGER(most, peak);
            if (peak > 0) least = min(least, peak);
        }
        far |= UNEQUAL(most, least);
    }
    marks[panel] = far;
}

// Of NR filters, sums over the channels that come to the 16 outputs of a tile: w * d added to those at `to`, which lie
// in P as its first 16 points do, or put there if not `old`.
INLINE void add_direct(__local E* to, const E* w, const E* d, int old) {
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 4; x++, to += APART(TB, OB)) {
            T a = old ? LOC(to) : (T)(0), b = old ? LOC(to + VW) : (T)(0);
#pragma unroll
            for (int k = 0; k < 9; k++) {
                T pixel = (T)(d[6 * (y + k / 3) + x + k % 3]);
                a += pixel * PRIV(w + k * NR);
                b += pixel * PRIV(w + k * NR + VW);
            }
            LOC(to) = a;
            LOC(to + VW) = b;
        }
}

// The outputs of tiles q0 .. q1 - 1 that are `far`, or all, and of NR filters or as many as there are, to P.
RARELY void direct(__local E* P, __local const int* far, int all, __global const S* X, __global const S* W, int outs,
                   long q0, long q1, const Tiles* D) {
    int C = D->C;
    for (int c = 0; c < C; c++, X += D->xc, W += 9) {
        E w[9 * NR], d[36];
        for (int i = 0; i < NR; i++)
            for (int k = 0; k < 9; k++) w[k * NR + i] = i < outs ? LOAD(W, (long)i * C * 9 + k) : (E)0;
        for (long q = q0; q < q1; q++) {
            if (!all && !far[q - q0]) continue;
            Run at = find_run(q, q + 1, D);
            gather_patch(d, X + at.n * D->xn, 4 * at.y - (int)D->py, 4 * at.x - (int)D->px, D->H, D->W, D->xh);
            add_direct(P + (q - q0) * OB, w, d, c > 0);
        }
    }
}

// VW channels of `high` rows of `wide` pixels at s (pixels follow each other) to y, transposed back.
INLINE void store_band(__global S* y, __local const E* s, int high, int wide, int left, const Tiles* D) {
    int flat = D->yh == wide && D->yw == 1, count = flat ? high * wide : wide;
    for (int r = 0; r < (flat ? 1 : high); r++, y += D->yh, s += wide * VW)
        for (int c = 0; c < min(VW, left); c += 8) {
            int j = 0, channels = min(8, left - c);
            __global S* to = y + c * D->yc;
            if (channels == 8 && D->yw == 1) {
                for (; j + 8 <= count; j += 8) transpose_back(to + j, D->yc, s + j * VW + c, VW);
                if (j < count && count >= 8) transpose_back(to + count - 8, D->yc, s + (count - 8) * VW + c, VW);
                if (count >= 8) continue;
            }
            for (int k = 0; k < channels; k++)
                for (int i = j; i < count; i++) STORE(to, k * D->yc + i * D->yw, s[i * VW + c + k]);
        }
}

// Launch: global = (ceil(Q / each), ceil(M / OB), groups), local = (1, 1, 1); each <= TB.
__kernel void winograd(__global S* restrict Y, __global const S* restrict X, __global const E* restrict F,
                       __global const S* restrict W, __global const S* restrict bias, long oY, long oX, long oW,
                       long obias, const Tiles D) {
    __local E V[POINTS * APART(TB, LDV)], P[POINTS * APART(TB, OB)], band[6 * PITCH * VW];
    __local int peaks[PEAKS], saved[TB * PATCH + 8], far[TB];
    int M = D.M, C = D.C, g = get_global_id(2), m0 = get_global_id(1) * OB, m1 = min(m0 + OB, M),
        apart = FILTER_STEP(C);
    long q0 = get_global_id(0) * D.each, q1 = min(q0 + D.each, D.Q), panels = (M + NR - 1) / NR;
    Y += oY + g * M * D.yc;
    __global const S* image = X + oX;
    X += oX + g * C * D.xc;
    __global const E* marks = F + get_global_size(2) * panels * POINTS * apart + g * panels;
    F += g * panels * POINTS * apart;
    W += oW + (long)g * M * C * 9;
    for (int i = 0; i < (q1 - q0) * PATCH; i++) saved[i] = -1;
    for (int c = 0; c < C; c += CB) {
        int kc = min(CB, C - c);
        patches(V, LDV, band, peaks, saved, X, q0, q1, c, c + kc, D.H, D.W, D.xn, D.xc, D.xh, D.xspan - g * C * D.xc,
                &D);
        for (int m = m0; m < m1; m += NR)
            for (int i = 0; i < POINTS; i++) {
                __global const E* f = F + ((long)(m / NR) * POINTS + i) * apart + c * NR;
                for (int t = 0, step; t < q1 - q0; t += step) {
                    step = tile_rows(q1 - q0 - t);
                    over_channels(step, P + i * APART(TB, OB) + t * OB + (m - m0), OB,
                                  V + i * APART(TB, LDV) + t * LDV, LDV, f, NR, kc, c > 0);
                }
            }
    }
    int some = 0, limit = -1;
    for (int t = 0; t < q1 - q0; t++) {
        int largest = contrast(saved + t * PATCH, 6, 6);
        far[t] = largest >= 0 && largest > find_limit(&limit, image, D.Q / (D.Ty * D.Tx), C * get_global_size(2), D.H,
                                                      D.W, D.xn, D.xc, D.xh, 1);
        some |= far[t];
    }
    for (int m = m0; m < m1; m += NR) {
        int all = marks[m / NR] != 0;
        if (some || all) direct(P + m - m0, far, all, X, W + (long)m * C * 9, m1 - m, q0, q1, &D);
    }
    for (long q = q0; q < q1;) {
        Run run = find_run(q, q1, &D);
        int high = min(4, (int)D.Ho - 4 * run.y), wide = min(4 * run.count, (int)D.Wo - 4 * run.x);
        for (int m = m0; m < m1; m += VW) {
            int all = marks[m / NR] != 0;
            T b = (T)(-0.0f);   // keeps the sign of a sum that is 0
            if (D.has_bias)
                for (int k = 0; k < min(VW, m1 - m); k++) ((E*)&b)[k] = LOAD(bias, obias + g * M + m + k);
            for (int t = 0; t < run.count; t++) {
                __local const E* p = P + (q - q0 + t) * OB + (m - m0);
                T r[4][6], out[4][4];
                if (all || far[q - q0 + t]) {
                    for (int i = 0; i < 16; i++) out[i / 4][i % 4] = LOC(p + i * APART(TB, OB));
                } else {
#define D(k) LOC(p + (6 * k + x) * APART(TB, OB))
#pragma unroll
                    for (int x = 0; x < 6; x++) SUMS_AXIS(COLUMN, D(0), D(1), D(2), D(3), D(4), D(5))
#undef D
#define OUT(k, value) out[y][k] = value
#pragma unroll
                    for (int y = 0; y < 4; y++) SUMS_AXIS(OUT, r[y][0], r[y][1], r[y][2], r[y][3], r[y][4], r[y][5])
                }
                int columns = min(4, wide - 4 * t);
                for (int y = 0; y < high; y++)
                    for (int x = 0; x < columns; x++)
                        LOC(band + (y * wide + 4 * t + x) * VW) = activate(out[y][x] + b, D.act);
            }
            store_band(Y + run.n * D.yn + 4 * run.y * D.yh + 4 * run.x * D.yw + m * D.yc, band, high, wide, m1 - m, &D);
        }
        q += run.count;
    }
}
