// winograd_gpu.cl: the transforms of F(4x4, 3x3) on GPUs, each in a launch of its own. Follows winograd.cl.
//
//   forward   U (36, O, C) by winograd_filters, V (36, C, Q) by winograd_patches, Y by winograd_outputs from U V
//   weights   V and Z (36, O, Q) by winograd_operands behind winograd_limits, dW by winograd_taps from Z V^T (36, O, C)
//
// A patch or tile of a channel that holds a value beyond the limit (winograd.cl) is left out of V or Z, and its tile
// marked: winograd_outputs computes the outputs of marked tiles directly, winograd_taps adds what a gradient lacks.
//
// The 36 products between them are one batched matrix product. Q counts 4x4 tiles of outputs, row by row of an image,
// image by image; a launch does those from `first` on, `pitch` to a row, of which the ones behind `length` are zero.
// Work-items are neighbours along the rows of what is large, so all accesses to it are coalesced. Groups have WG items.
typedef struct { long n, c, h, w; int N, C, H, W, py, px, down, across; } Image;  // steps, sizes, padding, tiles
typedef struct { int rows, per; } Filters;  // rows of a group of channels, and filters of a row
typedef struct { int first, length, pitch; } Chunk;  // tiles of a launch
static inline int tiles_of(const Image* form) { return form->N * form->down * form->across; }

// Tile q: the first pixel that it reads or writes, and where that lies. From `end` on no row is inside.
typedef struct { long at; int row, column; } Tile;
static inline Tile tile(int q, int end, const Image* form) {
    Tile t;
    const int line = q / form->across, n = line / form->down;
    t.row = q < end ? (line - n * form->down) * 4 - form->py : INT_MIN / 2;
    t.column = (q - line * form->across) * 4 - form->px;
    t.at = q < end ? n * form->n + t.row * form->h + t.column * form->w : 0;
    return t;
}

#ifdef NARROW
#define LOAD4(p) JOIN(JOIN(LOAD_, NARROW), 4A)(p)
#define STORE4(p, v) JOIN(JOIN(STORE_, NARROW), 4A)(v, p)
#else
#define LOAD4(p) (*(__global const float4*)(p))
#define STORE4(p, v) (*(__global float4*)(p) = (v))
#endif

// Marks: the limits of X and of G, whether any tile is marked, a bit for each tile, and a mark for each row of filters.
#define SOME 2
#define TILES 3
#define WORDS(tiles) (((tiles) + 31) / 32)
#define ROWS(tiles) (TILES + WORDS(tiles))
static inline void clear_marks(__global int* marks, int tiles) {
    for (int i = get_global_id(0); i < 1 + WORDS(tiles); i += get_global_size(0)) marks[SOME + i] = 0;
}
static inline void mark(__global int* marks, int tile) {
    atomic_or(marks + SOME, 1);
    atomic_or(marks + TILES + tile / 32, 1 << tile % 32);
}
static inline int marked(__global const int* marks, int tile) { return marks[TILES + tile / 32] >> tile % 32 & 1; }

// The limit of a tensor, by a group: samples are counted by their exponents, and counts added up from the largest.
#define EXPONENTS 256
static inline void find_limit(__global int* limit, __local int* counts, __global const S* X, const Image* form) {
    const int item = get_local_id(0);
    __local int *from = counts, *to = counts + EXPONENTS;
    int found[(SAMPLES + WG - 1) / WG];
#pragma unroll
    for (int i = 0; i < (SAMPLES + WG - 1) / WG; i++)
        found[i] = sample(X, i * WG + item, form->N, form->C, form->H, form->W, form->n, form->c, form->h, form->w);
    for (int e = item; e < EXPONENTS; e += WG) from[e] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int i = 0; i < (SAMPLES + WG - 1) / WG; i++)
        if (i * WG + item < SAMPLES) atomic_inc(from + (found[i] >> 23));
    for (int step = 1; step < EXPONENTS; step *= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int e = item; e < EXPONENTS; e += WG) to[e] = from[e] + (e + step < EXPONENTS ? from[e + step] : 0);
        __local int* next = to;
        to = from;
        from = next;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int rare = RARE(from[0] - from[1]);
    for (int e = item; e < EXPONENTS; e += WG)
        if (from[e] > rare && (e == EXPONENTS - 1 || from[e + 1] <= rare)) *limit = LIMIT(e);
}

#define COLUMN(k, value) r[k][x] = value
#define ROW(k, value) r[y][k] = value
#define POINT(k, value) to[(6 * k + x) * apart] = value

