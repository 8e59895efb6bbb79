// winograd_gpu.cl: the transforms of F(4x4, 3x3) on GPUs, each in a launch of its own. Follows winograd.cl.
//
//   forward   U (36, O, C) by winograd_filters, V (36, C, Q) by winograd_patches; Y by winograd_outputs from U V (36, O, Q)
//   weights   Z (36, O, Q) by winograd_tiles, V; dW by winograd_taps from Z V^T (36, O, C)
//
// A patch or tile of a channel that holds a value beyond the limit (winograd.cl) is left out of V or Z, and its tile marked:
// winograd_again computes the outputs of marked tiles directly, winograd_taps adds what was left out of a gradient.
//
// The 36 products between them are one batched matrix product. Q counts 4x4 tiles of outputs, row by row of an image, image
// by image; a launch does those from `first` on, `pitch` to a row, of which the ones behind `count` are zero. Work-items are
// neighbours along the rows of what is large, so all accesses to it are coalesced.
typedef struct { long n, c, h, w; int H, W, py, px, down, across; } Image;    // steps; size, padding, tiles of an image

// Tile q: the first pixel that it reads or writes (its row is never inside for tiles behind the last), and where that lies.
typedef struct { long at; int row, column; } Tile;
static inline Tile tile(int q, int first, int count, const Image* form) {
    Tile t;
    const int line = (first + q) / form->across, n = line / form->down;
    t.row = q < count ? (line - n * form->down) * 4 - form->py : INT_MIN / 2;
    t.column = (first + q - line * form->across) * 4 - form->px;
    t.at = q < count ? n * form->n + t.row * form->h + t.column * form->w : 0;
    return t;
}

#ifdef NARROW
#define LOAD4(p) JOIN(JOIN(LOAD_, NARROW), 4A)(p)
#define STORE4(p, v) JOIN(JOIN(STORE_, NARROW), 4A)(v, p)
#else
#define LOAD4(p) (*(__global const float4*)(p))
#define STORE4(p, v) (*(__global float4*)(p) = (v))
#endif
// Marks: the limits of X and of G, whether any tile is marked, a mark for each tile, and one for each row of filters.
#define SOME 2
#define TILES 3

// The limit of a tensor of N x C images, by all items of a group.
static inline void find_limit(__global int* limit, __local int* counts, __global const S* X, int N, int C, const Image* form) {
    const int item = get_local_id(0), items = get_local_size(0);
    for (int e = item; e < 256; e += items) counts[e] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = item; i < SAMPLES; i += items)
        atomic_inc(counts + (sample(X, i, N, C, form->H, form->W, form->n, form->c, form->h, form->w) >> 23));
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = item; e < 256; e += items) {
        int above = 0;
        for (int k = e + 1; k < 256; k++) above += counts[k];
        if (above <= RARE(counts[0]) && above + counts[e] > RARE(counts[0])) *limit = LIMIT(e);
    }
}
static inline void clear_marks(__global int* marks, int tiles) {
    for (int i = SOME + get_local_id(0); i < TILES + tiles; i += get_local_size(0)) marks[i] = 0;
}
static inline void mark(__global int* marks, int tile) {
    atomic_or(marks + SOME, 1);
    atomic_or(marks + TILES + tile, 1);
}

#define COLUMN(k, value) r[k][x] = value
#define ROW(k, value) r[y][k] = value
#define POINT(k, value) to[(6 * k + x) * apart] = value

// Launch of both transforms: (pitch rounded up to whole groups, channels).
#define TRANSFORMED() \
    const int q = get_global_id(0); \
    if (q >= pitch) return; \
    const Tile t = tile(q, first, count, &form); \
    const long apart = get_global_size(1) * (long)pitch; \
    __global E* to = V + get_global_id(1) * (long)pitch + q; \
    X += ox + get_global_id(1) * form.c + t.at;
