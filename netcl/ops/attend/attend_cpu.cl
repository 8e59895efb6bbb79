// attend_cpu.cl: o = softmax(q k^T * scale) v without an S x S map, for CPU devices. Follows attention_cpu.cl.
//
// A work-item computes NR queries of one head, which lie side by side in vectors: Q [D][NR], and for each block of BK
// keys
//   P = k Q              [BK][NR], tiles of MR keys
//   P = 2^(P - max)      the running maximum of each lane; old sums are scaled to the new one
//   O = O * scaling + v^T P   [D][NR], tiles of MR elements of a row
// So k and v are read in rows as they are, and nothing is summed across a vector.
#ifndef BK
#define BK 96      // keys per block
#endif

#ifdef NARROW
// Rows of k or v as E: (B, H / G, Tk, D). Launch: (ceil(Tk / 64), H / G, B).
__kernel void widen(__global E* restrict out, __global const S* restrict k, long ok, const Dims d) {
    long first = get_global_id(0) * 64, last = first + 64 < d.Tk ? first + 64 : d.Tk;
    long h = get_global_id(1), b = get_global_id(2);
    out += (b * get_global_size(1) + h) * d.Tk * d.D;
    k += ok + b * d.kb + h * d.kh;
    for (long t = first; t < last; t++) {
        int c = 0;
        for (; c + VW <= d.D; c += VW) GLOB(out + t * d.D + c) = GET(k + t * d.kt + c);
        for (; c < d.D; c++) out[t * d.D + c] = LOAD(k + t * d.kt, c);
    }
}
#endif

#ifdef USE_ATTEND
#define RESCALE_1(i, j) LOC(c + i * ldc + j * VW) = LOC(c + i * ldc + j * VW) * LOC(al + j * VW) + c##i##j;
#define RESCALE(i) ACROSS(RESCALE_1, i)
#define BTYPE __local const
#define AT AT_ROWS
TILE(scores, JOIN(ROWS, MR), WRITE, __local, __global const)
TILE(scores_of_one, ROWS1, WRITE, __local, __global const)
#undef AT
#define AT AT_COLUMNS
TILE(weigh, JOIN(ROWS, MR), RESCALE, __local, __global const)
TILE(weigh_one, ROWS1, RESCALE, __local, __global const)

static inline int within(long x, long from, long to) { return x < from ? (int)from : x > to ? (int)to : (int)x; }

#ifdef SHAPED
// What the scores P of the keys kb .. kb + n and of `rows` queries from q0 on (one per lane) become; M [n][NR] is room
// for a tile of the mask.
static inline void shape(__local E* P, __local E* M, long q0, int rows, long kb, int n, Marks marks, const Dims* d) {
#ifdef BIAS
    for (int r = 0; r < NR; r++) {
        __global const BIAS* p = marks.bias + (q0 + (r < rows ? r : 0)) * d->bias_q + kb * d->bias_k;
        for (int j = 0; j < n; j++, p += d->bias_k) M[j * NR + r] = in_powers(bias_value(p));
    }
#endif
#ifdef SLOPES
    E own[NR];      // the key at each query's place
    for (int r = 0; r < NR; r++) own[r] = OWN(d, q0 + r);
#endif
    for (int j = 0; j < n; j++)
        for (int x = 0; x < NR; x += VW) {
            V s = LOC(P + j * NR + x);
#ifdef SOFTCAP
            s = marks.cap * LOG2E * f_tanh(s / (marks.cap * LOG2E));
#endif
#ifdef SLOPES
            V away = *(U*)(own + x) - (E)(kb + j);
            s -= marks.slopes[0] * LOG2E * (away < 0 ? -away : away);
#endif
#ifdef BIAS
            V b = LOC(M + j * NR + x);
            s = b == NONE ? b : s + b;
#endif
            LOC(P + j * NR + x) = s;
        }
}
#endif

