// scatter.cl: sums (or products, maxima, minima) by position: out[o, index[o, k, c], c] += src[o, k, c], always in the
// order of k: no atomics, and the same bits in every run. out (outer, n, cols) is contiguous, of type T; index and src
// (outer, count, cols) have any strides. Positions equal to `skip` are left out; a bad one sets the error flag and is
// left out. T8 is a vector of eight T, defined where S is T and items own many columns.
//   FORM 0 columns: an item owns `chunk` columns of one o and walks along k.
//   Where k is long, its positions are sorted first, and equal ones lie together, as a run: in one list of `count`
//   where whole rows are added, else (LISTS) in one for each (o, c). Keys are rows, -1 for what is left out.
//   FORM 1 keys:    makes the keys of all positions, for a sort of its own to follow.
//   FORM 2 rank:    makes the keys of one list and sorts them, by counting for each of them those that go before.
//   FORM 3 blocks:  cuts the sorted keys into blocks of `span`. An item sums V columns of a block where all keys are
//                   equal; and it notes where the run of a key begins and ends.
//   FORM 4 rows:    writes out = x + sums (IDENTITY + sums unless ADDS): an item takes V columns of ROWS rows, and adds
//                   to each the blocks inside its run and what lies before and after them, one by one. Nobody clears
//                   the bounds of rows without a run: they are believed where a key of the row is found there.
//   FORM 5 last:    out = src where an item's key is the last of its run.

// MODE 0 adds, 1 puts, 2 multiplies, 3 takes the larger (NaN wins), 4 the smaller one; IDENTITY changes nothing by it.
#if MODE == 1
#define MERGE(a, b) (b)
#elif MODE == 2
#define MERGE(a, b) ((a) * (b))
#elif MODE == 3
#define MERGE(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#elif MODE == 4
#define MERGE(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#else
#define MERGE(a, b) ((a) + (b))
#endif

#if FORM == 0
#ifdef T8
typedef T8 UNALIGNED __attribute__((aligned(sizeof(T))));
#endif

__kernel void add_columns(__global T* restrict out, __global const INDEX* restrict index,
                          __global const S* restrict src, I oindex, I osrc, int code, __global int* flag, I i_o,
                          I i_k, I i_c, I s_o, I s_k, I s_c, I n, I low, I count, I cols, I outer, I chunk, long skip) {
    const I blocks = (cols + chunk - 1) / chunk, item = get_global_id(0), o = item / blocks;
    const I c0 = (item - o * blocks) * chunk, c1 = LEAST(c0 + chunk, cols);
    if (o >= outer) return;
    __global T* base = out + o * n * cols;
    if (cols == 1) {  // as below, without a loop over columns
        for (I k = 0; k < count; k++) {
            const INDEX v = index[oindex + o * i_o + k * i_k];
            if (v < low || v >= n) { bad_index(flag, code, v, LIMIT); continue; }
            if (v == skip) continue;
            __global T* to = base + FROM_START(v);
            const T a = *to, b = LOAD(src, osrc + o * s_o + k * s_k);
            *to = MERGE(a, b);
        }
        return;
    }
    for (I k = 0; k < count; k++) {
        const I at = oindex + o * i_o + k * i_k, from = osrc + o * s_o + k * s_k;
        if (i_c == 0) {
            const INDEX v = index[at];
            if (v < low || v >= n) { bad_index(flag, code, v, LIMIT); continue; }
            if (v == skip) continue;
            __global T* to = base + FROM_START(v) * cols;
            I c = c0;
#ifdef T8
            if (s_c == 1)
                for (; c + 8 <= c1; c += 8) {
                    const T8 a = *(__global const UNALIGNED*)(to + c), b = *(__global const UNALIGNED*)(src + from + c);
                    *(__global UNALIGNED*)(to + c) = MERGE(a, b);
                }
#endif
            for (; c < c1; c++) {
                const T a = to[c], b = LOAD(src, from + c * s_c);
                to[c] = MERGE(a, b);
            }
        } else
            for (I c = c0; c < c1; c++) {
                const INDEX v = index[at + c * i_c];
                if (v < low || v >= n) bad_index(flag, code, v, LIMIT);
                else if (v != skip) {
                    __global T* to = base + FROM_START(v) * cols + c;
                    const T a = *to, b = LOAD(src, from + c * s_c);
                    *to = MERGE(a, b);
                }
            }
    }
}

