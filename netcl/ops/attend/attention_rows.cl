// attention_rows.cl: what all kernels of attention share, and single rows of its results in plain arithmetic. Comes
// after attention_scores.cl, before attention_gpu.cl, attention_mma.cl or attention_cpu.cl.
//
// Tiles multiply what a query does not see by 0, and matrix units split floats into parts: both make NaN of infinity.
// So a row of a result that is not finite everywhere is computed again, by one work-item and over the seen keys alone:
//   attend_row      o and lse of query i        query_grad_row   dq of query i        key_grad_row   dk and dv of key j
// Then infinity and NaN in q, k, v and g reach what they reach in plain arithmetic, and nothing that does not see them.
#define UNROLL _Pragma("unroll")
#define LOST(x) ((x) - (x))   // 0, or NaN of what is not finite; Mesa would take x * 0 for 0
#if defined(NARROW) && defined(ALIGNED)
#define GET4(p) JOIN(JOIN(LOAD_, NARROW), 4A)(p)
#elif defined(NARROW)
#define GET4(p) JOIN(JOIN(LOAD_, NARROW), 4)(p)
#elif defined(ALIGNED)
#define GET4(p) (*(__global const E4*)(p))
#else
#define GET4(p) vload4(0, p)
#endif

// Four elements of a row from c on; 0 past the end. four_wide: of k and v, which may have been widened to E before.
static inline E4 four(__global const S* p, int c, int D) {
    if (c + 4 <= D) return GET4(p + c);
    E4 v = (E4)(0);
    if (c < D) v.x = LOAD(p, c);
    if (c + 1 < D) v.y = LOAD(p, c + 1);
    if (c + 2 < D) v.z = LOAD(p, c + 2);
    return v;
}
#ifdef WIDENED
#define KV E
static inline E4 four_wide(__global const E* p, int c, int D) {
    if (c + 4 <= D) return vload4(0, p + c);
    E4 v = (E4)(0);
    if (c < D) v.x = p[c];
    if (c + 1 < D) v.y = p[c + 1];
    if (c + 2 < D) v.z = p[c + 2];
    return v;
}
#else
#define KV S
#define four_wide four
#endif

static inline E dot_rows(__global const S* a, __global const KV* b, int D) {
    E4 s = (E4)(0);
    for (int c = 0; c < D; c += 4) s += four(a, c, D) * four_wide(b, c, D);
    return (s.x + s.y) + (s.z + s.w);
}

static inline void put_four(__global S* to, int c, E4 v, int D) {
    if (c < D) STORE(to, c, v.x);
    if (c + 1 < D) STORE(to, c + 1, v.y);
    if (c + 2 < D) STORE(to, c + 2, v.z);
    if (c + 3 < D) STORE(to, c + 3, v.w);
}

#define SLOPE(p, u, delta) ((p) == 0 ? 0 : (p) * ((u) - (delta)))
// Sums are NF vectors of a row at a time, so that they stay in registers; scores are computed again for each.
#define NF 8
#define FOURS UNROLL for (int x = 0, c = c0; x < NF; x++, c += 4)

#if defined(USE_ATTEND) || defined(USE_ATTEND_FEW)
static inline void attend_row(__global S* o, __global E* lse, __global const S* q, __global const KV* k,
                              __global const KV* v, Marks marks, E scale, const Dims* d, int i) {
    const int lo = lo_of(d, i), hi = hi_of(d, i), D = d->D;
    E top = SINK, sum = 0, bend = 1;
    for (int j = lo; j < hi && top < INFINITY; j++) {   // with infinity or NaN all of the row is NaN
        if (UNSEEN(i, j)) continue;
        const E s = shaped(dot_rows(q, k + j * d->kt, D) * scale, 1, marks, d, i, j, &bend);
        if (!(s <= top)) top = s;
    }
    const E base = top == NONE ? 0 : top;
    for (int c0 = 0; c0 < d->Dv; c0 += 4 * NF) {
        E4 a[NF];
        FOURS a[x] = (E4)(0);
        sum = exp(SINK - base);
        for (int j = lo; j < hi && sum == sum; j++) {
            if (UNSEEN(i, j)) continue;
            const E p = exp(shaped(dot_rows(q, k + j * d->kt, D) * scale, 1, marks, d, i, j, &bend) - base);
            sum += p;
            const E w = p * factor(marks, d, i, j);
            FOURS a[x] += w * four_wide(v + j * d->vt, c, d->Dv);
        }
        FOURS put_four(o, c, a[x] * (sum == 0 ? 0 : 1 / sum), d->Dv);
    }
    *lse = sum == 0 ? NONE : base + log(sum);
}
#endif

#ifdef USE_QUERY_GRAD
static inline void query_grad_row(__global S* dq, __global const S* q, __global const S* k, __global const S* v,
                                  __global const S* g, E lse, E delta, Marks marks, E scale, const Dims* d, int i) {
    const int lo = lo_of(d, i), hi = hi_of(d, i), D = d->D;
    for (int c0 = 0; c0 < D; c0 += 4 * NF) {
        E4 a[NF];
        FOURS a[x] = (E4)(0);
        E s = 0, bend = 1;
        for (int j = lo; j < hi && s == s; j++) {
            if (UNSEEN(i, j)) continue;
            s = shaped(dot_rows(q, k + j * d->kt, D) * scale, 1, marks, d, i, j, &bend);
            s -= lse == NONE ? INFINITY : lse;
            const E p = exp(BELOW(E, s));
            s = SLOPE(p, dot_rows(g, v + j * d->vt, d->Dv) * factor(marks, d, i, j), delta) * bend;
            FOURS a[x] += s * four(k + j * d->kt, c, D);
        }
        FOURS put_four(dq, c, a[x] * scale, D);
    }
}
#endif

#ifdef USE_KEY_GRAD
// q, g, lse, delta and marks are those of the first of the G heads that share this key
static inline void key_grad_row(__global S* dk, __global S* dv, __global const S* q, __global const S* k,
                                __global const S* v, __global const S* g, __global const E* lse,
                                __global const E* delta, Marks marks, E scale, const Dims* d, int j) {
    const int Tq = d->Tq, D = d->D, Dv = d->Dv;
    const Marks first = marks;
    for (int c0 = 0; c0 < max(D, Dv); c0 += 4 * NF) {
        E4 ak[NF], av[NF];
        FOURS ak[x] = av[x] = (E4)(0);
        E p = 0, bend = 1;
        marks = first;
        for (int z = 0; z < d->G; z++) {
            for (int i = 0; i < Tq && p == p; i++) {
                if (j < lo_of(d, i) || j >= hi_of(d, i) || UNSEEN(i, j)) continue;
                __global const S *qi = q + z * d->qh + i * d->qt, *gi = g + z * d->gh + i * d->gt;
                const E top = lse[z * d->Tq + i];
                p = shaped(dot_rows(k, qi, D) * scale, 1, marks, d, i, j, &bend) - (top == NONE ? INFINITY : top);
                p = exp(BELOW(E, p));
                const E f = factor(marks, d, i, j), w = p * f;
                const E s = SLOPE(p, dot_rows(v, gi, Dv) * f, delta[z * d->Tq + i]) * bend;
                FOURS av[x] += w * four(gi, c, Dv);
                FOURS ak[x] += s * four(qi, c, D);
            }
            NEXT_HEADS(1, d)
        }
        FOURS {
            put_four(dk, c, ak[x] * scale, D);
            put_four(dv, c, av[x], Dv);
        }
    }
}
#endif
