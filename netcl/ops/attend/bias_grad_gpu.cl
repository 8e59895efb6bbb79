// bias_grad_gpu.cl: gradient of an additive mask: the sums of ds over the axes along which it was broadcast. Follows
// attention_gpu.cl.
//
// A work-group sums BR queries by BC keys of every sample, head and block that its position in the grid leaves open:
//   out (B or 1, H or 1, Tq, Tk), row_step = Tk, column_step = 1
//   out (B, H, 1, Tk), row_step = 0: rows are added up        out (B, H, Tq, 1), column_step = 0: columns are
// AWAY: each ds is taken times -|j - (i + off)|, for the gradient of slopes.
// Launch: local = (GX, GY, 1), global = (`down` blocks of queries * `across` blocks of keys * GX, heads of out * GY,
// samples of out).
__kernel GROUP void bias_grad(__global E* restrict out, __global const S* restrict q, __global const S* restrict k,
                              __global const S* restrict v, __global const S* restrict g,
                              __global const E* restrict lse, __global const E* restrict delta, long oq, long ok,
                              long ov, long og, long olse, MARKS_ARGS E scale, long across, long row_step,
                              long column_step, const Dims d) {
    __local E slices[SLICES] __attribute__((aligned(32))), P[BC * LA] __attribute__((aligned(32)));
    const int x = get_local_id(0), y = get_local_id(1), D = d.D, Tq = d.Tq, Tk = d.Tk;
    const int down = get_num_groups(0) / across, i0 = get_group_id(0) / across * BR, j0 = get_group_id(0) % across * BC;
    V s[TR], u[TR], sums[TR];
    UNROLL for (int i = 0; i < TR; i++) s[i] = sums[i] = (V)(0);
    for (long b = get_group_id(2); b < d.B; b += get_num_groups(2))
        for (long h = get_group_id(1); h < d.H; h += get_num_groups(1)) {
            MARKS(b, h)
            for (int q0 = i0; q0 < Tq; q0 += down * BR) {
                const int rows = min(BR, Tq - q0);
                const long first = (b * d.H + h) * d.Tq + q0;
                __global const S *qs = q + oq + b * d.qb + h * d.qh + q0 * d.qt;
                __global const S *gs = g + og + b * d.gb + h * d.gh + q0 * d.gt;
                for (int kb = j0; kb < Tk; kb += (int)across * BC) {
                    if (hi_of(&d, q0 + rows - 1) <= kb || lo_of(&d, q0) >= kb + BC) continue;
                    const int n = min(BC, Tk - kb), j = kb + x * TC;
                    __global const S *ks = k + ok + b * d.kb + h / d.G * d.kh + kb * d.kt;
                    __global const S *vs = v + ov + b * d.vb + h / d.G * d.vh + kb * d.vt;
                    for (int z = 0; z < 2; z++) {
                        COPY(u, s);
                        product(s, slices, z ? qs : gs, rows, z ? d.qt : d.gt, z ? ks : vs, n, z ? d.kt : d.vt,
                                z ? D : (int)d.Dv);
                    }
                    UNROLL for (int i = 0; i < TR; i++) {
                        const int r = y * TR + i, at = q0 + r, lo = lo_of(&d, at), hi = r < rows ? hi_of(&d, at) : 0;
                        const E top = r < rows ? lse[olse + first + r] * LOG2E : NONE;
                        const E dot = r < rows ? delta[first + r] : 0;
                        V bend;
                        s[i] *= scale * LOG2E;
                        SHAPE_KEYS(s[i], bend, at, j)
                        const V p = WEIGHT(s[i], top == NONE ? INFINITY : top);
                        u[i] = DROP(u[i], at, j);
                        V t = (V)(SLOPE(p.x, u[i].x, dot), SLOPE(p.y, u[i].y, dot), SLOPE(p.z, u[i].z, dot),
                                  SLOPE(p.w, u[i].w, dot));
#ifdef AWAY
                        const int own = OWN(&d, at);
                        t *= -(V)(abs(j - own), abs(j + 1 - own), abs(j + 2 - own), abs(j + 3 - own));
#endif
                        sums[i].x += SEEN(lo, hi, j) && s[i].x != NONE ? t.x : 0;
                        sums[i].y += SEEN(lo, hi, j + 1) && s[i].y != NONE ? t.y : 0;
                        sums[i].z += SEEN(lo, hi, j + 2) && s[i].z != NONE ? t.z : 0;
                        sums[i].w += SEEN(lo, hi, j + 3) && s[i].w != NONE ? t.w : 0;
                    }
                }
            }
        }
    out += (get_group_id(2) * get_num_groups(1) + get_group_id(1)) * (row_step ? d.Tq : 1) * (column_step ? d.Tk : 1);
    SYNC;
    keep(P, sums);
    SYNC;
    for (int at = LID; at < (row_step ? BR : 1) * (column_step ? BC : 1); at += ITEMS) {
        const int c = column_step ? at % BC : 0, r = column_step ? at / BC : at;
        E t = 0;
        for (int i = r; i < (row_step ? r + 1 : BR); i++)
            for (int j = c; j < (column_step ? c + 1 : BC); j++) t += P[j * LA + i];
        if ((row_step == 0 || i0 + r < Tq) && (column_step == 0 || j0 + c < Tk))
            out[(i0 + r) * row_step + (j0 + c) * column_step] = t;
    }
}
