// loss.cl: the end of cross-entropy: every label checked, the rows' losses and weights added up.
// out[0] = sum(loss) / sum(weight) (MEAN) or sum(loss); out[1] = 1 / sum(weight), or 1, for backward.
// A label outside [0, classes) that is not `ignore` sets the error flag (see core/backend/opencl.py); nothing is indexed
// by it. Launch: one group of WG items (1 on CPU devices). Sums in ACC, strided over items, then a tree.
#ifndef WG
#define WG 1
#endif
__kernel void reduce_loss(__global const S* loss, __global const S* weight, __global const LABEL* labels,
                          __global S* out, __global int* flag, long label_offset, long n, long classes, long ignore,
                          int code) {
    const int lid = get_local_id(0);
    ACC total = 0, weights = 0;
    for (long i = lid; i < n; i += WG) {
        const long label = (long)labels[label_offset + i];
        if (label != ignore && (label < 0 || label >= classes)) {
            if (atomic_cmpxchg(flag, 0, 1) == 0) { flag[1] = code; flag[2] = (int)label; flag[3] = (int)classes; }
        }
        total += loss[i];
        weights += weight[i];
    }
#if WG > 1
    __local ACC a[WG], b[WG];
    a[lid] = total;
    b[lid] = weights;
    for (int w = WG / 2; w > 0; w /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid < w) { a[lid] += a[lid + w]; b[lid] += b[lid + w]; }
    }
    if (lid > 0) return;
    total = a[0];
    weights = b[0];
#endif
#if MEAN
    out[0] = (S)(total / weights);
    out[1] = (S)(1 / weights);
#else
    out[0] = (S)total;
    out[1] = 1;
#endif
}
