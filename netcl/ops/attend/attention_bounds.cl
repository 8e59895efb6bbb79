// attention_bounds.cl: which keys each query sees where sequences have lengths of their own. Follows common.cl.
//
//   out (B, Tq, 4): keys [lo, hi) of query i, and the key at its place; neither lo nor hi ever falls as i grows
// PACKED: sequence s of `count` has queries queries[s] .. queries[s + 1] and keys keys[s] .. keys[s + 1], and B is 1.
// Else sample b has the first queries[b] queries (QUERIES) and the first keys[b] keys (KEYS). Lengths beyond the
// tensors are cut. Launch: (Tq, B).
#ifdef QUERIES
#define QUERY_ARGS __global const int* restrict queries, long oqueries,
#else
#define QUERY_ARGS
#endif
#ifdef KEYS
#define KEY_ARGS __global const int* restrict keys, long okeys,
#else
#define KEY_ARGS
#endif
#define WITHIN(x, all) clamp((long)(x), (long)0, (long)(all))

__kernel void bounds(__global int* restrict out, QUERY_ARGS KEY_ARGS long Tq, long Tk, long count, long causal,
                     long lower, long window) {
    const long i = get_global_id(0), b = get_global_id(1);
    long q0 = 0, nq = Tq, k0 = 0, nk = Tk;
#ifdef PACKED
    long s = 0, end = count;            // the sequence of query i, `count` behind the last
    while (s < end) {
        const long middle = (s + end) / 2;
        if (queries[oqueries + middle + 1] <= i) s = middle + 1;
        else end = middle;
    }
    k0 = s < count ? WITHIN(keys[okeys + s], Tk) : Tk;
    nk = s < count ? WITHIN(keys[okeys + s + 1], Tk) - k0 : 0;
    nk = max(nk, (long)0);
    q0 = WITHIN(queries[oqueries + s], Tq);
    nq = s < count ? WITHIN(queries[oqueries + s + 1], Tq) - q0 : 0;
#else
#ifdef QUERIES
    nq = WITHIN(queries[oqueries + b], Tq);
#endif
#ifdef KEYS
    nk = WITHIN(keys[okeys + b], Tk);
#endif
#endif
    const long own = k0 + i - q0 + (lower ? nk - nq : 0), last = k0 + nk;
    long lo = window > 0 ? own - window + 1 : k0, hi = causal ? own + 1 : window > 0 ? own + window : last;
    lo = clamp(lo, k0, last);
    hi = clamp(hi, k0, last);
    if (i < q0) lo = hi = k0;
    if (i >= q0 + nq) lo = hi = last;
    out += (b * Tq + i) * 4;
    out[0] = (int)lo;
    out[1] = (int)hi;
    out[2] = (int)own;
    out[3] = 0;
}
