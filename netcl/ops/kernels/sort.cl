// sort.cl: the stable order of each row. Values become unsigned keys whose order is theirs: NaN is the largest key in
// either direction, -0 equals 0. x (rows, n), any strides, of type S (computed as T) -> order (rows, n), contiguous.
// KEY is uint, or ulong with WIDE. A pair is a key and where it came from; no two are equal, so any sorting is stable.
//
// PLAIN (CPU devices): an item sorts rows one after the other: short ones by insertion, others by counting digits of 8
// bits, the lowest first, between two halves of its own scratch memory; digits that are equal everywhere are skipped.
// Else: a bitonic network over rows padded to `padded`, a power of two, with pairs larger than all others. make_pairs
// depends on S; sort_block and exchange (WG defined) only on KEY. A group of WG items holds BLOCK pairs (several short
// rows) in local memory; `exchange` makes the steps that reach over blocks. Source: Batcher 1968.
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

#ifndef WG
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
#endif

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

__kernel void sort_rows(__global const S* restrict x, __global long* restrict order, __global Pair* scratch, long x_at,
                        long x_r, long x_k, long rows, int n, int descending) {
    __global Pair* a = scratch + get_global_id(0) * 2 * n;
    __global Pair* b = a + n;
    int counts[DIGITS][256];
    for (long r = get_global_id(0); r < rows; r += get_global_size(0)) {
        for (int i = 0; i < n; i++) a[i] = pair_of(key_of(LOAD(x, x_at + r * x_r + i * x_k), descending), i);
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

#elif defined(WG)
#define BLOCK (4 * WG)

// The steps of stages first .. last (powers of two, the length of the runs they make) that stay inside a block.
// With `order` at the end the positions are written to it, else the pairs go back.
__kernel __attribute__((reqd_work_group_size(WG, 1, 1)))
void sort_block(__global Pair* restrict pairs, __global long* restrict order, long rows, int n, int padded, int first,
                int last, int ends) {
    __local Pair block[BLOCK];
    const int lid = get_local_id(0);
    const long base = (long)get_group_id(0) * BLOCK;
    for (int e = lid; e < BLOCK; e += WG) block[e] = pairs[base + e];
    for (int size = first, reach = LEAST(first, BLOCK) / 2; size <= last;) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int j = lid; j < BLOCK / 2; j += WG) {
            const int e = 2 * j - (j & (reach - 1));
            const bool rising = size == padded || ((base + e) & size) == 0;
            const Pair p = block[e], q = block[e + reach];
            if (is_before(q, p) == rising) { block[e] = q; block[e + reach] = p; }
        }
        reach /= 2;
        if (reach == 0) {
            size *= 2;
            reach = LEAST(size, BLOCK) / 2;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = lid; e < BLOCK; e += WG) {
        if (ends) {
            const long r = (base + e) / padded;
            const int k = (int)(base + e - r * padded);
            if (r < rows && k < n) order[r * n + k] = AT(block[e]);
        } else pairs[base + e] = block[e];
    }
}

// The step of stage `size` that reaches `reach`, a block or more, far.
__kernel void exchange(__global Pair* restrict pairs, long half_size, int padded, int size, int reach) {
    const long j = get_global_id(0), e = 2 * j - (j & (reach - 1));
    if (j >= half_size) return;
    const bool rising = size == padded || (e & size) == 0;
    const Pair p = pairs[e], q = pairs[e + reach];
    if (is_before(q, p) == rising) { pairs[e] = q; pairs[e + reach] = p; }
}

#else
__kernel void make_pairs(__global const S* restrict x, __global Pair* restrict pairs, long x_at, long x_r, long x_k,
                         long rows, int n, int descending, int padded) {
    const long e = get_global_id(0), r = e / padded;
    const int k = (int)(e - r * padded);
    pairs[e] = pair_of(r < rows && k < n ? key_of(LOAD(x, x_at + r * x_r + k * x_k), descending) : ~(KEY)0, k);
}
#endif
