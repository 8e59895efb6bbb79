// attention_gpu.cl: o = softmax(q k^T * scale) v without an S x S map, with gradients, for GPUs. Follows
// attention_scores.cl and attention_rows.cl.
//
// A work-group of GX x GY work-items holds BR rows and walks over blocks of BC columns; an item holds TR rows x TC
//   columns: attend         rows = queries, columns = keys     s -> running max, p -> P, o += P v
//   query_grad     rows = queries, columns = keys     s, g v^T -> ds -> P, dq += P k
//   key_grad       rows = keys, columns = queries     s^T, v g^T -> p -> P, dv += P g, then ds -> P, dk += P q
// Both kinds of product run from local memory:
//   product   TR x TC sums over slices of DC elements of rows of a and b, kept transposed: A [DC][BR], B [DC][BC]
//   spread    TR x DN sums over chunks of KC rows of x, X [KC][DP] in the place of A and B, with P [BC][BR]
// DP is the larger head size rounded up to a multiple of 4 GX; lengths and head sizes are arbitrary, missing elements
// read as 0. A query without keys gets 0 and lse = -infinity. Scores are kept in powers of two. Rows of results that
// are not finite everywhere are computed again, as attention_rows.cl explains.
// Launch: local = (GX, GY, 1), global = (blocks of rows * GX, heads * GY, B).
// USE_<KERNEL> picks the kernels of a program, since drivers compile everything they see.
// Source: Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691.
#ifndef GX
#define GX 16       // work-items along the columns (2, 4, 8, 16)
#endif
#ifndef GY
#define GY 16       // work-items along the rows (2, 4, 8, 16)
#endif
#ifndef TR
#define TR 4        // rows of a work-item (4, 8)
#endif
#define TC 4
#define BR (GY * TR)
#define BC (GX * TC)
#ifndef DC
#define DC 16       // elements of a row per slice (8, 16, 32)
#endif
#ifndef DP
#define DP 64
#endif
#define ITEMS (GX * GY)
#define LA (BR + 4)
#define LB (BC + 4)
#define PAIR (DC * (LA + LB))
#define SLICES (PAIR > DP ? PAIR : DP)
#define DN (DP / (4 * GX))      // vectors of 4 columns of x that a work-item holds
#define KC (SLICES >= 32 * DP ? 32 : SLICES >= 16 * DP ? 16 : SLICES >= 8 * DP ? 8 : SLICES >= 4 * DP ? 4 : 1)
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#define GROUP __attribute__((reqd_work_group_size(GX, GY, 1)))
#define V E4
#define AT4(p) (*(__local V*)(p))

#define LID ((int)(get_local_id(1) * GX + get_local_id(0)))
#define NA (TR * DC / (4 * GX))     // vectors of 4 that a work-item brings of a slice of a, and of b
#define NB (DC / GY)
#define CHUNK (KC * (DP / 4))
#define NX ((CHUNK + ITEMS - 1) / ITEMS)            // and of a chunk of x
// Folds where a chunk divides evenly: left to find that out itself, NVIDIA's compiler (driver 580) builds a key_grad of
// doubles in groups of 8 x 2 that loses the context.
#define IN_CHUNK(at) (CHUNK % ITEMS == 0 || (at) < CHUNK)

// Elements d0 .. d0 + DC of `rows` of at most `all` rows, this item's part: on their way while a product runs.
static inline void fetch(V* to, int count, int all, __global const S* from, int rows, long step, int d0, int D) {
    UNROLL for (int i = 0; i < count; i++) {
        int at = LID + i * ITEMS, r = at % all;
        to[i] = r < rows ? four(from + r * step, d0 + at / all * 4, D) : (V)(0);
    }
}