#elif FORM == 1
__kernel void make_keys(__global const INDEX* restrict index, __global KEY* restrict keys, I oindex, int code,
                        __global int* flag, I i_o, I i_k, I i_c, I n, I low, I count, I cols, I size,
                        long skip) {
    const I e = get_global_id(0), list = e / count, k = e - list * count, o = list / cols, c = list - o * cols;
    if (e >= size) return;
    const INDEX v = index[oindex + o * i_o + k * i_k + c * i_c];
    const bool good = v >= low && v < n;
    if (!good) bad_index(flag, code, v, LIMIT);
    keys[e] = good && v != skip ? (KEY)FROM_START(v) : (KEY)-1;
}

#elif FORM == 2
#define NEAR 32                 // positions of a group, and
#define SHARES 8                // items that count for one of them
#define TILE 2048

static inline int below(int4 v, int key) { return (v.x < key) + (v.y < key) + (v.z < key) + (v.w < key); }

// Of equal keys those of earlier positions go before.
__kernel __attribute__((reqd_work_group_size(NEAR * SHARES, 1, 1)))
void rank_keys(__global const INDEX* restrict index, __global KEY* restrict sorted, __global long* restrict order,
               I oindex, int code, __global int* flag, I i_k, I n, I low, I count, long skip) {
    __local int4 tile[TILE / 4];
    __local int before[SHARES][NEAR];
    const int lid = get_local_id(0), lane = lid % NEAR, share = lid / NEAR;
    const I k = get_group_id(0) * NEAR + lane;
    const INDEX own = k < count ? index[oindex + k * i_k] : 0;
    const bool good = own >= low && own < n;
    const int key = good && own != skip ? (int)FROM_START(own) : -1;
    if (share == 0 && k < count && !good) bad_index(flag, code, own, LIMIT);
    int rank = 0;
    for (I start = 0; start < count; start += TILE) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int j = lid; j < TILE; j += NEAR * SHARES) {
            const INDEX v = start + j < count ? index[oindex + (start + j) * i_k] : 0;
            const bool kept = v >= low && v < n && v != skip;
            ((__local int*)tile)[j] = start + j >= count ? 0x7fffffff : kept ? (int)FROM_START(v) : -1;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const int own_at = k - start, first = share * (TILE / 4 / SHARES), end = first + TILE / 4 / SHARES;
        int q = first;
        for (const int own = clamp(own_at / 4, first, end); q < own; q++) rank += below(tile[q], key + 1);
        for (; q < end; q++) rank += below(tile[q], key);
        if (share == 0 && own_at >= 0 && own_at < TILE)
            for (int j = own_at & ~3; j < own_at; j++) rank += ((__local int*)tile)[j] == key;
    }
    before[share][lane] = rank;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (share != 0 || k >= count) return;
    for (int j = 1; j < SHARES; j++) rank += before[j][lane];
    sorted[rank] = key;
    order[rank] = k;
}

#elif FORM == 5
__kernel void put_last(__global const KEY* restrict keys, __global const long* restrict order,
                       __global const S* restrict src, __global S* restrict out, I osrc, I s_o, I s_k, I s_c, I n,
                       I count, I cols, I lanes, I size) {
    const I item = get_global_id(0), p = item / lanes, lane = item - p * lanes, o = lane / cols, c = lane - o * cols;
    if (item >= size) return;
    const I list = LISTS ? lane * count : 0;
    const KEY key = keys[list + p];
    if (key < 0 || (p + 1 < count && keys[list + p + 1] == key)) return;
    out[(o * n + (I)key) * cols + c] = src[osrc + o * s_o + (I)order[list + p] * s_k + c * s_c];
}

#else
#if V == 1
#define TV T
#define GET(p) LOAD(p, 0)
#define SET(p, v) STORE(p, 0, v)
#else
#define TV JOIN(T, 4)
#ifdef NARROW
#define GET(p) JOIN(JOIN(LOAD_, NARROW), 4A)(p)
#define SET(p, v) JOIN(JOIN(STORE_, NARROW), 4A)(v, p)
#else
#define GET(p) (*(__global const TV*)(p))
#define SET(p, v) (*(__global TV*)(p) = (v))
#endif
#endif

