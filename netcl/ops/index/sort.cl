// sort.cl: the stable order of each row. Values become unsigned keys whose order is theirs: NaN is the largest key in
// either direction, -0 equals 0. x (rows, n), any strides, of type S (computed as T) -> order (rows, n), contiguous.
// KEY is uint, or ulong with WIDE. A pair is a key and where it came from; no two are equal, so any sorting is stable.
//
// PLAIN (CPU devices): an item sorts rows one after the other: short ones by insertion, others by counting digits of 8
// bits, the lowest first, between two halves of its own scratch memory; digits that are equal everywhere are skipped.
// Else (WG items a group): rows are padded to `padded`, a power of two, with pairs larger than all others. sort_blocks
// sorts blocks of EACH * WG pairs, several short rows or a part of a long one, by a bitonic network; an item takes the
// steps of three neighbouring reaches on eight pairs of its own between two visits of local memory. merge_runs makes
// one run of `fan`: a pair's position is the number of pairs before it, found by bisection in each. Source: Batcher
// 1968.
#define LEAST(a, b) ((a) < (b) ? (a) : (b))

#ifdef WIDE
typedef struct { KEY key; int at; } Pair;
#define KEY_OF(p) ((p).key)
#define AT(p) ((p).at)
static inline Pair pair_of(KEY key, int at) { Pair p; p.key = key; p.at = at; return p; }
static inline bool is_before(Pair p, Pair q) { return p.key < q.key || (p.key == q.key && p.at < q.at); }
#else
typedef ulong Pair;
#define KEY_OF(p) ((KEY)((p) >> 32))
#define AT(p) ((int)(p))
static inline Pair pair_of(KEY key, int at) { return (ulong)key << 32 | (uint)at; }
static inline bool is_before(Pair p, Pair q) { return p < q; }
#endif

static inline KEY key_of(T v, int descending) {
#if FLOATING
    KEY bits = v == 0 ? (KEY)0 : AS_KEY(v);
    const KEY sign = (KEY)1 << (sizeof(KEY) * 8 - 1);
    bits = bits & sign ? ~bits : bits | sign;
    if (v != v) return ~(KEY)0;
#else
    const KEY bits = (KEY)v ^ ((KEY)1 << (sizeof(KEY) * 8 - 1));
#endif
    return descending ? ~bits : bits;
}

#ifdef PLAIN
#define DIGITS ((int)sizeof(KEY))
#define SHORT 48

static inline void insert(__global Pair* a, int n) {
    for (int i = 1; i < n; i++) {
        const Pair p = a[i];
        int j = i;
        for (; j > 0 && is_before(p, a[j - 1]); j--) a[j] = a[j - 1];
        a[j] = p;
    }
}

__kernel void sort_rows(__global const S* restrict x, __global long* restrict order, __global Pair* scratch, long ox,
                        long x_r, long x_k, long rows, int n, int descending) {
    __global Pair* a = scratch + get_global_id(0) * 2 * n;
    __global Pair* b = a + n;
    int counts[DIGITS][256];
    for (long r = get_global_id(0); r < rows; r += get_global_size(0)) {
        for (int i = 0; i < n; i++) a[i] = pair_of(key_of(LOAD(x, ox + r * x_r + i * x_k), descending), i);
        if (n <= SHORT) insert(a, n);
        else {
            for (int d = 0; d < DIGITS; d++)
                for (int j = 0; j < 256; j++) counts[d][j] = 0;
            for (int i = 0; i < n; i++)
                for (int d = 0; d < DIGITS; d++) counts[d][(KEY_OF(a[i]) >> 8 * d) & 255]++;
            for (int d = 0; d < DIGITS; d++) {
                int* start = counts[d];
                if (start[(KEY_OF(a[0]) >> 8 * d) & 255] == n) continue;
                for (int j = 0, sum = 0; j < 256; j++) {
                    const int c = start[j];
                    start[j] = sum;
                    sum += c;
                }
                for (int i = 0; i < n; i++) {
                    const Pair p = a[i];
                    b[start[(KEY_OF(p) >> 8 * d) & 255]++] = p;
                }
                __global Pair* t = a;
                a = b;
                b = t;
            }
        }
        for (int i = 0; i < n; i++) order[r * n + i] = AT(a[i]);
    }
}