// The same, transposed to[DC][ld].
static inline void place(__local E* to, int ld, int all, const V* from, int count) {
    UNROLL for (int i = 0; i < count; i++) {
        int at = LID + i * ITEMS, r = at % all, c = at / all * 4;
        to[c * ld + r] = from[i].x;
        to[(c + 1) * ld + r] = from[i].y;
        to[(c + 2) * ld + r] = from[i].z;
        to[(c + 3) * ld + r] = from[i].w;
    }
}

// s[TR] (TC values each) = rows of a times rows of b.
static inline void product(V* s, __local E* slices, __global const S* a, int arows, long astep, __global const S* b,
                           int brows, long bstep, int D) {
    __local E *A = slices, *B = slices + DC * LA;
    int x = get_local_id(0), y = get_local_id(1);
    V an[NA], bn[NB];
    UNROLL for (int i = 0; i < TR; i++) s[i] = (V)(0);
    fetch(an, NA, BR, a, arows, astep, 0, D);
    fetch(bn, NB, BC, b, brows, bstep, 0, D);
    for (int d0 = 0; d0 < D; d0 += DC) {
        SYNC;
        place(A, LA, BR, an, NA);
        place(B, LB, BC, bn, NB);
        SYNC;
        if (d0 + DC < D) {
            fetch(an, NA, BR, a, arows, astep, d0 + DC, D);
            fetch(bn, NB, BC, b, brows, bstep, d0 + DC, D);
        }
        UNROLL for (int d = 0; d < DC; d++) {
            V w = AT4(B + d * LB + x * TC);
            UNROLL for (int i = 0; i < TR; i += 4) {
                V u = AT4(A + d * LA + y * TR + i);
                s[i] += u.x * w;
                s[i + 1] += u.y * w;
                s[i + 2] += u.z * w;
                s[i + 3] += u.w * w;
            }
        }
    }
}

// Rows k0 .. k0 + KC of x, this item's part.
static inline void fetch_rows(V* to, __global const S* x, int k0, int rows, long step, int D) {
    UNROLL for (int i = 0; i < NX; i++) {
        int at = LID + i * ITEMS, r = k0 + at / (DP / 4);
        to[i] = IN_CHUNK(at) && r < rows ? four(x + r * step, at % (DP / 4) * 4, D) : (V)(0);
    }
}

// o[TR][DN] += P^T x over the `rows` rows of x, where P is [BC][BR].
static inline void spread(V* o, __local E* X, __local const E* P, __global const S* x, int rows, long step, int D) {
    int lx = get_local_id(0), y = get_local_id(1);
    V next[NX];
    fetch_rows(next, x, 0, rows, step, D);
    for (int k0 = 0; k0 < rows; k0 += KC) {
        SYNC;
        UNROLL for (int i = 0; i < NX; i++)
            if (IN_CHUNK(LID + i * ITEMS)) AT4(X + (LID + i * ITEMS) * 4) = next[i];
        SYNC;
        if (k0 + KC < rows) fetch_rows(next, x, k0 + KC, rows, step, D);
        UNROLL for (int k = 0; k < KC; k++)
            UNROLL for (int j = 0; j < DN; j++) {
                V w = AT4(X + k * DP + (lx + GX * j) * 4);
                UNROLL for (int i = 0; i < TR; i += 4) {
                    V t = AT4(P + (k0 + k) * LA + y * TR + i);
                    o[i * DN + j] += t.x * w;
                    o[(i + 1) * DN + j] += t.y * w;
                    o[(i + 2) * DN + j] += t.z * w;
                    o[(i + 3) * DN + j] += t.w * w;
                }
            }
    }
    SYNC;       // P may be written again
}

// P[column][row] from the items' TR x TC values.
static inline void keep(__local E* P, const V* s) {
    int x = get_local_id(0), y = get_local_id(1);
    UNROLL for (int i = 0; i < TR; i += 4) {
        __local E* t = P + x * TC * LA + y * TR + i;
        AT4(t) = (V)(s[i].x, s[i + 1].x, s[i + 2].x, s[i + 3].x);
        AT4(t + LA) = (V)(s[i].y, s[i + 1].y, s[i + 2].y, s[i + 3].y);
        AT4(t + 2 * LA) = (V)(s[i].z, s[i + 1].z, s[i + 2].z, s[i + 3].z);
        AT4(t + 3 * LA) = (V)(s[i].w, s[i + 1].w, s[i + 2].w, s[i + 3].w);
    }
}

