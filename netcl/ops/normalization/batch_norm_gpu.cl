// batch_norm_gpu.cl: batch norm over the channels of x (N, C, span), with gradients, for GPUs.
//
//   y = (x - mean[c]) * rstd[c] * w[c] + b[c], then relu with RELU; mean, rstd (C,) over N and span in the compute type
//   E.
//
// Three launches, so that few channels still fill the device:  x --moments--> parts (splits, C) --finish--> mean, rstd
// --apply--> y, and the same for the gradient. In moments a group holds CT channels x LANES work-items:
//   span > 1:  CT 1, the lanes walk the vectors of one channel;   span 1:  lanes of CT neighbouring columns read
//   together.
// Sums go through local memory, in the same order on every run. Partial variances are about their own means and
// are joined by Chan's rule. V is a vector of VEC elements (1 or 4; 4 needs span and all offsets to be multiples of 4).
// D are the sizes of x in vectors, `across` of them per sample and channel, and `splits` of `chunk` vectors of a
// channel. USE_<KERNEL> picks the kernels of a program, since drivers compile everything they see.
// Source: Ioffe and Szegedy 2015, arXiv:1502.03167; Chan et al. 1983, "Algorithms for computing the sample variance".
typedef struct { I N, C, across, chunk, splits, vectors; } Dims;

#ifndef CT
#define CT 1
#endif
#ifndef LANES
#define LANES 256   // work-items per channel, a power of two; CT * LANES is the size of a group
#endif
#ifndef PER
#define PER 0       // vectors that a work-item of `moments` keeps in registers
#endif
#ifndef FINISH
#define FINISH 32   // work-items that join the parts of a channel, a power of two
#endif
#ifdef HAS_W
#define WEIGHT(c) LOADW(w, c)
#else
#define WEIGHT(c) ((E)1)
#endif
#ifdef HAS_B
#define SHIFT(c) LOADW(b, c)
#else
#define SHIFT(c) ((E)0)
#endif
#ifdef RELU
#define ACT(v) ((v) < 0 ? (V)(0) : (v))
#define GATE(v, g) ((v) > 0 ? (g) : (v) <= 0 ? (V)(0) : (v))     // relu's gradient; NaN stays NaN
#else
#define ACT(v) (v)
#define GATE(v, g) (g)
#endif

#define FOLD (LANES >= 128 ? 16 : LANES >= 32 ? 8 : LANES >= 8 ? 4 : 1)     // about the root of LANES
#define PLACES (CT * (LANES + FOLD))

// Sum over the lanes of a channel, in the same order on every run; `t` has PLACES places. FOLD lanes add up LANES /
// FOLD values each, then all lanes those sums: two barriers, and none is needed before the next call. Functions with
// barriers are called at one place of a kernel, in a loop: inlined twice, one CPU driver lets work-items run ahead of
// each other.
static inline E lane_total(__local E* t, E v) {
    int cx = get_local_id(0), lane = get_local_id(1);
    t[lane * CT + cx] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < FOLD) {
        E s = 0;
        for (int j = lane; j < LANES; j += FOLD) s += t[j * CT + cx];
        t[(LANES + lane) * CT + cx] = s;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    E s = 0;
    for (int j = LANES; j < LANES + FOLD; j++) s += t[j * CT + cx];
    return s;
}

#define GROUP __attribute__((reqd_work_group_size(CT, LANES, 1)))
// Vectors e = first + lane, ... of channel c: sample e / across, place e % across.
#define PLACE(e) (((e) / D.across * D.C + c) * D.across + (e) % D.across)