#ifdef DROPOUT
// The weights P of the keys kb .. kb + n, where kb is a multiple of 4, times their factors; a lane is a query.
static inline void drop(__local E* P, long q0, long kb, int n, Marks marks, const Dims* d) {
    for (int x = 0; x < NR; x += VW)
        for (int j = 0; j < n; j += 4) {
            ulong blocks[VW] __attribute__((aligned(128)));
            UW words[4];
            for (int l = 0; l < VW; l++) blocks[l] = BLOCKS_OF(q0 + x + l) + (kb + j) / 4;
            philox_lanes(*(LW*)blocks, marks.key0, marks.key1, words);
            for (int w = 0; w < 4 && j + w < n; w++)
                for (int l = 0; l < VW; l++) P[(j + w) * NR + x + l] *= FACTOR(((const uint*)&words[w])[l]);
        }
}
#endif

// Scores that the queries from q0 on (one per lane) must not see, of keys kb .. kb + n, become -infinity.
static inline void forbid(__local E* P, long q0, long kb, int n, Marks marks, const Dims* d) {
#ifdef BOUNDS
    LANE los[NR] __attribute__((aligned(64))), his[NR] __attribute__((aligned(64)));
    for (int r = 0; r < NR; r++) {
        los[r] = lo_of(d, q0 + r);
        his[r] = hi_of(d, q0 + r);
    }
#else
    LANE lanes[NR] __attribute__((aligned(64)));
    for (int r = 0; r < NR; r++) lanes[r] = r;
#endif
    int from = within(lo_of(d, q0 + NR - 1) - kb, 0, n), to = within(hi_of(d, q0) - kb, from, n);
    for (int j = from > 0 ? 0 : to; j < n; j = j + 1 == from ? to : j + 1) {    // all queries see the keys from .. to
#ifndef BOUNDS
        long own = kb + j - q0 - d->off, reach = d->window - 1;         // lane at whose place the key is
        int first = d->causal ? within(own, 0, NR) : d->window > 0 ? within(own - reach, 0, NR) : 0;
        int last = d->window > 0 ? within(own + reach, -1, NR) : NR;
#endif
        for (int x = 0; x < NR; x += VW) {
#ifdef BOUNDS
            I seen = (*(I*)(los + x) <= (LANE)(kb + j)) & (*(I*)(his + x) > (LANE)(kb + j));
#else
            I lane = *(I*)(lanes + x), seen = (lane >= (LANE)first) & (lane <= (LANE)last);
#endif
            LOC(P + j * NR + x) = seen ? LOC(P + j * NR + x) : (V)(NONE);
        }
    }
#ifdef MASK
    for (int j = 0; j < n; j++)
        for (int x = 0; !REAL(kb + j) && x < NR; x += VW) LOC(P + j * NR + x) = (V)(NONE);
#endif
}

// P = 2^(P - m) with the new maxima m, sums l, and in al the factors of what was summed before.
static inline void weights(__local E* P, int n, __local E* m, __local E* l, __local E* al) {
    for (int x = 0; x < NR; x += VW) {
        V top = LOC(m + x), sum = (V)(0);
        int j = 0;
        for (; j + 4 <= n; j += 4) {
            __local E* p = P + j * NR + x;
            top = larger(larger(larger(LOC(p), LOC(p + NR)), larger(LOC(p + 2 * NR), LOC(p + 3 * NR))), top);
        }
        for (; j < n; j++) top = larger(LOC(P + j * NR + x), top);
        V base = top == NONE ? (V)(0) : top;
        for (j = 0; j < n; j++) {
            V p = power(LOC(P + j * NR + x) - base);
            LOC(P + j * NR + x) = p;
            sum += p;
        }
        V old = power(LOC(m + x) - base);
        LOC(al + x) = old;
        LOC(l + x) = LOC(l + x) * old + sum;
        LOC(m + x) = top;
    }
}