// D elements of a row that the items of the row hold, times f.
static inline void put_row(__global S* to, const V* row, int D, E f) {
    for (int j = 0; j < DN; j++) {
        int c = (get_local_id(0) + GX * j) * 4;
        put_four(to, c, row[j] * f, D);
    }
}

// Which rows are to be computed again: the items of a row keep 0 or NaN for their part of it in lost[BR][GX].
static inline E not_finite(const V* row) {
    V s = (V)(0);
    UNROLL for (int j = 0; j < DN; j++) s += LOST(row[j]);
    return (s.x + s.y) + (s.z + s.w);
}

static inline bool is_lost(__local const E* lost, int row) {
    E s = 0;
    for (int c = 0; c < GX; c++) s += lost[row * GX + c];
    return s != s;
}

#define BEST(v) max(max((v).x, (v).y), max((v).z, (v).w))
// What scores s in powers of two become, of query i and the keys j .. j + 3, or of the queries i .. i + 3 and key j;
// and the factors `bend` of their slopes.
#ifdef SHAPED
#define SHAPE_FOUR(s, bend, i, j, di, dj) { \
        E b0 = 1, b1 = 1, b2 = 1, b3 = 1; \
        s.x = shaped(s.x, LOG2E, marks, &d, i, j, &b0); \
        s.y = shaped(s.y, LOG2E, marks, &d, (i) + di, (j) + dj, &b1); \
        s.z = shaped(s.z, LOG2E, marks, &d, (i) + 2 * di, (j) + 2 * dj, &b2); \
        s.w = shaped(s.w, LOG2E, marks, &d, (i) + 3 * di, (j) + 3 * dj, &b3); \
        bend = (V)(b0, b1, b2, b3); \
    }
#else
#define SHAPE_FOUR(s, bend, i, j, di, dj)
#endif
#define SHAPE_KEYS(s, bend, i, j) SHAPE_FOUR(s, bend, i, j, 0, 1)
#define SHAPE_QUERIES(s, bend, i, j) SHAPE_FOUR(s, bend, i, j, 1, 0)

// The factors of dropout for query i and the keys j .. j + 3.
#ifdef DROPOUT
#define DROP(x, i, j) (x) * factors(marks, &d, i, j)
#else
#define DROP(x, i, j) (x)
#endif