// Where a transform of channel c reads and writes; V (36, channels, pitch).
#define TRANSFORMED() \
    const Tile t = tile(part->first + q, part->first + part->length, form); \
    const long apart = form->C * (long)part->pitch; \
    __global E* to = V + c * (long)part->pitch + q; \
    int peak = 0; \
    X += c * form->c + t.at;
// Row y of a tile: WIDE pixels, four of which, from the PX-th on, are one aligned vector where VEC is 4.
#define PIXELS(WIDE, VEC, PX) \
    E d[WIDE]; \
    const bool inside = (uint)(t.row + y) < (uint)form->H; \
    __global const S* from = X + y * form->h; \
    _Pragma("unroll") for (int x = 0; x < WIDE; x++) \
        if (VEC == 1 || x < PX || x >= PX + 4) \
            d[x] = inside && (uint)(t.column + x) < (uint)form->W ? LOAD(from, x * form->w) : (E)0; \
    if (VEC == 4) { \
        const float4 four = inside && t.column + PX < form->W ? LOAD4(from + PX) : (float4)(0); \
        d[PX] = four.x; d[PX + 1] = four.y; d[PX + 2] = four.z; d[PX + 3] = four.w; \
    } \
    _Pragma("unroll") for (int x = 0; x < WIDE; x++) peak = max(peak, PEAK(d[x]));
// Behind the rows: nothing is left of one that holds a value beyond the limit.
#define LEAVE_OUT(HIGH) \
    if (peak > limit) { \
        mark(marks, part->first + q); \
        _Pragma("unroll") for (int y = 0; y < HIGH; y++) \
            _Pragma("unroll") for (int x = 0; x < 6; x++) r[y][x] = 0; \
    }

static inline void put_patch(__global E* V, __global const S* X, __global int* marks, int limit, int q, int c,
                             const Chunk* part, const Image* form) {
    TRANSFORMED()
    E r[6][6];
#pragma unroll
    for (int y = 0; y < 6; y++) {
        PIXELS(6, X_VEC, PADDING)
        PATCH_AXIS(ROW, d[0], d[1], d[2], d[3], d[4], d[5])
    }
    LEAVE_OUT(6)
#pragma unroll
    for (int x = 0; x < 6; x++) PATCH_AXIS(POINT, r[0][x], r[1][x], r[2][x], r[3][x], r[4][x], r[5][x])
}

// The same of the output's gradient, which has no padding.
static inline void put_tile(__global E* V, __global const S* X, __global int* marks, int limit, int q, int c,
                            const Chunk* part, const Image* form) {
    TRANSFORMED()
    E r[4][6];
#pragma unroll
    for (int y = 0; y < 4; y++) {
        PIXELS(4, G_VEC, 0)
        TILE_AXIS(ROW, d[0], d[1], d[2], d[3])
    }
    LEAVE_OUT(4)
#pragma unroll
    for (int x = 0; x < 6; x++) TILE_AXIS(POINT, r[0][x], r[1][x], r[2][x], r[3][x])
}

// Launch: (pitch rounded up to whole groups, channels).
__kernel void winograd_patches(__global E* V, __global const S* X, __global int* marks, long oX, const Chunk part,
                               const Image form) {
    const int q = get_global_id(0);
    if (q < part.pitch) put_patch(V, X + oX, marks, marks[0], q, get_global_id(1), &part, &form);
}

// Both operands of a gradient of weights. Launch: (pitch rounded up to whole groups, channels of X and those of G).
__kernel void winograd_operands(__global E* V, __global E* Z, __global const S* X, __global const S* G,
                                __global int* marks, long oX, long oG, const Chunk part, const Image of_x,
                                const Image of_g) {
    const int q = get_global_id(0), c = get_global_id(1);
    if (q >= part.pitch) return;
    if (c < of_x.C) put_patch(V, X + oX, marks, marks[0], q, c, &part, &of_x);
    else put_tile(Z, G + oG, marks, marks[1], q, c - of_x.C, &part, &of_g);
}

// Tap i of filter k of a row, of those to be applied. TRANSPOSED: by the gradient of the input, whose filters are
// W (groups, per, rows, 3, 3) read from the last tap to the first.
static inline E tap(__global const S* W, int row, int k, int i, const Filters* D) {
    const int g = row / D->rows;
    const long at = TRANSPOSED ? ((long)g * D->per + k) * D->rows + row - g * D->rows : (long)row * D->per + k;
    return LOAD(W, 9 * at + (TRANSPOSED ? 8 - i : i));
}