#else
#define EACH 8
#define BLOCK (EACH * WG)
#define SPREAD(e) ((e) + (e) / EACH)    // over the banks of local memory

static inline void exchange(Pair* p, Pair* q, bool rising) {
    const Pair a = *p, b = *q;
    const bool turn = is_before(b, a) == rising;
    *p = turn ? b : a;
    *q = turn ? a : b;
}

// The step that reaches `reach` (4, 2 or 1) on p; whether pair m rises is said by `rising`.
#define STEP(reach, rising) {                                                    \
        _Pragma("unroll") for (int m = 0; m < EACH; m++)                         \
            if ((m & (reach)) == 0) exchange(p + m, p + (m | (reach)), rising);  \
    }
#define VISIT _Pragma("unroll") for (int m = 0; m < EACH; m++)
#define FIRST(size) (size == last || ((lid * EACH + m) & (size)) == 0)

// Rows that fit a block leave their order, others sorted blocks.
__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void sort_blocks(__global const S* restrict x, __global Pair* restrict pairs, __global long* restrict order, long ox,
                 long x_r, long x_k, long rows, int n, int descending, int padded) {
    __local Pair block[SPREAD(BLOCK)];
    const int lid = get_local_id(0), last = LEAST(padded, BLOCK), bits = 31 - clz(padded);
    const long base = (long)get_group_id(0) * BLOCK;
    for (int e = lid; e < BLOCK; e += WG) {
        const long r = (base + e) >> bits;
        const int k = (int)((base + e) & (padded - 1));
        const bool inside = r < rows && k < n;
        block[SPREAD(e)] = pair_of(inside ? key_of(LOAD(x, ox + r * x_r + k * x_k), descending) : ~(KEY)0, k);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    Pair p[EACH];
    VISIT p[m] = block[SPREAD(lid * EACH + m)];
    if (last >= 2) STEP(1, FIRST(2))
    if (last >= 4) { STEP(2, FIRST(4)) STEP(1, FIRST(4)) }
    if (last >= 8) { STEP(4, FIRST(8)) STEP(2, FIRST(8)) STEP(1, FIRST(8)) }
    VISIT block[SPREAD(lid * EACH + m)] = p[m];
    for (int size = 2 * EACH; size <= last; size *= 2)
        for (int top = size / 2; top > 0;) {
            const int low = top > 4 ? 29 - clz(top) : 0, least = 1 << low;   // reaches from top down to least
            const int e = (lid >> low << (low + 3)) | (lid & (least - 1));
            const bool rising = size == last || (e & size) == 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            VISIT p[m] = block[SPREAD(e + m * least)];
            if (4 * least <= top) STEP(4, rising)
            if (2 * least <= top) STEP(2, rising)
            STEP(1, rising)
            VISIT block[SPREAD(e + m * least)] = p[m];
            top = least / 2;
        }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = lid; e < BLOCK; e += WG) {
        const long r = (base + e) >> bits;
        const int k = (int)((base + e) & (padded - 1));
        if (padded > BLOCK) pairs[base + e] = block[SPREAD(e)];
        else if (r < rows && k < n) order[r * n + k] = AT(block[SPREAD(e)]);
    }
}

// At the last pass the order is written, else the merged pairs.
__kernel void merge_runs(__global const Pair* restrict pairs, __global Pair* restrict merged,
                         __global long* restrict order, long rows, int n, int padded, int run, int fan) {
    const long i = get_global_id(0), base = i & ~((long)run * fan - 1);
    const Pair p = pairs[i];
    long position = base;
    for (int f = 0; f < fan; f += 4) {
        int before[4] = {0, 0, 0, 0};
        for (int step = run / 2; step > 0; step /= 2)
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                const long at = base + (long)LEAST(f + j, fan - 1) * run + before[j];
                if (is_before(pairs[at + step - 1], p)) before[j] += step;
            }
        #pragma unroll
        for (int j = 0; j < 4; j++)
            if (f + j < fan) position += before[j] + is_before(pairs[base + (long)(f + j) * run + before[j]], p);
    }
    const long r = position >> (31 - clz(padded));
    const int k = (int)(position & (padded - 1));
    if (run * (long)fan < padded) merged[position] = p;
    else if (r < rows && k < n) order[r * n + k] = AT(p);
}
#endif
