// im2col.cl: what makes ordinary matrix products of a convolution, and back. Any stride, padding, dilation and
// groups.
//
//   im2col  columns[n][g][c, u, v][i, j] = x[n, c, i s + u d - p, j s + v d - p], 0 in the padding
//   col2im   dx[n, c, y, x] = sum of products[n][g][c, u, v][i, j] over i s + u d - p = y, j s + v d - p = x
//
// E is the compute type, S the storage type; columns are bits that are only moved.
#ifdef NARROW
#define WORD ushort
#define HALF_ONE 0x3c00
#define BFLOAT_ONE 0x3f80
#define ONE JOIN(NARROW, _ONE)
#else
#define WORD S
#define ONE 1
#endif
#define EACH 4      // pixels of a work-item

typedef struct {
    long xn, xc, xh, xw, image, row;    // steps of x; of columns from image to image and from row to row
    int channels, C, H, W, KH, KW;      // channels of all groups and of one
    int sy, sx, py, px, dy, dx;
    int Wo, P, rows;            // output row and pixels; rows of columns per group, the last of ones or C * KH * KW
} Columns;

// Launch: local (WG, 1, 1), global (groups of WG * EACH pixels, channels * KH and, for rows of ones, groups, images).
__kernel void im2col(__global WORD* to, __global const WORD* X, long oto, long oX, const Columns D) {
    const int wg = get_local_size(0), p0 = get_group_id(0) * wg * EACH + get_local_id(0), line = get_global_id(1);
    const int channel = line / D.KH, u = line - channel * D.KH, g = channel / D.C, n = get_global_id(2);
    to += oto + n * D.image;
    if (channel >= D.channels) {
        to += ((line - D.channels * D.KH + 1) * D.rows - 1) * D.row;
        for (int p = p0; p < min(p0 + wg * EACH, D.P); p += wg) to[p] = ONE;
        return;
    }
    to += (g * D.rows + ((channel - g * D.C) * D.KH + u) * D.KW) * D.row;
    X += oX + n * D.xn + channel * D.xc;
    int column[EACH];
    long at[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int p = p0 + e * wg, i = p / D.Wo, j = p - i * D.Wo, line_ = i * D.sy + u * D.dy - D.py;
        column[e] = (uint)line_ < (uint)D.H ? j * D.sx - D.px : INT_MIN / 2;    // never inside
        at[e] = line_ * D.xh + column[e] * D.xw;
    }
    for (int v = 0; v < D.KW; v++, to += D.row) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int p = p0 + e * wg, c = column[e] + v * D.dx;
            const WORD value = (uint)c < (uint)D.W && p < D.P ? X[at[e] + v * D.dx * D.xw] : 0;
            if (p < D.P) to[p] = value;
        }
    }
}

typedef struct {
    long image, row;                    // steps of products
    int H, W, KH, KW, sy, sx, py, px, dy, dx;
    // Taps between those that reach a pixel, and how far these lie apart; output rows and columns.
    int step_y, step_x, reach_y, reach_x, Ho, Wo;
} Gather;

// first: the first tap that reaches rows (then columns) of each residue modulo the stride. dX is contiguous.
// Launch: (H * W rounded up to whole groups, channels, images).
__kernel void col2im(__global S* dX, __global const E* P, __global const int* first, long odX, const Gather D) {
    const int q = get_global_id(0), c = get_global_id(1), n = get_global_id(2);
    if (q >= D.H * D.W) return;
    const int y = q / D.W, a = y + D.py, b = q - y * D.W + D.px;
    const int u0 = first[a % D.sy], v0 = first[D.sy + b % D.sx], j0 = (b - v0 * D.dx) / D.sx;
    P += n * D.image + (long)c * D.KH * D.KW * D.row;
    E sum = 0;
    for (int u = u0, i = (a - u0 * D.dy) / D.sy; u < D.KH; u += D.step_y, i -= D.reach_y) {
        if ((uint)i >= (uint)D.Ho) continue;
        for (int v = v0, j = j0; v < D.KW; v += D.step_x, j -= D.reach_x)
            if ((uint)j < (uint)D.Wo) sum += P[(u * D.KW + v) * D.row + i * D.Wo + j];
    }
    STORE(dX, odX + ((long)n * get_global_size(1) + c) * D.H * D.W + q, sum);
}