// Rows of O, transposed, times f, to o.
#define LINE_OUT(i) *(__local const U8*)(O + (c + (i)) * NR + r)
#define LINE_GLOBAL(i, v) SET8(o + (r + (i)) * D + c, (v) * f[r + (i)]);
static inline void put(__global S* o, __local const E* O, __local const E* f, int rows, int D) {
    int full = rows / 8 * 8, columns = D / 8 * 8;
    for (int r = 0; r < full; r += 8)
        for (int c = 0; c < columns; c += 8) TRANSPOSE8(LINE_OUT, LINE_GLOBAL)
    for (int r = 0; r < rows; r++)
        for (int c = r < full ? columns : 0; c < D; c++) STORE(o, r * D + c, O[c * NR + r] * f[r]);
}

// Launch: (ceil(Tq / NR), H, B).
__kernel void attend(__global S* restrict o, __global E* restrict lse, __global const S* restrict q,
                     __global const E* restrict k, __global const E* restrict v, long oq, long ok, long ov,
                     MARKS_ARGS E scale, const Dims d) {
    __local E Q[DP * NR], P[BK * NR], O[DP * NR], m[NR], l[NR], al[NR];
#ifdef SHAPED
    __local E M[BK * NR];
#endif
    // The last blocks of a causal head have the most keys: they go first, so that no unit is left with one at the end.
    long q0 = (get_global_size(0) - 1 - get_global_id(0)) * NR, h = get_global_id(1), b = get_global_id(2);
    int rows = d.Tq - q0 < NR ? (int)(d.Tq - q0) : NR, D = d.D, Dv = d.Dv;
    k += ok + b * d.kb + h / d.G * d.kh;
    v += ov + b * d.vb + h / d.G * d.vh;
    MARKS(b, h)
    transpose_panel(Q, NR, q + oq + b * d.qb + h * d.qh + q0 * d.qt, rows, d.qt, D, scale * LOG2E);
    for (int x = 0; x < Dv * NR; x += VW) LOC(O + x) = (V)(0);
    for (int x = 0; x < NR; x += VW) {
        LOC(m + x) = (V)(SINK * LOG2E);
        LOC(l + x) = (V)(SINK_WEIGHT);
    }
    long end = hi_of(&d, q0 + rows - 1);
    for (long kb = BEGIN(lo_of(&d, q0)); kb < end; kb += BK) {
        int n = end - kb < BK ? (int)(end - kb) : BK, j = 0, c = 0;
        for (; j + MR <= n; j += MR) scores(P + j * NR, NR, k + (kb + j) * d.kt, d.kt, Q, NR, D, al);
        for (; j < n; j++) scores_of_one(P + j * NR, NR, k + (kb + j) * d.kt, d.kt, Q, NR, D, al);
#ifdef SHAPED
        shape(P, M, q0, rows, kb, n, marks, &d);
#endif
        forbid(P, q0, kb, n, marks, &d);
        weights(P, n, m, l, al);
#ifdef DROPOUT
        drop(P, q0, kb, n, marks, &d);
#endif
        for (; c + MR <= Dv; c += MR) weigh(O + c * NR, NR, v + kb * d.vt + c, d.vt, P, NR, n, al);
        for (; c < Dv; c++) weigh_one(O + c * NR, NR, v + kb * d.vt + c, d.vt, P, NR, n, al);
    }
    long first = (b * d.H + h) * d.Tq + q0;
    for (int r = 0; r < rows; r++) {
        lse[first + r] = l[r] == 0 ? NONE : m[r] * LN2 + log(l[r]);
        al[r] = l[r] == 0 ? 0 : 1 / l[r];
    }
    put(o + first * Dv, O, al, rows, Dv);
    for (int x = 0; x < NR; x += VW) {
        V lost = (V)(0);
        for (int c = 0; c < Dv; c++) lost += LOST(LOC(O + c * NR + x));
        LOC(l + x) = lost;
    }
    for (int r = 0; r < rows; r++)
        if (l[r] != 0)
            attend_row(o + (first + r) * Dv, lse + first + r, q + oq + b * d.qb + h * d.qh + (q0 + r) * d.qt, k, v,
                       marks, scale, &d, q0 + r);
}
#endif

