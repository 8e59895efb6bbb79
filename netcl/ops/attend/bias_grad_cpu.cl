// bias_grad_cpu.cl: gradient of an additive mask: the sums of ds over the axes along which it was broadcast. Follows
// attend_grad_cpu.cl.
//
// A work-item sums BQ queries by BK keys of every sample, head and block that its position in the grid leaves open:
//   out (B or 1, H or 1, Tq, Tk), row_step = Tk, column_step = 1
//   out (B, H, 1, Tk), row_step = 0: rows are added up        out (B, H, Tq, 1), column_step = 0: columns are
// AWAY: each ds is taken times -|j - (i + off)|, for the gradient of slopes.
// Launch: (`down` blocks of queries * `across` blocks of keys, heads of out, samples of out).
__kernel void bias_grad(__global E* restrict out, __global const S* restrict q, __global const S* restrict k,
                        __global const S* restrict v, __global const S* restrict g, __global const E* restrict lse,
                        __global const E* restrict delta, long oq, long ok, long ov, long og, long olse,
                        MARKS_ARGS E scale, long across, long row_step, long column_step, const Dims d) {
    __local E KT[BK * DP], VT[BK * DP], Q[BQ * LQ], G[BQ * LQ], P[BQ * LS], dP[BQ * LS], sums[BQ * LS];
    BEND DROPS
    const int D = d.D, Dv = d.Dv;
    const long down = get_global_size(0) / across, i0 = get_global_id(0) / across * BQ;
    const long j0 = get_global_id(0) % across * BK;
    for (int x = 0; x < BQ * LS; x += VW) LOC(sums + x) = (V)(0);
    for (long b = get_global_id(2); b < d.B; b += get_global_size(2))
        for (long h = get_global_id(1); h < d.H; h += get_global_size(1)) {
            MARKS(b, h)
            for (long q0 = i0; q0 < d.Tq; q0 += down * BQ) {
                int rows = d.Tq - q0 < BQ ? (int)(d.Tq - q0) : BQ, all = up(rows, MR);
                long at = (b * d.H + h) * d.Tq + q0;
                copy_rows(Q, q + oq + b * d.qb + h * d.qh + q0 * d.qt, rows, all, d.qt, D, scale * LOG2E);
                copy_rows(G, g + og + b * d.gb + h * d.gh + q0 * d.gt, rows, all, d.gt, Dv, 1);
                for (long kb = j0; kb < d.Tk; kb += across * BK) {
                    int n = d.Tk - kb < BK ? (int)(d.Tk - kb) : BK;
                    if (hi_of(&d, q0 + rows - 1) <= kb || lo_of(&d, q0) >= kb + n) continue;
                    for (int j = 0; j < n; j += NR) {
                        transpose_panel(KT + j * DP, NR, k + ok + b * d.kb + h / d.G * d.kh + (kb + j) * d.kt, n - j,
                                        d.kt, D, 1);
                        transpose_panel(VT + j * DP, NR, v + ov + b * d.vb + h / d.G * d.vh + (kb + j) * d.vt, n - j,
                                        d.vt, Dv, 1);
                        for (int r = 0; r < rows; r += MR) {
                            scores(P + r * LS + j, LS, Q + r * LQ, LQ, KT + j * DP, NR, D, P);
                            scores(dP + r * LS + j, LS, G + r * LQ, LQ, VT + j * DP, NR, Dv, P);
                        }
                    }
                    for (int r = 0; r < rows; r++) {
                        long i = q0 + r;
                        E x = lse[olse + at + r] * LOG2E;
                        __local E *t = dP + r * LS, *s = sums + r * LS;
                        weights(P + r * LS, t, bend, z, lo_of(&d, i), hi_of(&d, i), i, kb, n, x == NONE ? INFINITY : x,
                                delta[at + r], marks, &d);
#ifdef AWAY
                        for (int j = 0; j < n; j++) t[j] *= -(E)abs((int)(kb + j) - OWN(&d, i));
#endif
                        for (int j = 0; j < n; j++) s[j] += t[j];
                    }
                }
            }
        }
    const int rows = d.Tq - i0 < BQ ? (int)(d.Tq - i0) : BQ, n = d.Tk - j0 < BK ? (int)(d.Tk - j0) : BK;
    out += (get_global_id(2) * get_global_size(1) + get_global_id(1)) * (row_step ? d.Tq : 1)
           * (column_step ? d.Tk : 1);
    if (row_step == 0)
        for (int r = 1; r < BQ; r++)
            for (int j = 0; j < n; j++) sums[j] += sums[r * LS + j];
    if (column_step == 0)
        for (int r = 0; r < rows; r++)
            for (int j = 1; j < BK; j++) sums[r * LS] += sums[r * LS + j];
    for (int r = 0; r < (row_step ? rows : 1); r++)
        for (int j = 0; j < (column_step ? n : 1); j++)
            out[(i0 + r) * row_step + (j0 + j) * column_step] = sums[r * LS + j];
}