#ifdef USE_ATTEND
__kernel GROUP void attend(__global S* restrict o, __global E* restrict lse, __global const S* restrict q,
                           __global const S* restrict k, __global const S* restrict v,
                           long oq, long ok, long ov, MARKS_ARGS E scale, const Dims d) {
    __local E slices[SLICES] __attribute__((aligned(32))), P[BC * LA] __attribute__((aligned(32))), red[BR * (GX + 1)],
        best[BR];
    int x = get_local_id(0), y = get_local_id(1), D = d.D;
    // The last blocks of a causal head have the most keys: they go first, so that no unit is left with one at the end.
    int q0 = (get_num_groups(0) - 1 - get_group_id(0)) * BR, rows = min(BR, (int)d.Tq - q0);
    long h = get_group_id(1), b = get_group_id(2);
    q += oq + b * d.qb + h * d.qh + q0 * d.qt;
    k += ok + b * d.kb + h / d.G * d.kh;
    v += ov + b * d.vb + h / d.G * d.vh;
    MARKS(b, h)
    V s[TR], acc[TR * DN];
    E m[TR], l[TR];
    UNROLL for (int i = 0; i < TR; i++) {
        m[i] = SINK * LOG2E;
        l[i] = x == 0 ? SINK_WEIGHT : 0;
        UNROLL for (int j = 0; j < DN; j++) acc[i * DN + j] = (V)(0);
    }
    int end = hi_of(&d, q0 + rows - 1);
    for (int kb = BEGIN(lo_of(&d, q0)); kb < end; kb += BC) {
        int n = min(BC, end - kb), j = kb + x * TC;
        product(s, slices, q, rows, d.qt, k + kb * d.kt, n, d.kt, D);
        bool whole = WHOLE(q0, q0 + rows - 1, kb, BC);
        UNROLL for (int i = 0; i < TR; i++) {
            int at = q0 + y * TR + i;
            s[i] *= scale * LOG2E;
            V bend;
            SHAPE_KEYS(s[i], bend, at, j)
            if (!whole) {
                int lo = lo_of(&d, at), hi = hi_of(&d, at);
                s[i].x = SEEN(lo, hi, j) ? s[i].x : NONE;
                s[i].y = SEEN(lo, hi, j + 1) ? s[i].y : NONE;
                s[i].z = SEEN(lo, hi, j + 2) ? s[i].z : NONE;
                s[i].w = SEEN(lo, hi, j + 3) ? s[i].w : NONE;
            }
            red[(y * TR + i) * (GX + 1) + x] = BEST(s[i]);
        }
        SYNC;
        for (int r = LID; r < BR; r += ITEMS) {
            E t = red[r * (GX + 1)];
            UNROLL for (int c = 1; c < GX; c++) t = max(t, red[r * (GX + 1) + c]);
            best[r] = t;
        }
        SYNC;
        UNROLL for (int i = 0; i < TR; i++) {
            E t = max(m[i], best[y * TR + i]);
            E base = t == NONE ? 0 : t, al = exp2(m[i] - base);
            s[i] = exp2(s[i] - base);
            l[i] = l[i] * al + ((s[i].x + s[i].y) + (s[i].z + s[i].w));
            m[i] = t;
            s[i] = DROP(s[i], q0 + y * TR + i, j);
            UNROLL for (int c = 0; c < DN; c++) acc[i * DN + c] *= al;
        }
        keep(P, s);
        spread(acc, slices, P, v + kb * d.vt, n, d.vt, d.Dv);
    }
    UNROLL for (int i = 0; i < TR; i++) {
        red[(y * TR + i) * (GX + 1) + x] = l[i];
        P[(y * TR + i) * GX + x] = not_finite(acc + i * DN);
    }
    SYNC;
    long first = (b * d.H + h) * d.Tq + q0;
    UNROLL for (int i = 0; i < TR; i++) {
        int r = y * TR + i;
        E t = 0;
        for (int c = 0; c < GX; c++) t += red[r * (GX + 1) + c];
        if (r < rows && !is_lost(P, r)) {
            put_row(o + (first + r) * d.Dv, acc + i * DN, d.Dv, t == 0 ? 0 : 1 / t);
            if (x == 0) lse[first + r] = t == 0 ? NONE : m[i] * LN2 + log(t);
        }
    }
    for (int r = LID; r < rows; r += ITEMS)
        if (is_lost(P, r))
            attend_row(o + (first + r) * d.Dv, lse + first + r, q + r * d.qt, k, v, marks, scale, &d, q0 + r);
}
#endif

// -- gradients --------------------------------------------------------------------------------------------------------
// p is computed again from lse; with delta = sum g * o per query: ds = p * (g v^T - delta), dv = p^T g, dk = ds^T q *
// scale, dq = ds k * scale. Every result is summed by one work-group in a fixed order.

