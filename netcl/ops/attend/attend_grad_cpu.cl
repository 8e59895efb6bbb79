// attend_grad_cpu.cl: gradients of attention on CPU devices. Follows attention_cpu.cl.
//
// p is computed again from lse; with delta = sum g * o per query: ds = p * (g v^T - delta), dv = p^T g, dk = ds^T q *
// scale, dq = ds k * scale. One work-item takes every `splits`-th block of BK keys of one head of k and all queries
// that see it, BQ at a time; its dq sums go to its own part (splits, B * H, rows, DP), and `join` adds the parts.
// Nothing depends on the order of items. Rows in local memory have DP elements, D rounded up to NR.
#define LQ (DP + VW)    // row lengths of local blocks: not powers of two, so that rows fall on different cache sets
#define LS (BK + VW)

#define ADD_1(i, j) LOC(c + i * ldc + j * VW) += c##i##j;
#define ADD(i) ACROSS(ADD_1, i)
#define ADD_GLOBAL_1(i, j) GLOB(c + i * ldc + j * VW) += c##i##j;
#define ADD_GLOBAL(i) ACROSS(ADD_GLOBAL_1, i)
#define BTYPE __local const
#define AT AT_ROWS
TILE(scores, JOIN(ROWS, MR), WRITE, __local, __local const)
TILE(add_rows, JOIN(ROWS, MR), ADD_GLOBAL, __global, __local const)
#undef AT
#define AT AT_COLUMNS
TILE(add_columns, JOIN(ROWS, MR), ADD, __local, __local const)

// d[i][LQ] = rows of s times f, zero in the columns past D and the rows past `rows`.
static inline void copy_rows(__local E* d, __global const S* s, long rows, int all, long step, int D, E f) {
    for (int r = 0; r < all; r++, d += LQ, s += step) {
        int c = 0;
        if (r < rows) {
            for (; c + VW <= D; c += VW) LOC(d + c) = GET(s + c) * f;
            for (; c < D; c++) d[c] = LOAD(s, c) * f;
        }
        for (; c < DP; c++) d[c] = 0;
    }
}

// out[c] = row * f for D elements.
static inline void put_row(__global S* out, __local const E* row, int D, E f) {
    int c = 0;
    for (; c + VW <= D; c += VW) SET(out + c, *(__local const U*)(row + c) * f);
    for (; c < D; c++) STORE(out, c, row[c] * f);
}

#ifdef USE_KEY_GRAD
// delta (B, H, Tq). Launch: (ceil(Tq / 64), H, B).
__kernel void dots(__global E* restrict delta, __global const S* restrict g, __global const S* restrict o, long og,
                   long oo, const Dims d) {
    long first = get_global_id(0) * 64, last = first + 64 < d.Tq ? first + 64 : d.Tq;
    long h = get_global_id(1), b = get_global_id(2), row = (b * d.H + h) * d.Tq;
    for (long t = first; t < last; t++) {
        __global const S *p = g + og + b * d.gb + h * d.gh + t * d.gt, *r = o + oo + (row + t) * d.Dv;
        V s = (V)(0);
        int c = 0;
        for (; c + VW <= d.Dv; c += VW) s += GET(p + c) * GET(r + c);
        E x = total(s);
        for (; c < d.Dv; c++) x += LOAD(p, c) * LOAD(r, c);
        delta[row + t] = x;
    }
}
#endif

#define PANELS (BK * DP)
#define SUMS ((BK + MR - 1) / MR * MR * DP)  // dk and dv are summed MR keys at a time
#define POOL (2 * PANELS + 2 * SUMS + BK * LQ + 2 * BQ * LQ + 2 * BQ * LS)

// Scores outside [lo, hi) of the keys kb .. kb + n, and of padding, become -infinity.
static inline void forbid(__local E* s, long lo, long hi, long kb, int n, Marks marks) {
    for (int j = 0, first = lo - kb < n ? (int)(lo - kb) : n; j < first; j++) s[j] = NONE;
    for (int j = hi > kb ? (int)(hi - kb) : 0; j < n; j++) s[j] = NONE;
#ifdef MASK
    for (int j = 0; j < n && kb + j < hi; j++) s[j] = REAL(kb + j) ? s[j] : NONE;
#endif
}

// room for a row of `bend` and of the factors of dropout
#ifdef SOFTCAP
#define BEND __local E bend[LS];
#else
#define BEND __local E* bend = P;
#endif
#ifdef DROPOUT
#define DROPS __local E z[ROOM];
#define DROPPED(x) ((x) * LOC(z + j))
#else
#define DROPS __local E* z = P;
#define DROPPED(x) (x)
#endif

