// count.cl: how often each position in [0, n) occurs in index (size), any stride: out[v] += 1. Sums of whole numbers
// are alike in every order of the atomics. A bad position sets the error flag and is not counted.
// With SLOTS >= n a group counts in local memory first. Launch: items take positions a launch's width apart.
// PLAIN (CPU devices): item p counts `span` positions into a row of its own, out[p], without atomics.

__kernel void count(__global const INDEX* restrict index, volatile __global int* restrict out, I oindex, int code,
                    __global int* flag, I i_k, I n, I size, I span) {
#ifdef PLAIN
    I k = (I)get_global_id(0) * span;
    __global int* own = (__global int*)out + (I)get_global_id(0) * n;
    for (const I end = LEAST(k + span, size); k < end; k++) {
        const INDEX v = index[oindex + k * i_k];
        if (v >= 0 && v < n) own[(I)v]++;
        else bad_index(flag, code, v, n);
    }
#else
#ifdef SLOTS
    volatile __local int slots[SLOTS];
    for (int j = get_local_id(0); j < n; j += get_local_size(0)) slots[j] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
#else
    volatile __global int* slots = out;
#endif
    for (I k = get_global_id(0); k < size; k += get_global_size(0)) {
        const INDEX v = index[oindex + k * i_k];
        if (v >= 0 && v < n) atomic_inc(slots + (I)v);
        else bad_index(flag, code, v, n);
    }
#ifdef SLOTS
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int j = get_local_id(0); j < n; j += get_local_size(0))
        if (slots[j] != 0) atomic_add(out + j, slots[j]);
#endif
#endif
}