// Row y of a tile: WIDE pixels, four of which, from the PX-th on, are one aligned vector where IN_VEC is 4.
#define PIXELS(WIDE, PX) \
    E d[WIDE]; \
    const bool inside = (uint)(t.row + y) < (uint)form.H; \
    __global const S* from = X + y * form.h; \
    _Pragma("unroll") for (int x = 0; x < WIDE; x++) \
        if (IN_VEC == 1 || x < PX || x >= PX + 4) \
            d[x] = inside && (uint)(t.column + x) < (uint)form.W ? LOAD(from, x * form.w) : (E)0; \
    if (IN_VEC == 4) { \
        const float4 four = inside && t.column + PX < form.W ? LOAD4(from + PX) : (float4)(0); \
        d[PX] = four.x; d[PX + 1] = four.y; d[PX + 2] = four.z; d[PX + 3] = four.w; \
    } \
    _Pragma("unroll") for (int x = 0; x < WIDE; x++) peak = max(peak, PEAK(d[x]));
// Behind the rows: nothing is left of one that holds a value beyond the limit.
#define LEAVE_OUT(limit, HIGH) \
    if (peak > (limit)) { \
        mark(marks, first + q); \
        for (int y = 0; y < HIGH; y++) \
            for (int x = 0; x < 6; x++) r[y][x] = 0; \
    }

__kernel void winograd_patches(__global E* V, __global const S* X, __global int* marks, long ox, int first, int count,
                               int pitch, const Image form) {
    TRANSFORMED()
    E r[6][6];
    int peak = 0;
#pragma unroll
    for (int y = 0; y < 6; y++) {
        PIXELS(6, PADDING)
        PATCH_AXIS(ROW, d[0], d[1], d[2], d[3], d[4], d[5])
    }
    LEAVE_OUT(marks[0], 6)
#pragma unroll
    for (int x = 0; x < 6; x++) PATCH_AXIS(POINT, r[0][x], r[1][x], r[2][x], r[3][x], r[4][x], r[5][x])
}

// The same of the output's gradient, which has no padding.
__kernel void winograd_tiles(__global E* V, __global const S* X, __global int* marks, long ox, int first, int count,
                             int pitch, const Image form) {
    TRANSFORMED()
    E r[4][6];
    int peak = 0;
#pragma unroll
    for (int y = 0; y < 4; y++) {
        PIXELS(4, 0)
        TILE_AXIS(ROW, d[0], d[1], d[2], d[3])
    }
    LEAVE_OUT(marks[1], 4)
#pragma unroll
    for (int x = 0; x < 6; x++) TILE_AXIS(POINT, r[0][x], r[1][x], r[2][x], r[3][x])
}

#ifdef EPILOGUE
#define FINISH(v) ACT((v) + extra)
#else
#define FINISH(v) (v)
#endif

// Row y of the outputs of a tile to Y, as four at once where OUT_VEC says so.
static inline void put_row(__global S* Y, const E* out, Tile t, int y, const Image* form) {
    if (t.row + y >= form->H) return;
    __global S* to = Y + y * form->h;
    if (OUT_VEC == 4 && t.column + 4 <= form->W) STORE4(to, (float4)(out[0], out[1], out[2], out[3]));
    else {
#pragma unroll
        for (int x = 0; x < 4; x++)
            if (t.column + x < form->W) STORE(to, x * form->w, out[x]);
    }
}

// OUT_VEC 4: rows of Y lie at multiples of four elements. Launch: (count rounded up to whole groups, O).
__kernel void winograd_outputs(__global S* Y, __global const E* P, __global const S* bias, long oy, long ob, int first,
                               int count, int pitch, const Image form) {
    const int q = get_global_id(0), o = get_global_id(1);
    if (q >= count) return;
    const Tile t = tile(q, first, count, &form);
    const long apart = get_global_size(1) * (long)pitch;
    P += o * (long)pitch + q;
    Y += oy + o * form.c + t.at;
#ifdef EPILOGUE
    const E extra = HAS_BIAS ? LOAD(bias, ob + o) : (E)0;
#endif
    E r[4][6];
#define SUM(k) P[(6 * k + x) * apart]
#pragma unroll
    for (int x = 0; x < 6; x++) SUMS_AXIS(COLUMN, SUM(0), SUM(1), SUM(2), SUM(3), SUM(4), SUM(5))
#pragma unroll
    for (int y = 0; y < 4; y++) {
        E out[4];
#define OUT(k, value) out[k] = FINISH(value)
        SUMS_AXIS(OUT, r[y][0], r[y][1], r[y][2], r[y][3], r[y][4], r[y][5])
        put_row(Y, out, t, y, &form);
    }
}

