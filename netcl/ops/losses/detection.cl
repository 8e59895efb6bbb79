// detection.cl: weighted cross-entropy plus weighted smooth L1.
//
//   loss[0] = scale * sum_i DETECTION(pred_i, target_i, heat_i, reg_i)
//   pred, target, heat, reg (n,) contiguous float; part (parts,) sums of stretches; loss (1,)
//   partial: n elements in stretches of `chunk`, one sum each      reduce: the sum of the parts, scaled
//
// PLAIN (CPU devices): local = 1, an item per stretch, vectors of W lanes and no builtins in the loop. Else a group of
// WG per stretch, sums through a tree in local memory. DETECTION and the vector type T come from the dialect's
// preamble. Source: Girshick 2015, arXiv:1504.08083 (smooth L1); the tree: Harris 2007, "Optimizing Parallel
// Reduction".
#ifndef WG
#define WG 1        // work-items per group; a power of two on GPUs (64, 128, 256)
#endif
typedef T U __attribute__((aligned(4)));
typedef union { T all; float lane[W]; } Lanes;
#define VEC(x, i) (*(__global const U*)((x) + (i)))

// The last lanes of a stretch: absent ones have weight 0.
static inline T lanes(__global const float* x, long i, long end) {
    Lanes v;
    for (int j = 0; j < W; j++) v.lane[j] = i + j < end ? x[i + j] : 0.0f;
    return v.all;
}

static inline float across(T v) {
    const Lanes e = {v};
    float s = 0.0f;
    for (int j = 0; j < W; j++) s += e.lane[j];
    return s;
}

#ifdef PLAIN
#define TOTAL(v, lid) across(v)
#define LOCAL
#else
static inline float tree_sum(__local float* tree, float v, int lid) {
    tree[lid] = v;
    for (int width = WG / 2; width > 0; width /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid < width) tree[lid] += tree[lid + width];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return tree[0];
}
#define TOTAL(v, lid) tree_sum(tree, across(v), lid)
#define LOCAL __local float tree[WG];
#endif

__kernel void detection_partial(
    __global const float* restrict pred, __global const float* restrict target, __global const float* restrict heat,
    __global const float* restrict reg, __global float* restrict part, long opred, long otarget, long oheat, long oreg,
    long n, long chunk
) {
    LOCAL
    int lid = get_local_id(0);
    long g = get_group_id(0), first = g * chunk, end = first + chunk < n ? first + chunk : n;
    pred += opred, target += otarget, heat += oheat, reg += oreg;
    T sum = (T)(0.0f);
    for (long i = first + lid * W; i < end; i += WG * W) {
        if (i + W <= end) sum += DETECTION(VEC(pred, i), VEC(target, i), VEC(heat, i), VEC(reg, i));
        else sum += DETECTION(lanes(pred, i, end), lanes(target, i, end), lanes(heat, i, end), lanes(reg, i, end));
    }
    float total = TOTAL(sum, lid);
    if (lid == 0) part[g] = total;
}

__kernel void detection_reduce(
    __global const float* restrict part, __global float* restrict loss, long parts, float scale
) {
    LOCAL
    int lid = get_local_id(0);
    T sum = (T)(0.0f);
    for (long i = lid * W; i < parts; i += WG * W) sum += i + W <= parts ? VEC(part, i) : lanes(part, i, parts);
    float total = TOTAL(sum, lid);
    if (lid == 0) loss[0] = total * scale;
}