#ifdef USE_DOTS
// delta (B, H, Tq): GX work-items per query. Launch: local = (GX, GY, 1), global = (GX, H * Tq rounded up to GY, B).
__kernel GROUP void dots(__global E* restrict delta, __global const S* restrict g, __global const S* restrict o,
                         long og, long oo, const Dims d) {
    __local E part[GY][GX + 1];
    int x = get_local_id(0), y = get_local_id(1);
    long row = get_global_id(1), h = row / d.Tq, b = get_group_id(2), head = b * d.H * d.Tq;
    E s = 0;
    if (h < d.H) {
        __global const S *p = g + og + b * d.gb + h * d.gh + row % d.Tq * d.gt, *r = o + oo + (head + row) * d.Dv;
        for (int c = x * 4; c < d.Dv; c += GX * 4) {
            V v = four(p, c, d.Dv) * four(r, c, d.Dv);
            s += (v.x + v.y) + (v.z + v.w);
        }
    }
    part[y][x] = s;
    SYNC;
    if (x > 0 || h >= d.H) return;
    s = 0;
    for (int c = 0; c < GX; c++) s += part[y][c];
    delta[head + row] = s;
}
#endif

// p of a score s in powers of two, and lse likewise (infinity for a query without keys); ds of its slope u.
#define WEIGHT(s, lse) exp2(BELOW(V, (s) - (lse)))
// Both products, and both sums, are one call in a loop: a CPU driver's compiler fails when a function with barriers in
// a loop is inlined twice. The first turn fills u, or av, which then trade places with s, or ak.
#define COPY(to, from) UNROLL for (int c = 0; c < TR; c++) to[c] = from[c];

#ifdef USE_QUERY_GRAD
__kernel GROUP void query_grad(__global S* restrict dq, __global const S* restrict q, __global const S* restrict k,
                               __global const S* restrict v, __global const S* restrict g,
                               __global const E* restrict lse, __global const E* restrict delta,
                               long oq, long ok, long ov, long og, long olse, MARKS_ARGS E scale, const Dims d) {
    __local E slices[SLICES] __attribute__((aligned(32))), P[BC * LA] __attribute__((aligned(32)));
    int x = get_local_id(0), y = get_local_id(1), D = d.D;
    int q0 = (get_num_groups(0) - 1 - get_group_id(0)) * BR, rows = min(BR, (int)d.Tq - q0);
    long h = get_group_id(1), b = get_group_id(2), first = (b * d.H + h) * d.Tq + q0;
    q += oq + b * d.qb + h * d.qh + q0 * d.qt;
    g += og + b * d.gb + h * d.gh + q0 * d.gt;
    k += ok + b * d.kb + h / d.G * d.kh;
    v += ov + b * d.vb + h / d.G * d.vh;
    MARKS(b, h)
    V s[TR], u[TR], acc[TR * DN];
    E top[TR], dot[TR];
    UNROLL for (int i = 0; i < TR; i++) {
        s[i] = (V)(0);
        int r = y * TR + i;
        top[i] = r < rows ? lse[olse + first + r] * LOG2E : NONE;
        top[i] = top[i] == NONE ? INFINITY : top[i];
        dot[i] = r < rows ? delta[first + r] : 0;
        UNROLL for (int j = 0; j < DN; j++) acc[i * DN + j] = (V)(0);
    }
    int end = hi_of(&d, q0 + rows - 1);
    for (int kb = BEGIN(lo_of(&d, q0)); kb < end; kb += BC) {
        int n = min(BC, end - kb), j = kb + x * TC;
        for (int z = 0; z < 2; z++) {
            COPY(u, s);
            product(s, slices, z ? q : g, rows, z ? d.qt : d.gt, z ? k + kb * d.kt : v + kb * d.vt, n, z ? d.kt : d.vt,
                    z ? D : (int)d.Dv);
        }
        bool whole = WHOLE(q0, q0 + rows - 1, kb, BC);
        UNROLL for (int i = 0; i < TR; i++) {
            int at = q0 + y * TR + i;
            V bend = (V)(1);
            s[i] *= scale * LOG2E;
            SHAPE_KEYS(s[i], bend, at, j)
            V p = WEIGHT(s[i], top[i]);
            u[i] = DROP(u[i], at, j);
            s[i] = (V)(SLOPE(p.x, u[i].x, dot[i]), SLOPE(p.y, u[i].y, dot[i]), SLOPE(p.z, u[i].z, dot[i]),
                       SLOPE(p.w, u[i].w, dot[i])) * bend;
            if (!whole) {
                int lo = lo_of(&d, at), hi = hi_of(&d, at);
                s[i].x = SEEN(lo, hi, j) ? s[i].x : 0;
                s[i].y = SEEN(lo, hi, j + 1) ? s[i].y : 0;
                s[i].z = SEEN(lo, hi, j + 2) ? s[i].z : 0;
                s[i].w = SEEN(lo, hi, j + 3) ? s[i].w : 0;
            }
        }
        keep(P, s);
        spread(acc, slices, P, k + kb * d.kt, n, d.kt, D);
    }
    UNROLL for (int i = 0; i < TR; i++) P[(y * TR + i) * GX + x] = not_finite(acc + i * DN);
    SYNC;
    UNROLL for (int i = 0; i < TR; i++) {
        int r = y * TR + i;
        if (r < rows && !is_lost(P, r)) put_row(dq + (first + r) * D, acc + i * DN, D, scale);
    }
    for (int r = LID; r < rows; r += ITEMS)
        if (is_lost(P, r))
            query_grad_row(dq + (first + r) * D, q + r * d.qt, k, v, g + r * d.gt, lse[olse + first + r],
                           delta[first + r], marks, scale, &d, q0 + r);
}
#endif