#ifdef USE_MOMENTS
// Mean and sum of squares about it of each split's elements. Launch: (ceil(C / CT) * CT, splits * LANES).
// A work-item keeps its PER vectors in registers; PER 0: there are more, and they are read again.
__kernel GROUP void moments(__global const S* restrict x, __global E* restrict part_m, __global E* restrict part_s,
                            long ox, const Dims D) {
    __local E tree[PLACES];
    I c = get_global_id(0), first = get_group_id(1) * D.chunk, size = D.N * D.across;
    I last = first + D.chunk < size ? first + D.chunk : size;
    int lane = get_local_id(1);
    x += ox;
    E m = 0, q = 0;
#if PER
    V v[PER];
    _Pragma("unroll") for (int k = 0; k < PER; k++) {
        const I e = first + lane + k * LANES;
        v[k] = e < last && c < D.C ? GET(x, PLACE(e)) : (V)(0);
    }
#endif
    for (int pass = 0; pass < 2; pass++) {
        V s = (V)(0);
#if PER
        _Pragma("unroll") for (int k = 0; k < PER; k++) {
            const V d = v[k] - (first + lane + k * LANES < last ? m : (E)0);
            s += pass ? d * d : d;
        }
#else
        if (c < D.C)
            for (I e = first + lane; e < last; e += LANES) { V d = GET(x, PLACE(e)) - m; s += pass ? d * d : d; }
#endif
        q = lane_total(tree, SUM(s));
        if (pass == 0) m = q / ((last - first) * VEC);
    }
    if (lane == 0 && c < D.C) {
        part_m[get_group_id(1) * D.C + c] = m;
        part_s[get_group_id(1) * D.C + c] = q;
    }
}
#endif

// Sum over the work-items of a group of FINISH; calls in turn need `t` of their own.
static inline E joined(__local E* t, E v) {
    t[get_local_id(0)] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    E s = 0;
    for (int j = 0; j < FINISH; j++) s += t[j];
    return s;
}

#define COUNT(p) ((E)(((p) + 1) * chunk < size ? chunk : size - (p) * chunk))

#ifdef USE_MOMENTS
// Join the parts of each channel and move the running statistics. Launch: (C * FINISH).
__kernel __attribute__((reqd_work_group_size(FINISH, 1, 1)))
void finish(__global const E* restrict part_m, __global const E* restrict part_s, __global E* restrict rm,
            __global E* restrict rv, __global E* restrict mean, __global E* restrict rstd, long orm, long orv,
            const Dims D, E eps, E momentum) {
    __local E tree[2 * FINISH];
    int c = get_group_id(0), lid = get_local_id(0);
    long size = (long)D.N * D.across * VEC, chunk = (long)D.chunk * VEC;     // elements
    E m = 0, s = 0;
    for (int pass = 0; pass < 2; pass++) {
        E v = 0;
        for (int p = lid; p < D.splits; p += FINISH) {
            E d = part_m[p * D.C + c] - m;
            v += pass ? part_s[p * D.C + c] + d * d * COUNT(p) : d * COUNT(p);
        }
        s = joined(tree + pass * FINISH, v);
        if (pass == 0) m = s / size;
    }
    if (lid == 0) {
        mean[c] = m;
        rstd[c] = 1 / sqrt(s / size + eps);
#ifdef TRACK
        rm[orm + c] = rm[orm + c] * (1 - momentum) + momentum * m;
        rv[orv + c] = rv[orv + c] * (1 - momentum) + momentum * (s / (size - 1));
#endif
    }
}
#endif

#ifdef USE_APPLY
// One vector per work-item. spread is rstd, or with VARIANCE, as in eval mode, a variance.
__kernel void apply(__global const S* restrict x, __global const W* restrict w, __global const W* restrict b,
                    __global const E* restrict mean, __global const E* restrict spread, __global S* restrict y, long ox,
                    long ow, long ob, long omean, long ospread, const Dims D, E eps) {
    I i = get_global_id(0);
    if (i >= D.vectors) return;
    I c = i / D.across % D.C;
    mean += omean;
    spread += ospread;
    w += ow;
    b += ob;
#ifdef VARIANCE
    E k = 1 / sqrt(spread[c] + eps);
#else
    E k = spread[c];
#endif
    V v = (GET(x + ox, i) - mean[c]) * (k * WEIGHT(c)) + SHIFT(c);
    SET(y, i, ACT(v));
}
#endif