// p = 2^(p - x) and t = p * (t - y) in the row of query i, which sees [lo, hi) of the keys kb .. kb + n; 0 where it
// sees none.
static inline void weights(__local E* p, __local E* t, __local E* bend, __local E* z, long lo, long hi, long i, long kb,
                           int n, E x, E y, Marks marks, const Dims* d) {
    int end = up(hi - kb < n ? hi - kb : n, NR), from = lo > kb ? (int)(lo - kb < n ? lo - kb : n) / NR * NR : 0;
    if (from >= end) from = end = 0;
    else {
        SHAPE_ROW(p + from, bend + from, i, kb + from, (end < n ? end : n) - from, d)
        forbid(p, lo, hi, kb, end, marks);
#ifdef DROPOUT
        factor_row(z, i, kb, end, marks, d);
#endif
    }
    for (int j = 0; j < from; j += VW) LOC(p + j) = LOC(t + j) = (V)(0);
    for (int j = from; j < end; j += VW) {
        V s = power(BELOW(V, LOC(p + j) - x));
#ifdef USE_BIAS_GRAD
        s = LOC(p + j) == NONE ? (V)(0) : s;    // also where lse is NaN: no row is computed again here
#endif
        LOC(p + j) = DROPPED(s);
        V u = s == 0 ? (V)(0) : s * (DROPPED(LOC(t + j)) - y);
#if defined(SOFTCAP) && defined(USE_KEY_GRAD)
        u = s == 0 ? u : u * LOC(bend + j);
#endif
        LOC(t + j) = u;
    }
    for (int j = end; j < LS; j += VW) LOC(p + j) = LOC(t + j) = (V)(0);
}

#ifdef USE_KEY_GRAD
// Launch: (splits, H / G, B).
__kernel void attend_grad(__global S* restrict dk, __global S* restrict dv, __global E* restrict parts,
                          __global const S* restrict q, __global const S* restrict k, __global const S* restrict v,
                          __global const S* restrict g, __global const E* restrict lse,
                          __global const E* restrict delta, long oq, long ok, long ov, long og, long olse,
                          MARKS_ARGS E scale, const Dims d) {
    __local E pool[POOL];
    __local E *KT = pool, *VT = KT + PANELS, *dK = VT + PANELS, *dV = dK + SUMS, *K = dV + SUMS, *Q = K + BK * LQ;
    __local E *G = Q + BQ * LQ, *P = G + BQ * LQ, *dP = P + BQ * LS;
    BEND DROPS
    long split = get_global_id(0), kh = get_global_id(1), b = get_global_id(2), heads = d.H / d.G;
    int D = d.D, Dv = d.Dv;
    k += ok + b * d.kb + kh * d.kh;
    v += ov + b * d.vb + kh * d.vh;
    MARKS(b, kh * d.G)
    const Marks first_head = marks;
    parts += ((split * d.B + b) * d.H + kh * d.G) * d.rows * DP;
    for (long i = 0; i < d.G * d.rows * DP; i += VW) GLOB(parts + i) = (V)(0);
    for (long kb = split * BK; kb < d.Tk; kb += d.splits * BK) {
        int n = d.Tk - kb < BK ? (int)(d.Tk - kb) : BK;
        for (int j = 0; j < n; j += NR) {
            transpose_panel(KT + j * DP, NR, k + (kb + j) * d.kt, n - j, d.kt, D, 1);
            transpose_panel(VT + j * DP, NR, v + (kb + j) * d.vt, n - j, d.vt, Dv, 1);
        }
        copy_rows(K, k + kb * d.kt, n, BK, d.kt, D, 1);
        for (int i = 0; i < 2 * SUMS; i += VW) LOC(dK + i) = (V)(0);
        for (long f = 0; f < d.G * d.Tq; f += BQ) {
            // Blocks of queries of each head of the group in turn; a block never crosses from one head to the next.
            long head = f / d.Tq, q0 = f - head * d.Tq;
            int rows = d.Tq - q0 < BQ ? (int)(d.Tq - q0) : BQ;
            if (rows < BQ) f += rows - BQ;
            if (hi_of(&d, q0 + rows - 1) <= kb || lo_of(&d, q0) >= kb + n) continue;
            long h = kh * d.G + head, at = (b * d.H + h) * d.Tq + q0;
            MARKS(b, h)
            int all = up(rows, MR);
            copy_rows(Q, q + oq + b * d.qb + h * d.qh + q0 * d.qt, rows, all, d.qt, D, scale * LOG2E);
            copy_rows(G, g + og + b * d.gb + h * d.gh + q0 * d.gt, rows, all, d.gt, Dv, 1);
            for (int j = 0; j < n; j += NR)
                for (int r = 0; r < rows; r += MR) {
                    if (kb + j >= hi_of(&d, q0 + r + MR - 1) || kb + j + NR <= lo_of(&d, q0 + r)) continue;
                    scores(P + r * LS + j, LS, Q + r * LQ, LQ, KT + j * DP, NR, D, pool);
                    scores(dP + r * LS + j, LS, G + r * LQ, LQ, VT + j * DP, NR, Dv, pool);
                }
            for (int r = 0; r < all; r++) {
                long lo = r < rows ? lo_of(&d, q0 + r) : d.Tk, hi = r < rows ? hi_of(&d, q0 + r) : 0;
                E x = r < rows ? lse[olse + at + r] * LOG2E : 0, y = r < rows ? delta[at + r] : 0;
                weights(P + r * LS, dP + r * LS, bend, z, lo, hi, q0 + r, kb, n, x == NONE ? INFINITY : x, y, marks,
                        &d);
            }
            for (int j = 0; j < n; j += MR) {
                long first = FIRST_QUERY(kb + j) - q0;
                int start = first > 0 ? first < all ? (int)first : all : 0;
                for (int c = 0; c < DP; c += NR) {
                    add_columns(dV + j * DP + c, DP, P + start * LS + j, LS, G + start * LQ + c, LQ, all - start, pool);
                    add_columns(dK + j * DP + c, DP, dP + start * LS + j, LS, Q + start * LQ + c, LQ, all - start,
                                pool);
                }
            }
            for (int r = 0; r < rows; r += MR) {
                long last = hi_of(&d, q0 + r + MR - 1);
                int depth = last - kb < n ? (int)(last - kb) : n;
                if (depth <= 0) continue;
                for (int c = 0; c < DP; c += NR)
                    add_rows(parts + (head * d.rows + q0 + r) * DP + c, DP, dP + r * LS, LS, K + c, LQ, depth, pool);
            }
        }
        long row = (b * heads + kh) * d.Tk + kb, head = b * d.H + kh * d.G;
        for (int j = 0; j < n; j++) {
            put_row(dk + (row + j) * D, dK + j * DP, D, LN2);
            put_row(dv + (row + j) * Dv, dV + j * DP, Dv, 1);
            V lost = (V)(0);
            for (int c = 0; c < DP; c += VW) lost += LOST(LOC(dK + j * DP + c) + LOC(dV + j * DP + c));
            if (total(lost) != 0)
                key_grad_row(dk + (row + j) * D, dv + (row + j) * Dv, q + oq + b * d.qb + kh * d.G * d.qh,
                             k + (kb + j) * d.kt, v + (kb + j) * d.vt, g + og + b * d.gb + kh * d.G * d.gh,
                             lse + olse + head * d.Tq, delta + head * d.Tq, first_head, scale, &d, kb + j);
        }
    }
}

