// create.cl: tensors made from nothing, and triangles.
//   FORM 0 ramp:     out[i] = start + i * step, and `last` at the end; computed in ACC
//   FORM 1 triangle: out[b, r, c] = x[b, r, c] where c - r <= k (lower) or c - r >= k, else 0; moved as bits U.
//   FORM 2 fill:     (low, high) in bytes start <= k < end: n words of 16 bytes from word `first`, and the bytes round
//                    them
// Launch: an item takes `span` elements (of a row), or words, one on GPUs.
#pragma OPENCL FP_CONTRACT OFF
#define LEAST(a, b) ((a) < (b) ? (a) : (b))

#if FORM == 0
__kernel void ramp(__global S* restrict out, ACC start, ACC step, ACC last, long n, long span) {
    long i = (long)get_global_id(0) * span;
    for (const long end = LEAST(i + span, n); i < end; i++) {
        const T v = (T)(i == n - 1 ? last : start + (ACC)i * step);
        STORE(out, i, v);
    }
}

#elif FORM == 2
__kernel void fill(__global ulong2* restrict out, ulong low, ulong high, long start, long end, long first, long n,
                   long span) {
    const ulong2 word = (ulong2)(low, high);
    long i = (long)get_global_id(0) * span;
    if (i == 0) {
        __global uchar* bytes = (__global uchar*)out;
        const uchar* pattern = (const uchar*)&word;
        for (long k = start; k < LEAST(first * 16, end); k++) bytes[k] = pattern[k % 16];
        for (long k = (first + n) * 16; k < end; k++) bytes[k] = pattern[k % 16];
    }
    for (const long last = LEAST(i + span, n); i < last; i++) out[first + i] = word;
}

#else
__kernel void triangle(__global const U* restrict x, __global U* restrict out, long ox, long x_b, long x_r, long x_c,
                       long rows, long cols, long k, int lower, long span) {
    const long row = get_global_id(1), b = row / rows, r = row - b * rows, from = ox + b * x_b + r * x_r;
    long c = (long)get_global_id(0) * span;
    for (const long end = LEAST(c + span, cols); c < end; c++) {
        const bool inside = lower ? c - r <= k : c - r >= k;
        out[row * cols + c] = inside ? x[from + c * x_c] : (U)0;
    }
}
#endif
