// scatter.cl: sums by position: out[o, index[o, k, c], c] += src[o, k, c], always in the order of k: no atomics, and
// the same bits in every run. out (outer, n, cols) is contiguous, of type T; index and src (outer, count, cols) have
// any strides. Positions equal to `skip` are left out; a bad one sets the error flag and is left out.
// T8 is a vector of eight T, defined where S is T and items own many columns.
//   FORM 0 columns: an item owns `chunk` columns of one o and walks along k.
//   Where that leaves too few items, positions are sorted first (FORM 1 makes keys, -1 for what is left out) and equal
//   ones lie together, as a run. The sorted keys are cut into blocks of `span`:
//   FORM 2 runs:    an item sums one column of one block run by run. A run inside the block goes to out; what continues
//                   from the block before goes to `head`, what continues into the next to `tail`.
//   FORM 3 ends:    an item per block and column adds a tail and the heads that continue it to out.

#if FORM == 0
#ifdef T8
typedef T8 UNALIGNED __attribute__((aligned(sizeof(T))));
#endif

__kernel void add_columns(__global T* restrict out, __global const INDEX* restrict index,
                          __global const S* restrict src, __global int* flag, I i_at, I i_o, I i_k, I i_c, I s_at,
                          I s_o, I s_k, I s_c, I n, I count, I cols, I outer, I chunk, long skip, int code) {
    const I blocks = (cols + chunk - 1) / chunk, item = get_global_id(0), o = item / blocks;
    const I c0 = (item - o * blocks) * chunk, c1 = LEAST(c0 + chunk, cols);
    if (o >= outer) return;
    __global T* base = out + o * n * cols;
    for (I k = 0; k < count; k++) {
        const I at = i_at + o * i_o + k * i_k, from = s_at + o * s_o + k * s_k;
        if (i_c == 0) {
            const INDEX v = index[at];
            if (v < 0 || v >= n) { bad_index(flag, code, v, n); continue; }
            if (v == skip) continue;
            __global T* to = base + (I)v * cols;
            I c = c0;
#ifdef T8
            if (s_c == 1)
                for (; c + 8 <= c1; c += 8)
                    *(__global UNALIGNED*)(to + c) += *(__global const UNALIGNED*)(src + from + c);
#endif
            for (; c < c1; c++) to[c] += LOAD(src, from + c * s_c);
        } else
            for (I c = c0; c < c1; c++) {
                const INDEX v = index[at + c * i_c];
                if (v < 0 || v >= n) bad_index(flag, code, v, n);
                else if (v != skip) base[(I)v * cols + c] += LOAD(src, from + c * s_c);
            }
    }
}

#elif FORM == 1
__kernel void make_keys(__global const INDEX* restrict index, __global KEY* restrict keys, __global int* flag, I i_at,
                        I i_o, I i_k, I i_c, I n, I count, I cols, I size, long skip, int code) {
    const I e = get_global_id(0), r = e / cols, c = e - r * cols, o = r / count, k = r - o * count;
    if (e >= size) return;
    const INDEX v = index[i_at + o * i_o + k * i_k + c * i_c];
    const bool good = v >= 0 && v < n;
    if (!good) bad_index(flag, code, v, n);
    keys[e] = good && v != skip ? (KEY)(((long)o * n + v) * cols + c) : (KEY)-1;
}

#elif FORM == 2
__kernel void add_runs(__global T* restrict out, __global const KEY* restrict keys, __global const long* restrict order,
                       __global const S* restrict src, __global T* restrict head, __global T* restrict tail, I s_at,
                       I s_o, I s_k, I s_c, I n, I count, I cols, I lanes, I blocks, I span) {
    const I item = get_global_id(0), b = item / lanes, lane = item - b * lanes, o = lane / cols, c = lane - o * cols;
    if (b >= blocks) return;
    const I p0 = b * span, p1 = LEAST(p0 + span, count);
    bool continued = b > 0 && keys[p0 - 1] == keys[p0];
    T sum = 0;
    for (I p = p0; p < p1; p++) {
        const KEY key = keys[p];
        sum += LOAD(src, s_at + o * s_o + (I)order[p] * s_k + c * s_c);
        const bool goes_on = p + 1 < count && keys[p + 1] == key;
        if (goes_on && p + 1 < p1) continue;
        if (continued) head[item] = sum;
        else if (goes_on) tail[item] = sum;
        else if (key >= 0) out[(o * n + (I)key) * cols + c] += sum;
        continued = false;
        sum = 0;
    }
}

#else
__kernel void add_ends(__global T* restrict out, __global const KEY* restrict keys, __global const T* restrict head,
                       __global const T* restrict tail, I n, I count, I cols, I lanes, I blocks, I span) {
    const I item = get_global_id(0), b = item / lanes, lane = item - b * lanes, o = lane / cols, c = lane - o * cols;
    if (b + 1 >= blocks) return;
    const I p0 = b * span, p1 = p0 + span;
    const KEY key = keys[p1 - 1];
    if (key < 0 || keys[p1] != key) return;
    if (b > 0 && keys[p0] == key && keys[p0 - 1] == key) return;   // it began in an earlier block
    T sum = tail[item];
    for (I d = b + 1; d < blocks; d++) {
        sum += head[d * lanes + lane];
        const I end = (d + 1) * span;
        if (end >= count || keys[end - 1] != key || keys[end] != key) break;
    }
    out[(o * n + (I)key) * cols + c] += sum;
}
#endif