// dq = scale * sum of the parts. Launch: (ceil(Tq / 64), H, B).
__kernel void join(__global S* restrict dq, __global const E* restrict parts, __global const S* restrict q,
                   __global const S* restrict k, __global const S* restrict v, __global const S* restrict g,
                   __global const E* restrict lse, __global const E* restrict delta, long oq, long ok, long ov, long og,
                   long olse, MARKS_ARGS E scale, const Dims d) {
    long first = get_global_id(0) * 64, last = first + 64 < d.Tq ? first + 64 : d.Tq;
    long h = get_global_id(1), b = get_global_id(2), head = b * d.H + h, size = d.B * d.H * d.rows * DP;
    q += oq + b * d.qb + h * d.qh;
    k += ok + b * d.kb + h / d.G * d.kh;
    v += ov + b * d.vb + h / d.G * d.vh;
    g += og + b * d.gb + h * d.gh;
    MARKS(b, h)
    for (long t = first; t < last; t++) {
        __global const E* p = parts + (head * d.rows + t) * DP;
        __global S* r = dq + (head * d.Tq + t) * d.D;
        V lost = (V)(0);
        int c = 0;
        for (; c + VW <= d.D; c += VW) {
            V s = (V)(0);
            for (long z = 0; z < d.splits; z++) s += *(__global const U*)(p + z * size + c);
            SET(r + c, s * scale);
            lost += LOST(s);
        }
        for (; c < d.D; c++) {
            E s = 0;
            for (long z = 0; z < d.splits; z++) s += p[z * size + c];
            STORE(r, c, s * scale);
            lost += LOST(s);
        }
        if (total(lost) != 0)
            query_grad_row(r, q + t * d.qt, k, v, g + t * d.gt, lse[olse + head * d.Tq + t], delta[head * d.Tq + t],
                           marks, scale, &d, t);
    }
}
#endif