static inline TV merge(TV a, TV b) { return MERGE(a, b); }

// sum + what lies from `p` to `end` of the order; four reads at a time, for one waits for memory as long as many.
static inline TV add_rows(TV sum, __global const S* from, __global const long* order, I p, I end, I s_k) {
    for (; p + 4 <= end; p += 4) {
        const TV a = GET(from + (I)order[p] * s_k), b = GET(from + (I)order[p + 1] * s_k);
        const TV c = GET(from + (I)order[p + 2] * s_k), d = GET(from + (I)order[p + 3] * s_k);
        sum = merge(merge(merge(merge(sum, a), b), c), d);
    }
    for (; p < end; p++) sum = merge(sum, GET(from + (I)order[p] * s_k));
    return sum;
}

// Where the list of (o, c) starts, and where the bounds of its row v are.
#define START(o, c) (LISTS ? ((o) * cols + (c)) * count : 0)
#define OWN(o, v, c) (LISTS ? ((o) * n + (v)) * cols + (c) : (v))

#if FORM == 3
__kernel void sum_blocks(__global const KEY* restrict keys, __global const long* restrict order,
                         __global const S* restrict src, __global TV* restrict sums, __global int* restrict bounds,
                         I osrc, I s_o, I s_k, I s_c, I n, I count, I cols, I lanes, I span, I size, I blocks) {
    const I item = get_global_id(0), b = item / lanes, lane = item - b * lanes, o = lane / cols, c = lane - o * cols;
    if (item < size && keys[item] >= 0) {
        const KEY key = keys[item];
        const I list = item / count, k = item - list * count, at = OWN(list / cols, (I)key, list % cols);
        if (k == 0 || keys[item - 1] != key) bounds[2 * at] = k;
        if (k + 1 == count || keys[item + 1] != key) bounds[2 * at + 1] = k + 1;
    }
    const I p = b * span, first = START(o, c) + p;
    if (b >= blocks || keys[first] < 0 || keys[first] != keys[first + span - 1]) return;
    __global const S* from = src + osrc + o * s_o + c * V * s_c;
    sums[item] = add_rows((TV)((T)(IDENTITY)), from, order + START(o, c), p, p + span, s_k);
}

#else
#define ROWS 4

__kernel void sum_rows(__global const KEY* restrict keys, __global const long* restrict order,
                       __global const S* restrict src, __global const TV* restrict sums,
                       __global const int2* restrict bounds, __global const S* restrict x, __global S* restrict out,
                       I osrc, I ox, I s_o, I s_k, I s_c, I n, I count, I cols, I span, I lanes, I rows) {
    const I item = get_global_id(0), r0 = item / cols * ROWS, c = item % cols;
    int2 runs[ROWS];
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const I r = LEAST(r0 + i, rows - 1), o = rows == n ? 0 : r / n;
        runs[i] = bounds[OWN(o, r - o * n, c)];
    }
    #pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const I r = r0 + i, o = rows == n ? 0 : r / n, at = (r * cols + c) * V;
        if (r >= rows) return;
        TV sum = ADDS ? GET(x + ox + at) : (TV)((T)(IDENTITY));
        const int2 run = runs[i];
        if (run.x >= 0 && run.x < count && keys[START(o, c) + run.x] == r - o * n) {
            __global const S* from = src + osrc + o * s_o + c * V * s_c;
            __global const long* indices = order + START(o, c);
            const I b0 = (run.x + span - 1) / span, b1 = run.y / span;
            sum = add_rows(sum, from, indices, run.x, b0 < b1 ? b0 * span : run.y, s_k);
            #pragma unroll 4
            for (I b = b0; b < b1; b++) sum = merge(sum, sums[b * lanes + o * cols + c]);
            sum = add_rows(sum, from, indices, b0 < b1 ? b1 * span : run.y, run.y, s_k);
        }
        SET(out + at, sum);
    }
}
#endif
#endif