#ifdef USE_GRAD_SUMS
// With h = (x - mean) * rstd, u = g (0 where relu was): parts of sum u and sum u h, geometry of `moments`.
__kernel GROUP void grad_sums(__global E* restrict part_u, __global E* restrict part_h, __global const S* restrict g,
                              __global const S* restrict x, __global const W* restrict w, __global const W* restrict b,
                              __global const E* restrict mean, __global const E* restrict rstd, long og, long ox,
                              long ow, long ob, long omean, long orstd, const Dims D) {
    __local E tree[PLACES];
    I c = get_global_id(0), first = get_group_id(1) * D.chunk, size = D.N * D.across;
    I last = first + D.chunk < size ? first + D.chunk : size;
    int lane = get_local_id(1);
    g += og;
    x += ox;
    w += ow;
    b += ob;
    V su = (V)(0), suh = (V)(0);
    E k = 0;
    if (c < D.C) {
        E m = mean[omean + c];
        k = rstd[orstd + c];
#ifdef RELU
        E kf = k * WEIGHT(c), t = SHIFT(c);
#endif
        for (I e = first + lane; e < last; e += LANES) {
            I i = PLACE(e);
            V h = GET(x, i) - m, u = GET(g, i);
            u = GATE(h * kf + t, u);
            su += u;
            suh += u * h;
        }
    }
    E sums[2] = {SUM(su), SUM(suh) * k};
    for (int i = 0; i < 2; i++) sums[i] = lane_total(tree, sums[i]);
    if (lane == 0 && c < D.C) {
        part_u[get_group_id(1) * D.C + c] = sums[0];
        part_h[get_group_id(1) * D.C + c] = sums[1];
    }
}
#endif

#ifdef USE_GRAD_SUMS
// dw, db as stored, and the same sums (2, C) in the compute type for dx. Launch: (C * FINISH).
__kernel __attribute__((reqd_work_group_size(FINISH, 1, 1)))
void grad_finish(__global E* restrict sums, __global W* restrict dw, __global W* restrict db,
                 __global const E* restrict part_u, __global const E* restrict part_h, const Dims D) {
    __local E tree[2 * FINISH];
    int c = get_group_id(0), lid = get_local_id(0);
    E u = 0, h = 0;
    for (int p = lid; p < D.splits; p += FINISH) {
        u += part_u[p * D.C + c];
        h += part_h[p * D.C + c];
    }
    E both[2] = {u, h};
    for (int i = 0; i < 2; i++) both[i] = joined(tree + i * FINISH, both[i]);
    if (lid == 0) {
        sums[c] = both[0];
        sums[D.C + c] = both[1];
        STOREW(db, c, both[0]);
        STOREW(dw, c, both[1]);
    }
}
#endif

#ifdef USE_GRAD_APPLY
// dx = w * rstd * (u - sum u / n - h * sum u h / n), n = N * span; with FIXED statistics (eval) dx = w * rstd * u.
__kernel void grad_apply(__global S* restrict dx, __global const E* restrict sums, __global const S* restrict g,
                         __global const S* restrict x, __global const W* restrict w, __global const W* restrict b,
                         __global const E* restrict mean, __global const E* restrict rstd, long og, long ox, long ow,
                         long ob, long omean, long orstd, const Dims D) {
    I i = get_global_id(0);
    if (i >= D.vectors) return;
    I c = i / D.across % D.C;
    w += ow;
    b += ob;
    E k = rstd[orstd + c], kf = k * WEIGHT(c);
    V u = GET(g + og, i);
#if defined(RELU) || !defined(FIXED)
    V h = GET(x + ox, i) - mean[omean + c];
#endif
    u = GATE(h * kf + SHIFT(c), u);
#ifndef FIXED
    const long size = (long)D.N * D.across * VEC;
    u -= sums[c] / size + h * (k * sums[D.C + c] / size);
#endif
    SET(dx, i, u * kf);
}
#endif
