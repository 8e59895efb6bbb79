// peak.cl: what a device reaches at best, to compare kernels with.
//   stream: y[i] = x[i], 8 bytes moved a float: memory bandwidth.
//   fma:    16 independent chains of multiply-add over V floats: arithmetic, nothing loaded.
// Launch: GPUs: one item a vector of 4. CPU devices: local size 1, each item walks `chunk` vectors.
#ifndef W
#define W 4         // floats in a vector (4 on GPUs, as many as registers hold on CPU devices)
#endif
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
typedef CAT(float, W) V;

__kernel void stream(__global const V* restrict x, __global V* restrict y, int chunk)
{
    size_t first = get_global_id(0) * (size_t)chunk;
    for (size_t i = first; i < first + chunk; i++) y[i] = x[i];
}

__kernel void fma_chains(__global V* restrict y, int rounds, float by)
{
    V a[16];
    for (int i = 0; i < 16; i++) a[i] = (V)(by + i);
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int i = 0; i < 16; i++) a[i] = a[i] * by + 0.5f;
    }
    V sum = a[0];
    for (int i = 1; i < 16; i++) sum += a[i];
    y[get_global_id(0)] = sum;
}