#ifdef USE_ATTEND_FEW
// A few queries against many keys, as in decoding: a work-item takes one query, its scores side by side in vectors.
// Launch: (Tq, H, B).
__kernel void attend_few(__global S* restrict o, __global E* restrict lse, __global const S* restrict q,
                         __global const S* restrict k, __global const S* restrict v, long oq, long ok, long ov,
                         MARKS_ARGS E scale, const Dims d) {
    __local E Q[DP], s[BK], O[DP];
#ifdef DROPOUT
    __local E z[ROOM];
#endif
    long i = get_global_id(0), h = get_global_id(1), b = get_global_id(2);
    int D = d.D, Dv = d.Dv;
    q += oq + b * d.qb + h * d.qh + i * d.qt;
    k += ok + b * d.kb + h / d.G * d.kh;
    v += ov + b * d.vb + h / d.G * d.vh;
    MARKS(b, h)
    for (int c = 0; c < D; c++) Q[c] = LOAD(q, c) * (scale * LOG2E);
    for (int c = 0; c < Dv; c++) O[c] = 0;
    E m = SINK * LOG2E, l = SINK_WEIGHT;
    long end = hi_of(&d, i);
    for (long kb = BEGIN(lo_of(&d, i)); kb < end; kb += BK) {
        int n = end - kb < BK ? (int)(end - kb) : BK, w = up(n, VW);
        for (int j = 0; j < n; j++) {
            __global const S* p = k + (kb + j) * d.kt;
            V a0 = (V)(0), a1 = a0;
            int c = 0;
            for (; c + 2 * VW <= D; c += 2 * VW) {
                a0 += LOC(Q + c) * GET(p + c);
                a1 += LOC(Q + c + VW) * GET(p + c + VW);
            }
            for (; c + VW <= D; c += VW) a0 += LOC(Q + c) * GET(p + c);
            E t = total(a0 + a1);
            for (; c < D; c++) t += Q[c] * LOAD(p, c);
            s[j] = t;
        }
        SHAPE_ROW(s, s, i, kb, n, &d)
#ifdef MASK
        for (int j = 0; j < n; j++) s[j] = REAL(kb + j) ? s[j] : NONE;
#endif
        for (int j = 0; j < lo_of(&d, i) - kb; j++) s[j] = NONE;     // where the walk began before
        for (int j = n; j < w; j++) s[j] = NONE;
        V top = LOC(s), sum = (V)(0);
        for (int j = VW; j < w; j += VW) top = larger(LOC(s + j), top);
        E t = largest(top);
        t = t > m ? t : m;
        E base = t == NONE ? 0 : t, al = power((V)(m - base)).s0;
        for (int j = 0; j < w; j += VW) {
            V p = power(LOC(s + j) - base);
            LOC(s + j) = p;
            sum += p;
        }
        l = l * al + total(sum);
        m = t;
#ifdef DROPOUT
        factor_row(z, i, kb, n, marks, &d);
        for (int j = 0; j < n; j++) s[j] *= z[j];
#endif
        int c = 0;
        for (; c + VW <= Dv; c += VW) {
            V a0 = LOC(O + c) * al, a1 = (V)(0);
            int j = 0;
            for (; j + 2 <= n; j += 2) {
                a0 += GET(v + (kb + j) * d.vt + c) * s[j];
                a1 += GET(v + (kb + j + 1) * d.vt + c) * s[j + 1];
            }
            if (j < n) a0 += GET(v + (kb + j) * d.vt + c) * s[j];
            LOC(O + c) = a0 + a1;
        }
        for (; c < Dv; c++) {
            E a = O[c] * al;
            for (int j = 0; j < n; j++) a += LOAD(v + (kb + j) * d.vt, c) * s[j];
            O[c] = a;
        }
    }
    long row = (b * d.H + h) * d.Tq + i;
    E f = l == 0 ? 0 : 1 / l, lost = 0;
    for (int c = 0; c < Dv; c++) {
        STORE(o, row * Dv + c, O[c] * f);
        lost += LOST(O[c]);
    }
    lse[row] = l == 0 ? NONE : m * LN2 + log(l);
    if (lost != 0) attend_row(o + row * Dv, lse + row, q, k, v, marks, scale, &d, i);
}
#endif
