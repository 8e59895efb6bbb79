// scan.cl: running sums along an axis. x (outer, n, cols), any strides -> out, contiguous. S is the type of x, R that
// of out, ACC that of the sums, I that of index arithmetic.
//
// The axis is cut into `parts` of `span` elements. With `totals` the kernel only writes each part's sum to
// carry[o, part, c]; without, each part starts from carry[o, part - 1, c], which then holds running sums of the parts.
//
// ROWS (GPUs, cols == 1): a group of WG items per (o, part), four elements per item, then a scan over the items.
// Otherwise an item walks `step` runs (o, part, COLS columns) one after the other; on CPU devices COLS makes vectors.
#ifdef R_NARROW
#define PUT(i, v) JOIN(STORE_, R_NARROW)(out, i, (float)(v))
#else
#define PUT(i, v) (out[i] = (R)(v))
#endif
#define LEAST(a, b) ((a) < (b) ? (a) : (b))

#ifdef ROWS
#define EACH 4

__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void scan(__global const S* restrict x, __global ACC* restrict carry, __global R* restrict out, I ox, I x_o, I x_n,
          I x_c, I n, I cols, I outer, I parts, I span, I step, int totals) {
    __local ACC sums[2][WG];
    const int lid = get_local_id(0);
    const I run = get_group_id(0), o = run / parts, part = run - o * parts;
    const I end = LEAST((part + 1) * span, n), from = ox + o * x_o;
    ACC base = part > 0 && !totals ? carry[run - 1] : (ACC)0;
    for (I tile = part * span; tile < end; tile += WG * EACH) {
        const I k = tile + lid * EACH;
        ACC v[EACH];
        for (int e = 0; e < EACH; e++) {
            v[e] = k + e < end ? (ACC)LOAD(x, from + (k + e) * x_n) : (ACC)0;
            if (e > 0) v[e] += v[e - 1];
        }
        int turn = 0;
        sums[0][lid] = v[EACH - 1];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int reach = 1; reach < WG; reach *= 2) {
            sums[1 - turn][lid] = sums[turn][lid] + (lid >= reach ? sums[turn][lid - reach] : (ACC)0);
            turn = 1 - turn;
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        const ACC before = base + (lid > 0 ? sums[turn][lid - 1] : (ACC)0);
        base += sums[turn][WG - 1];
        if (!totals)
            for (int e = 0; e < EACH; e++)
                if (k + e < end) PUT(o * n + k + e, before + v[e]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (totals && lid == 0) carry[run] = base;
}

#else

__kernel void scan(__global const S* restrict x, __global ACC* restrict carry, __global R* restrict out, I ox, I x_o,
                   I x_n, I x_c, I n, I cols, I outer, I parts, I span, I step, int totals) {
    const I blocks = (cols + COLS - 1) / COLS, runs = outer * parts * blocks;
    I run = (I)get_global_id(0) * step;
    for (const I last = LEAST(run + step, runs); run < last; run++) {
        const I q = run / blocks, c0 = (run - q * blocks) * COLS, o = q / parts, part = q - o * parts;
        const I end = LEAST((part + 1) * span, n), from = ox + o * x_o + c0 * x_c, to = o * n * cols + c0;
        const int width = (int)LEAST(COLS, cols - c0);
        ACC acc[COLS];
        for (int c = 0; c < width; c++) acc[c] = part > 0 && !totals ? carry[(q - 1) * cols + c0 + c] : (ACC)0;
        if (width == COLS && (COLS == 1 || x_c == 1)) {
            for (I k = part * span; k < end; k++)
                for (int c = 0; c < COLS; c++) {
                    acc[c] += (ACC)LOAD(x, from + k * x_n + c);
                    if (!totals) PUT(to + k * cols + c, acc[c]);
                }
        } else {
            for (I k = part * span; k < end; k++)
                for (int c = 0; c < width; c++) {
                    acc[c] += (ACC)LOAD(x, from + k * x_n + c * x_c);
                    if (!totals) PUT(to + k * cols + c, acc[c]);
                }
        }
        if (totals)
            for (int c = 0; c < width; c++) carry[q * cols + c0 + c] = acc[c];
    }
}
#endif