// The nine taps of filter k of a row, `per` to a row and `rows` to a group. TURNED: of those that the gradient of the input
// meets, W (groups, per, rows, 3, 3) read from its last tap to the first.
static inline void load_taps(E* w, __global const S* W, int row, int k, int rows, int per) {
    const int g = row / rows;
    W += (TURNED ? ((long)g * per + k) * rows + row - g * rows : (long)row * per + k) * 9;
#pragma unroll
    for (int i = 0; i < 9; i++) w[i] = LOAD(W, TURNED ? 8 - i : i);
}

// U of the filters W, marks of the rows whose taps are too unequal, and the limit of X, N x C images; no tile is marked.
// Launch: a group for each row, and one more.
__kernel void winograd_filters(__global E* U, __global const S* W, __global const S* X, __global int* marks, long ow, long ox,
                               int rows, int per, int tiles, int N, int C, const Image form) {
    __local int counts[256], peaks[9];
    const int row = get_group_id(0), item = get_local_id(0), all = get_num_groups(0) - 1;
    if (row == all) {
        clear_marks(marks, tiles);
        find_limit(marks, counts, X + ox, N, C, &form);
        return;
    }
    for (int i = item; i < 9; i += get_local_size(0)) peaks[i] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = item; k < per; k += get_local_size(0)) {
        E w[9], r[6][3];
        load_taps(w, W + ow, row, k, rows, per);
#pragma unroll
        for (int i = 0; i < 9; i++) atomic_max(peaks + i, PEAK(w[i]));
#pragma unroll
        for (int x = 0; x < 3; x++) TAPS_AXIS(COLUMN, w[x], w[3 + x], w[6 + x])
#define FILTER(k, value) to[(6 * y + k) * (long)all * per] = value
        __global E* to = U + (long)row * per + k;
#pragma unroll
        for (int y = 0; y < 6; y++) TAPS_AXIS(FILTER, r[y][0], r[y][1], r[y][2])
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item > 0) return;
    int most = 0, least = LARGEST;
    for (int i = 0; i < 9; i++) {
        most = max(most, peaks[i]);
        if (peaks[i] > 0) least = min(least, peaks[i]);
    }
    marks[TILES + tiles + row] = UNEQUAL(most, least);
}

// A patch of an image at X, 0 outside of it, and its peak.
static inline int load_patch(E* d, __global const S* X, Tile t, int high, int wide, const Image* form) {
    int peak = 0;
    for (int y = 0; y < high; y++)
        for (int x = 0; x < wide; x++) {
            const bool inside = (uint)(t.row + y) < (uint)form->H && (uint)(t.column + x) < (uint)form->W;
            const E v = inside ? LOAD(X, y * form->h + x * form->w) : (E)0;
            d[y * wide + x] = v;
            peak = max(peak, PEAK(v));
        }
    return peak;
}