// U of the filters W, marks of the rows whose taps are too unequal, and the limit of X; no tile is marked.
// Launch: a group more than there are rows.
__kernel void winograd_filters(__global E* U, __global const S* W, __global const S* X, __global int* marks, long oW,
                               long oX, const Filters D, const Image form) {
    __local int counts[2 * EXPONENTS], peaks[9];
    const int row = (int)get_group_id(0) - 1, item = get_local_id(0), rows = (int)get_num_groups(0) - 1;
    clear_marks(marks, tiles_of(&form));
    if (row < 0) {
        find_limit(marks, counts, X + oX, &form);
        return;
    }
    W += oW;
    for (int i = item; i < 9; i += WG) peaks[i] = 0;
    for (int k = item; k < D.per; k += WG) {
        E w[9], r[6][3];
#pragma unroll
        for (int i = 0; i < 9; i++) w[i] = tap(W, row, k, i, &D);
#pragma unroll
        for (int x = 0; x < 3; x++) TAPS_AXIS(COLUMN, w[x], w[3 + x], w[6 + x])
#define FILTER(k, value) to[(6 * y + k) * (long)rows * D.per] = value
        __global E* to = U + (long)row * D.per + k;
#pragma unroll
        for (int y = 0; y < 6; y++) TAPS_AXIS(FILTER, r[y][0], r[y][1], r[y][2])
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = item; i < 9 * D.per; i += WG) atomic_max(peaks + i % 9, PEAK(tap(W, row, i / 9, i % 9, &D)));
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item > 0) return;
    int most = 0, least = LARGEST;
    for (int i = 0; i < 9; i++) {
        most = max(most, peaks[i]);
        if (peaks[i] > 0) least = min(least, peaks[i]);
    }
    marks[ROWS(tiles_of(&form)) + row] = UNEQUAL(most, least);
}

// Pixel (y, x) of a tile of an image at X, 0 outside of it.
static inline E pixel(__global const S* X, int y, int x, Tile t, const Image* form) {
    const bool inside = (uint)(t.row + y) < (uint)form->H && (uint)(t.column + x) < (uint)form->W;
    return inside ? LOAD(X, t.at + y * form->h + x * form->w) : (E)0;
}

// Row y of the outputs of a tile, directly, for a row of filters; few registers are taken, since few tiles come here.
static inline void sum_directly(E* out, __global const S* X, __global const S* W, int row, int y, Tile t,
                                const Filters* D, const Image* form) {
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = 0;
    X += (row / D->rows * D->per) * form->c;
#pragma unroll 1
    for (int k = 0; k < D->per; k++, X += form->c)
#pragma unroll 1
        for (int u = 0; u < 3; u++) {
            E d[6];
#pragma unroll
            for (int x = 0; x < 6; x++) d[x] = pixel(X, y + u, x, t, form);
#pragma unroll
            for (int v = 0; v < 3; v++) {
                const E w = tap(W, row, k, 3 * u + v, D);
#pragma unroll
                for (int i = 0; i < 4; i++) out[i] += d[i + v] * w;
            }
        }
}

#ifdef EPILOGUE
#define FINISH(v) ACT((v) + extra)
#else
#define FINISH(v) (v)
#endif

// Row y of the outputs of a tile to Y, where the tile starts, as four at once where OUT_VEC says so.
static inline void put_row(__global S* Y, const E* out, int y, Tile t, const Image* form) {
    if (t.row + y >= form->H) return;
    Y += y * form->h;
    if (OUT_VEC == 4 && t.column + 4 <= form->W) STORE4(Y, (float4)(out[0], out[1], out[2], out[3]));
    else {
#pragma unroll
        for (int x = 0; x < 4; x++)
            if (t.column + x < form->W) STORE(Y, x * form->w, out[x]);
    }
}