#ifdef USE_KEY_GRAD
__kernel GROUP void key_grad(__global S* restrict dk, __global S* restrict dv, __global const S* restrict q,
                             __global const S* restrict k, __global const S* restrict v, __global const S* restrict g,
                             __global const E* restrict lse, __global const E* restrict delta,
                             long oq, long ok, long ov, long og, long olse, MARKS_ARGS E scale, const Dims d) {
    __local E slices[SLICES] __attribute__((aligned(32))), P[BC * LA] __attribute__((aligned(32)));
    int x = get_local_id(0), y = get_local_id(1), D = d.D, Tq = d.Tq;
    int k0 = get_group_id(0) * BR, rows = min(BR, (int)d.Tk - k0);
    long kh = get_group_id(1), b = get_group_id(2);
    k += ok + b * d.kb + kh * d.kh + k0 * d.kt;
    v += ov + b * d.vb + kh * d.vh + k0 * d.vt;
    MARKS(b, kh * d.G)
    const Marks first_head = marks;
    V s[TR], u[TR], ak[TR * DN], av[TR * DN];
    UNROLL for (int i = 0; i < TR; i++) s[i] = (V)(0);
    UNROLL for (int i = 0; i < TR * DN; i++) ak[i] = av[i] = (V)(0);
    int from = FIRST_QUERY(k0), end = END_QUERY(k0 + rows - 1);   // those that see a key of this block
    for (int z = 0; z < d.G; z++) {
        long h = kh * d.G + z, head = (b * d.H + h) * d.Tq;
        __global const S *qh = q + oq + b * d.qb + h * d.qh, *gh = g + og + b * d.gb + h * d.gh;
        for (int qb = from; qb < end; qb += BC) {
            int n = min(BC, end - qb), j = qb + x * TC;
            __global const S *qs = qh + qb * d.qt, *gs = gh + qb * d.gt;
            for (int i = 0; i < 2; i++) {
                COPY(u, s);
                product(s, slices, i ? k : v, rows, i ? d.kt : d.vt, i ? qs : gs, n, i ? d.qt : d.gt,
                        i ? D : (int)d.Dv);
            }
            E top[TC], dot[TC];
            // rows are keys here: each must lie within what the first and the last query see
            bool whole = qb + BC <= Tq && WHOLE(qb, qb + BC - 1, k0, BR);
            int lo[TC], hi[TC];
            UNROLL for (int c = 0; c < TC; c++) {
                lo[c] = lo_of(&d, j + c);
                hi[c] = j + c < Tq ? hi_of(&d, j + c) : 0;
                top[c] = j + c < Tq ? lse[olse + head + j + c] * LOG2E : NONE;
                top[c] = top[c] == NONE ? INFINITY : top[c];
                dot[c] = j + c < Tq ? delta[head + j + c] : 0;
            }
            V tops = (V)(top[0], top[1], top[2], top[3]);
#ifdef DROPOUT
            V z[TR];
            UNROLL for (int i = 0; i < TR; i += 4) {
                const int at = k0 + y * TR + i;
                const V a = factors(marks, &d, j, at), b = factors(marks, &d, j + 1, at);
                const V c = factors(marks, &d, j + 2, at), e = factors(marks, &d, j + 3, at);
                z[i] = (V)(a.x, b.x, c.x, e.x);
                z[i + 1] = (V)(a.y, b.y, c.y, e.y);
                z[i + 2] = (V)(a.z, b.z, c.z, e.z);
                z[i + 3] = (V)(a.w, b.w, c.w, e.w);
            }
#endif
            UNROLL for (int i = 0; i < TR; i++) {
                int at = k0 + y * TR + i;
                V bend = (V)(1);
                s[i] *= scale * LOG2E;
                SHAPE_QUERIES(s[i], bend, j, at)
                V p = WEIGHT(s[i], tops);
                if (!whole) {
                    p.x = SEEN(lo[0], hi[0], at) ? p.x : 0;
                    p.y = SEEN(lo[1], hi[1], at) ? p.y : 0;
                    p.z = SEEN(lo[2], hi[2], at) ? p.z : 0;
                    p.w = SEEN(lo[3], hi[3], at) ? p.w : 0;
                }
#ifdef DROPOUT
                s[i] = p * z[i];
                u[i] *= z[i];
#else
                s[i] = p;
#endif
                u[i] = (V)(SLOPE(p.x, u[i].x, dot[0]), SLOPE(p.y, u[i].y, dot[1]), SLOPE(p.z, u[i].z, dot[2]),
                           SLOPE(p.w, u[i].w, dot[3])) * bend;
            }
            for (int i = 0; i < 2; i++) {
                keep(P, s);
                COPY(s, u);
                spread(av, slices, P, i ? qs : gs, n, i ? d.qt : d.gt, i ? D : (int)d.Dv);
                UNROLL for (int c = 0; c < TR * DN; c++) { V t = av[c]; av[c] = ak[c]; ak[c] = t; }
            }
        }
        NEXT_HEADS(1, &d)
    }
    long first = (b * (d.H / d.G) + kh) * d.Tk + k0, head = b * d.H + kh * d.G;
    UNROLL for (int i = 0; i < TR; i++) P[(y * TR + i) * GX + x] = not_finite(ak + i * DN) + not_finite(av + i * DN);
    SYNC;
    UNROLL for (int i = 0; i < TR; i++) {
        int r = y * TR + i;
        if (r < rows && !is_lost(P, r)) {
            put_row(dk + (first + r) * D, ak + i * DN, D, scale);
            put_row(dv + (first + r) * d.Dv, av + i * DN, d.Dv, 1);
        }
    }
    for (int r = LID; r < rows; r += ITEMS)
        if (is_lost(P, r))
            key_grad_row(dk + (first + r) * D, dv + (first + r) * d.Dv, q + oq + b * d.qb + kh * d.G * d.qh,
                         k + r * d.kt, v + r * d.vt, g + og + b * d.gb + kh * d.G * d.gh, lse + olse + head * Tq,
                         delta + head * Tq, first_head, scale, &d, k0 + r);
}
#endif