// Directly: outputs of the marked among `tiles` tiles, and all of marked rows of filters. Launch: any groups.
__kernel void winograd_again(__global S* Y, __global const S* X, __global const S* W, __global const S* bias,
                             __global const int* marks, long oy, long ox, long ow, long ob, int tiles, int outs, int rows,
                             int per, const Image from, const Image to) {
    __local int some;
    if (get_local_id(0) == 0) some = marks[SOME];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = get_local_id(0); i < outs; i += get_local_size(0))
        if (marks[TILES + tiles + i]) atomic_or(&some, 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!some) return;
    for (long i = get_global_id(0); i < (long)tiles * outs; i += get_global_size(0)) {
        const int o = i / tiles, q = i - (long)o * tiles;
        if (!marks[TILES + q] && !marks[TILES + tiles + o]) continue;
        const Tile t = tile(q, 0, tiles, &from), u = tile(q, 0, tiles, &to);
        E out[4][4];
        for (int y = 0; y < 16; y++) out[y / 4][y % 4] = 0;
        for (int k = 0; k < per; k++) {
            E d[36], w[9];
            load_patch(d, X + ox + (o / rows * per + k) * from.c + t.at, t, 6, 6, &from);
            load_taps(w, W + ow, o, k, rows, per);
#pragma unroll
            for (int y = 0; y < 16; y++)
#pragma unroll
                for (int x = 0; x < 9; x++)
                    out[y / 4][y % 4] += d[6 * (y / 4 + x / 3) + y % 4 + x % 3] * w[x];
        }
#ifdef EPILOGUE
        const E extra = HAS_BIAS ? LOAD(bias, ob + o) : (E)0;
#endif
        for (int y = 0; y < 4; y++) {
            for (int x = 0; x < 4; x++) out[y][x] = FINISH(out[y][x]);
            put_row(Y + oy + o * to.c + u.at, out[y], u, y, &to);
        }
    }
}

// The limits of X and of G, images of N x C and N x O; no tile is marked. Launch: two groups.
__kernel void winograd_limits(__global int* marks, __global const S* X, __global const S* G, long ox, long og, int tiles, int N,
                              int C, int O, const Image of_x, const Image of_g) {
    __local int counts[256];
    if (get_group_id(0) == 0) {
        clear_marks(marks, tiles);
        find_limit(marks, counts, X + ox, N, C, &of_x);
    } else
        find_limit(marks + 1, counts, G + og, N, O, &of_g);
}

// To w: what was left out of the gradient of a filter between one channel each of X and G.
static inline void add_left_out(E* w, __global const S* X, __global const S* G, __global const int* marks, int tiles,
                                const Image* of_x, const Image* of_g) {
    for (int q = 0; q < tiles; q++) {
        if (!marks[TILES + q]) continue;
        E d[36], g[16];
        const Tile t = tile(q, 0, tiles, of_x), u = tile(q, 0, tiles, of_g);
        const int x = load_patch(d, X + t.at, t, 6, 6, of_x), y = load_patch(g, G + u.at, u, 4, 4, of_g);
        if (x <= marks[0] && y <= marks[1]) continue;
        for (int i = 0; i < min(4, of_g->H - u.row); i++)
            for (int j = 0; j < min(4, of_g->W - u.column); j++)
                for (int k = 0; k < 9; k++) w[k] += d[6 * (i + k / 3) + j + k % 3] * g[4 * i + j];
    }
}

// dW of `count` filters, `per` to a row and `rows` to a group, from their 36 sums P. Launch: count rounded up to whole groups.
__kernel void winograd_taps(__global S* W, __global const E* P, __global const S* X, __global const S* G,
                            __global const int* marks, long ow, long ox, long og, int count, int rows, int per, int tiles,
                            const Image of_x, const Image of_g) {
    const int i = get_global_id(0);
    if (i >= count) return;
    W += ow + i * 9L;
    E r[3][6], w[9];
#undef SUM
#define SUM(k) P[(6 * k + x) * (long)count + i]
#pragma unroll
    for (int x = 0; x < 6; x++) TAPS_GRAD_AXIS(COLUMN, SUM(0), SUM(1), SUM(2), SUM(3), SUM(4), SUM(5))
#define OUT_TAP(k, value) w[3 * y + k] = value
#pragma unroll
    for (int y = 0; y < 3; y++) TAPS_GRAD_AXIS(OUT_TAP, r[y][0], r[y][1], r[y][2], r[y][3], r[y][4], r[y][5])
    const int o = i / per, c = o / rows * per + i - o * per;
    if (marks[SOME]) add_left_out(w, X + ox + c * of_x.c, G + og + o * of_g.c, marks, tiles, &of_x, &of_g);
#pragma unroll
    for (int k = 0; k < 9; k++) STORE(W, k, w[k]);
}
