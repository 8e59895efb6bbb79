// loss.cl: the end of losses of labels: every label checked, the rows' losses and weights added up.
// out[0] = sum(loss) / sum(weight) (MEAN) or sum(loss); out[1] = 1 / sum(weight), or 1, for backward.
// A label outside [0, classes) that is not `ignore` sets the error flag (see core/backend/opencl.py); nothing is
// indexed by it. Launch: one group of WG items (1 on CPU devices). Sums in ACC, strided over items, then a tree. E is
// the compute type. With LOGITS the rows' losses come from logits (n, classes) of type S, a row per item, so that few
// rows take one launch; their logsumexp goes to `lse`. CLASS_WEIGHTS: `w` holds a weight for each class. SMOOTH: labels
// are smoothed.
// GRADIENT: the gradient of out[0] goes to `dz`, row-major.
#ifndef WG
#define WG 1
#endif
#ifdef CLASS_WEIGHTS
#define WEIGHT(c) LOAD(w, c)
#else
#define WEIGHT(c) 1
#endif

#ifdef LOGITS
// logsumexp of a row
static inline E row_lse(__global const S* z, long step, int classes) {
    E top = LOAD(z, 0), sum = 0;
    for (int c = 1; c < classes; c++) top = fmax(top, (E)LOAD(z, c * step));
    for (int c = 0; c < classes; c++) sum += exp(LOAD(z, c * step) - top);
    return top + log(sum);
}

static inline E row_loss(__global const S* z, __global const S* w, long step, int classes, int label, E lse, E smooth) {
    const E loss = WEIGHT(label) * (lse - LOAD(z, label * step));
#ifdef SMOOTH
    E all = 0;
    for (int c = 0; c < classes; c++) all += WEIGHT(c) * (lse - LOAD(z, c * step));
    return (1 - smooth) * loss + smooth / classes * all;
#else
    return loss;
#endif
}

// d loss / d z of a row at class c, whose softmax is p; `all` is the sum of the class weights.
static inline E row_slope(E p, __global const S* w, long classes, long c, long label, E all, E smooth) {
    const E slope = WEIGHT(label) * (p - (c == label));
#ifdef SMOOTH
    return (1 - smooth) * slope + smooth / classes * (p * all - WEIGHT(c));
#else
    return slope;
#endif
}
#endif

// The sum of every item's value.
static inline ACC sum_of(ACC value, __local ACC* tree) {
#if WG > 1
    const int lid = get_local_id(0);
    tree[lid] = value;
    for (int width = WG / 2; width > 0; width /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid < width) tree[lid] += tree[lid + width];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    value = tree[0];
#endif
    return value;
}

// out[0] = 1 / (sum of the weights of the labels that count), for gradients that are computed before the loss.
__kernel void reduce_weights(__global const LABEL* labels, __global const S* w, __global E* out, long olabels, long ow,
                             long n, long classes, long ignore) {
    __local ACC tree[WG];
    ACC weights = 0;
    for (long i = get_local_id(0); i < n; i += WG) {
        const long label = (long)labels[olabels + i];
        if (label != ignore && label >= 0 && label < classes) weights += WEIGHT(ow + label);
    }
    weights = sum_of(weights, tree);
    if (get_local_id(0) == 0) out[0] = (E)(1 / weights);
}

__kernel void reduce_loss(
#ifdef LOGITS
    __global const S* z, __global const S* w, __global E* lse, long oz, long ow,
#ifdef GRADIENT
    __global S* dz,
#endif
#else
    __global const E* loss, __global const E* weight,
#endif
    __global const LABEL* labels, __global E* out, long olabels, int code, __global int* flag, long n, long classes,
#ifdef LOGITS
    long row, long step, E smooth,
#endif
    long ignore) {
    const int lid = get_local_id(0);
    ACC total = 0, weights = 0;
    for (long i = lid; i < n; i += WG) {
        const long label = (long)labels[olabels + i];
        const int inside = label >= 0 && label < classes;
        if (label != ignore && !inside) {
            if (atomic_cmpxchg(flag, 0, 1) == 0) { flag[1] = code; flag[2] = (int)label; flag[3] = (int)classes; }
        }
#ifdef LOGITS
        const E sum = lse[i] = row_lse(z + oz + i * row, step, classes);
        if (label == ignore || !inside) continue;
        total += row_loss(z + oz + i * row, w + ow, step, classes, label, sum, smooth);
        weights += WEIGHT(ow + label);
#else
        total += loss[i];
        weights += weight[i];
#endif
    }
    __local ACC a[WG], b[WG];
    total = sum_of(total, a);
    weights = sum_of(weights, b);
    const E scale = MEAN ? (E)(1 / weights) : 1;
    if (lid == 0) {
        out[0] = (E)(MEAN ? total / weights : total);
        out[1] = scale;
    }
#ifdef GRADIENT
    E all = 0;
    for (int c = 0; c < classes; c++) all += WEIGHT(ow + c);
    barrier(CLK_GLOBAL_MEM_FENCE);    // lse of other items' rows
    for (int i = lid, count = n * classes; i < count; i += WG) {
        const int r = i / (int)classes, c = i % (int)classes;
        const long label = (long)labels[olabels + r];
        const E p = exp(LOAD(z, oz + r * row + c * step) - lse[r]);
        const bool counts = label != ignore && label >= 0 && label < classes;
        STORE(dz, i, counts ? scale * row_slope(p, w + ow, classes, c, label, all, smooth) : 0);
    }
#endif
}