// OUT_VEC 4: rows of Y lie at multiples of four elements. Launch: (length rounded up to whole groups, rows of filters).
__kernel void winograd_outputs(__global S* Y, __global const E* P, __global const S* bias, __global const S* X,
                               __global const S* W, __global const int* marks, long oY, long obias, long oX, long oW,
                               const Chunk part, const Filters D, const Image of_x, const Image of_y) {
    const int q = get_global_id(0), o = get_global_id(1), end = part.first + part.length;
    if (q >= part.length) return;
    const int direct = marked(marks, part.first + q) | marks[ROWS(tiles_of(&of_y)) + o];
    const Tile t = tile(part.first + q, end, &of_y);
    const long apart = of_y.C * (long)part.pitch;
    P += o * (long)part.pitch + q;
    Y += oY + o * of_y.c + t.at;
    E r[4][6], out[4];
#ifdef EPILOGUE
    const E extra = HAS_BIAS ? LOAD(bias, obias + o) : (E)0;
#endif
#define SUM(k) P[(6 * k + x) * apart]
#pragma unroll
    for (int x = 0; x < 6; x++) SUMS_AXIS(COLUMN, SUM(0), SUM(1), SUM(2), SUM(3), SUM(4), SUM(5))
    if (direct) {
        const Tile from = tile(part.first + q, end, &of_x);
#pragma unroll 1
        for (int y = 0; y < 4; y++) {
            sum_directly(out, X + oX, W + oW, o, y, from, &D, &of_x);
#pragma unroll
            for (int x = 0; x < 4; x++) out[x] = FINISH(out[x]);
            put_row(Y, out, y, t, &of_y);
        }
        return;
    }
#pragma unroll
    for (int y = 0; y < 4; y++) {
#define OUT(k, value) out[k] = FINISH(value)
        SUMS_AXIS(OUT, r[y][0], r[y][1], r[y][2], r[y][3], r[y][4], r[y][5])
        put_row(Y, out, y, t, &of_y);
    }
}

// The limits of X and of G; no tile is marked. Launch: two groups.
__kernel void winograd_limits(__global int* marks, __global const S* X, __global const S* G, long oX, long oG,
                              const Image of_x, const Image of_g) {
    __local int counts[2 * EXPONENTS];
    clear_marks(marks, tiles_of(&of_x));
    if (get_group_id(0) == 0) find_limit(marks, counts, X + oX, &of_x);
    else find_limit(marks + 1, counts, G + oG, &of_g);
}

static inline int peak_of(__global const S* X, Tile t, int size, const Image* form) {
    int peak = 0;
#pragma unroll 1
    for (int i = 0; i < size * size; i++) peak = max(peak, PEAK(pixel(X, i / size, i % size, t, form)));
    return peak;
}

// To w: what was left out of the gradient of a filter between one channel each of X and G.
static inline void add_left_out(E* w, __global const S* X, __global const S* G, __global const int* marks,
                                const Image* of_x, const Image* of_g) {
    const int end = tiles_of(of_x), limit_x = marks[0], limit_g = marks[1];
#pragma unroll 1
    for (int word = 0; word < WORDS(end); word++)
        for (uint bits = marks[TILES + word]; bits; bits &= bits - 1) {
            const int q = 32 * word + 31 - clz(bits & -bits);
            const Tile t = tile(q, end, of_x), u = tile(q, end, of_g);
            if (peak_of(X, t, 6, of_x) <= limit_x && peak_of(G, u, 4, of_g) <= limit_g) continue;
#pragma unroll 1
            for (int y = 0; y < min(4, of_g->H - u.row); y++) {
                E g[4], d[6];
#pragma unroll
                for (int x = 0; x < 4; x++) g[x] = pixel(G, y, x, u, of_g);
#pragma unroll
                for (int i = 0; i < 3; i++) {
#pragma unroll
                    for (int x = 0; x < 6; x++) d[x] = pixel(X, y + i, x, t, of_x);
#pragma unroll
                    for (int x = 0; x < 4; x++)
                        if (u.column + x < of_g->W) {
#pragma unroll
                            for (int j = 0; j < 3; j++) w[3 * i + j] += d[x + j] * g[x];
                        }
                }
            }
        }
}

// dW of `count` filters from their 36 sums P. Launch: count rounded up to whole groups.
__kernel void winograd_taps(__global S* W, __global const E* P, __global const S* X, __global const S* G,
                            __global const int* marks, long oW, long oX, long oG, int count, const Filters D,
                            const Image of_x, const Image of_g) {
    const int i = get_global_id(0);
    if (i >= count) return;
    const int some = marks[SOME];
    E r[3][6], w[9];
#undef SUM
#define SUM(k) P[(6 * k + x) * (long)count + i]
#pragma unroll
    for (int x = 0; x < 6; x++) TAPS_GRAD_AXIS(COLUMN, SUM(0), SUM(1), SUM(2), SUM(3), SUM(4), SUM(5))
#define OUT_TAP(k, value) w[3 * y + k] = value
#pragma unroll
    for (int y = 0; y < 3; y++) TAPS_GRAD_AXIS(OUT_TAP, r[y][0], r[y][1], r[y][2], r[y][3], r[y][4], r[y][5])
    if (some) {
        const int o = i / D.per, c = o / D.rows * D.per + i - o * D.per;
        add_left_out(w, X + oX + c * of_x.c, G + oG + o * of_g.c, marks, &of_x, &of_g);
    }
    W += oW + i * 9L;
#pragma unroll
    for (int k = 0; k < 9; k++) STORE(W, k, w[k]);
}
