// create.cl: tensors made from nothing, and triangles.
//   FORM 0 ramp:     out[i] = start + i * step, and `last` at the end; computed in ACC
//   FORM 1 triangle: out[b, r, c] = x[b, r, c] where c - r <= k (lower) or c - r >= k, else 0; moved as bits U.
//   FORM 2 fill:     out[from + i] = (low, high) for i < n, in words of 16 bytes
// Launch: an item takes `span` elements (of a row), one on GPUs; `fill` is for GPUs, a word an item.
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
__kernel void fill(__global ulong2* restrict out, ulong low, ulong high, long from, long n) {
    const long i = get_global_id(0);
    if (i < n) out[from + i] = (ulong2)(low, high);
}

#else
__kernel void triangle(__global const U* restrict x, __global U* restrict out, long x_at, long x_b, long x_r, long x_c,
                       long rows, long cols, long k, int lower, long span) {
    const long row = get_global_id(1), b = row / rows, r = row - b * rows, from = x_at + b * x_b + r * x_r;
    long c = (long)get_global_id(0) * span;
    for (const long end = LEAST(c + span, cols); c < end; c++) {
        const bool kept = lower ? c - r <= k : c - r >= k;
        out[row * cols + c] = kept ? x[from + c * x_c] : (U)0;
    }
}
#endif
