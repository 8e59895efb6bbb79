// attention_mma.cl: streaming attention and its gradients on NVIDIA's matrix units: mma.sync, or with WARPGROUP wgmma
// (16-bit storage, MT 1, a multiple of 4 warps), which reads right operands from shared memory itself. Follows ptx.cl,
// attention_rows.cl and attention_tile.cl.
//
// Blocks, columns and results are those of attention_gpu.cl. A group of WARPS warps holds 16 MT rows per warp and walks
// over tiles of BC columns, two stages of which are in shared memory, filled by copies that complete later:
//   attend        rows = queries  X = k, Y = v    s = q X^T   o += p Y
//   query_grad    rows = queries  X = k, Y = v    s = q X^T, u = g Y^T   dq += ds X
//   key_grad      rows = keys     X = q, Y = g    s = k X^T, u = v Y^T   dv += p^T Y, dk += ds^T X
// Needs D, strides and offsets in multiples of 16 bytes, and scale > 0. Rows of results that are not finite everywhere
// are computed again, as attention_rows.cl explains.
// Launch: local (WARPS * 32), global (blocks of rows * local, B * heads). USE_<KERNEL> picks the kernel of a program.
// Source: Dao 2023, arXiv:2307.08691; fragments: PTX ISA 8.3, section 9.7.14.
#define PLACES \
    const int Tq = d.Tq, Tk = d.Tk, D = d.D; \
    const int item = get_local_id(0), warp = item >> 5, lane = item & 31, g8 = lane >> 2, t4 = lane & 3; \
    const long b = get_group_id(1) / heads, h = get_group_id(1) % heads; \
    const float c = scale * LOG2E; \
    const uint held = LOCAL(shared), tiles = held + KEPT;
// A block of queries and the keys it sees. The last blocks of a causal head have the most keys: they go first, so that
// no unit is left with one at the end.
#define QUERIES \
    const int heads = d.H; \
    PLACES \
    MARKS(b, h) \
    const int q0 = ((int)get_num_groups(0) - 1 - (int)get_group_id(0)) * BR, rows = min(BR, Tq - q0); \
    const int begin = BEGIN(lo_of(&d, q0)), end = hi_of(&d, q0 + rows - 1); \
    const int count = (max(end - begin, 0) + BC - 1) / BC; \
    const int first = q0 + warp * MT * 16; \
    const long row = get_group_id(1) * (long)Tq; \
    q += oq + b * d.qb + h * d.qh + q0 * d.qt; \
    k += ok + b * d.kb + h / d.G * d.kh; \
    v += ov + b * d.vb + h / d.G * d.vh;
#define STAGE(n) (tiles + ((n) & 1) * 2 * TILE)
#define FETCH_KEYS(to, at) \
    FETCH(to, k + (at) * d.kt, d.kt, Tk - (at), BC) \
    FETCH((to) + TILE, v + (at) * d.vt, d.vt, Tk - (at), BC)
// of the scores of 16 queries and the tile of keys kb .., those that are not seen become `value`
#define HIDE(s, query, value) \
    if (!WHOLE(query, (query) + 15, kb, BC)) \
        UNROLL for (int w = 0; w < 2; w++) { \
            const int at = (query) + w * 8 + g8, lo = lo_of(&d, at), hi = hi_of(&d, at); \
            UNROLL for (int j = 0; j < NC; j++) UNROLL for (int e = 0; e < 2; e++) \
                if (!SEEN(lo, hi, kb + j * 8 + t4 * 2 + e)) (s)[j][2 * w + e] = value; \
        }
// Scores leave the products as they are, times c powers of two; what is SHAPED is in powers of two already (times F).
// BIAS_PAIRS: the mask's values of two keys that lie side by side are read at once, before the products.
#ifndef SHAPED
#define F c
#define TO_LSE scale
#define POWERS(s, pair, e, i, j, bend) ((s) * c)
#else
#define F 1.0f
#define TO_LSE LN2
#ifdef BIAS_PAIRS
#define POWERS(s, pair, e, i, j, bend) \
    added(bent((s) * c, LOG2E, marks, &d, i, j, &bend), pair_value(pair, e), LOG2E)
#else
#define POWERS(s, pair, e, i, j, bend) shaped((s) * c, LOG2E, marks, &d, i, j, &bend)
#endif
#endif
#ifdef BIAS_PAIRS
#ifdef BIAS_BOOL
typedef ushort PAIR;
static inline float pair_value(PAIR p, int second) { return (second ? p >> 8 : p & 0xff) ? 0.0f : NONE; }
#elif defined(BIAS_ROWS) && !defined(TF32)
typedef uint PAIR;
static inline float pair_value(PAIR p, int second) {
    const ushort x = second ? p >> 16 : p & 0xffff;
    return LOAD((const S*)&x, 0);
}
#else
typedef float2 PAIR;
static inline float pair_value(PAIR p, int second) { return second ? p.y : p.x; }
#endif
#define READ_MASK() \
    PAIR pairs[MT][2][NC]; \
    EACH_ROWS UNROLL for (int w = 0; w < 2; w++) { \
        __global const BIAS* p_ = marks.bias + min(first + i * 16 + w * 8 + g8, Tq - 1) * d.bias_q; \
        UNROLL for (int j = 0; j < NC; j++) \
            pairs[i][w][j] = *(__global const PAIR*)(p_ + min(kb + j * 8 + t4 * 2, Tk - 2)); \
    }
#define PAIR_OF(i, w, j) pairs[i][w][j]
#else
#define READ_MASK()
#define PAIR_OF(i, w, j) 0
#endif
// p and r, of query i and the keys j and j + 1, times the factors of dropout: two of a block of four
#ifdef DROPOUT
#define DROP_PAIR(p, r, i, j) { \
        const E4 f_ = factors(marks, &d, i, (j) & ~3); \
        p *= (j) & 2 ? f_.z : f_.x; \
        r *= (j) & 2 ? f_.w : f_.y; \
    }
#else
#define DROP_PAIR(p, r, i, j) {}
#endif
#define ARRIVED() \
    COPY_WAIT(0); \
    READY(); \
    barrier(CLK_LOCAL_MEM_FENCE);

// one row of a result: this lane's pairs of columns, times f
static inline void put_row(__global S* to, float (*o)[4], int second, int D, int t4, float f) {
    UNROLL for (int j = 0; j < ND; j++) {
        const int c = j * 8 + t4 * 2;
        if (c >= D) continue;
        const float x = o[j][second * 2] * f, y = o[j][second * 2 + 1] * f;
#ifdef TF32
        to[c] = x;
        to[c + 1] = y;
#else
        uint w;
        PACK_NARROW(w, x, y);
        *(__global uint*)(to + c) = w;
#endif
    }
}

static inline float over_lanes(float v, int largest) {
    uint w = as_uint(v);
    SHUFFLE_XOR(w, 1);
    v = largest ? fmax(v, as_float(w)) : v + as_float(w);
    w = as_uint(v);
    SHUFFLE_XOR(w, 2);
    return largest ? fmax(v, as_float(w)) : v + as_float(w);
}

// Whether one of the two rows of a lane's sums is not finite everywhere; the 4 lanes that hold it agree.
static inline bool is_lost(float (*o)[4], int second) {
    float s = 0.0f;
    UNROLL for (int j = 0; j < ND; j++) s += (o[j][second * 2] + o[j][second * 2 + 1]) * 0.0f;
    return over_lanes(s, 0) != 0.0f;
}
// These lanes then compute a row each, of those that bits of `lost` name.
#define MINE(lost) (t4 < 2 * MT && ((lost) >> t4 & 1))
#define MY_ROW ((t4 >> 1) * 16 + (t4 & 1) * 8 + g8)

#ifdef USE_ATTEND
__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void attend(
    __global S* restrict o, __global float* restrict lse, __global const S* restrict q, __global const S* restrict k,
    __global const S* restrict v, long oq, long ok, long ov, MARKS_ARGS float scale, const Dims d) {
    SHARED(shared, KEPT + 4 * TILE);
    PROMISE
    QUERIES
    float out[MT][ND][4], top[MT][2], sum[MT][2];
    CLEAR(out, ND)
    EACH_ROWS {
        top[i][0] = top[i][1] = SINK * LOG2E / F;
        sum[i][0] = sum[i][1] = t4 == 0 ? (float)SINK_WEIGHT : 0.0f;    // of 4 lanes that are added up
    }
    FETCH(held, q, d.qt, rows, BR)
    if (count > 0) { FETCH_KEYS(STAGE(0), begin) }
    COPY_GROUP();
    SPLIT_HELD()
    for (int n = 0; n < count; n++) {
        const int kb = begin + n * BC;
        const uint X = STAGE(n), Y = X + TILE;
        ARRIVED()
        if (n + 1 < count) { FETCH_KEYS(STAGE(n + 1), kb + BC) }
        COPY_GROUP();
        READ_MASK()
        float s[MT][NC][4];
        SCORES(s, held, warp * MT * 16, X)
        SCORED(s)
        EACH_ROWS {
#ifdef SHAPED
            float bend;
            UNROLL for (int j = 0; j < NC; j++) UNROLL for (int e = 0; e < 4; e++)
                s[i][j][e] = POWERS(s[i][j][e], PAIR_OF(i, e >> 1, j), e & 1, first + i * 16 + (e >> 1) * 8 + g8,
                                    kb + j * 8 + t4 * 2 + (e & 1), bend);
#endif
            HIDE(s[i], first + i * 16, NONE)
            UNROLL for (int w = 0; w < 2; w++) {
                float m = top[i][w];
                UNROLL for (int j = 0; j < NC; j++) {
                    m = fmax(m, s[i][j][2 * w]);
                    m = fmax(m, s[i][j][2 * w + 1]);
                }
                m = over_lanes(m, 1);
                const float base = m == NONE ? 0.0f : m * F, al = EXP2(top[i][w] * F - base);
                top[i][w] = m;
                float t = 0.0f;
                UNROLL for (int j = 0; j < NC; j++) {
                    s[i][j][2 * w] = EXP2(s[i][j][2 * w] * F - base);
                    s[i][j][2 * w + 1] = EXP2(s[i][j][2 * w + 1] * F - base);
                    t += s[i][j][2 * w] + s[i][j][2 * w + 1];
                }
                sum[i][w] = sum[i][w] * al + t;
                UNROLL for (int j = 0; j < NC; j++)
                    DROP_PAIR(s[i][j][2 * w], s[i][j][2 * w + 1], first + i * 16 + w * 8 + g8, kb + j * 8 + t4 * 2)
                UNROLL for (int j = 0; j < ND; j++) {
                    out[i][j][2 * w] *= al;
                    out[i][j][2 * w + 1] *= al;
                }
            }
        }
        SPREAD(out, s, Y)
    }
    COPY_WAIT(0);
    uint lost = 0;
    EACH_ROWS UNROLL for (int w = 0; w < 2; w++) {
        const int at = first + i * 16 + w * 8 + g8;
        const float t = over_lanes(sum[i][w], 0);
        const bool bad = is_lost(out[i], w);
        lost |= (uint)bad << (2 * i + w);
        if (at < q0 + rows && !bad) {
            put_row(o + (row + at) * D, out[i], w, D, t4, t == 0.0f ? 0.0f : 1.0f / t);
            if (t4 == 0) lse[row + at] = t == 0.0f ? NONE : top[i][w] * TO_LSE + log(t);
        }
    }
    const int at = first + MY_ROW;
    if (MINE(lost) && at < q0 + rows)
        attend_row(o + (row + at) * D, lse + row + at, q + (at - q0) * d.qt, k, v, marks, scale, &d, at);
}
#endif

#ifdef USE_QUERY_GRAD
__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void query_grad(
    __global S* restrict dq, __global const S* restrict q, __global const S* restrict k, __global const S* restrict v,
    __global const S* restrict g, __global const float* restrict lse, __global const float* restrict delta,
    long oq, long ok, long ov, long og, long olse, MARKS_ARGS float scale,
    const Dims d) {
    SHARED(shared, KEPT + 4 * TILE);
    PROMISE
    QUERIES
    g += og + b * d.gb + h * d.gh + q0 * d.gt;
    lse += olse;
    float out[MT][ND][4], top[MT][2], dot[MT][2];
    CLEAR(out, ND)
    EACH_ROWS UNROLL for (int w = 0; w < 2; w++) {
        const int at = first + i * 16 + w * 8 + g8;
        top[i][w] = at < q0 + rows ? lse[row + at] * LOG2E : NONE;
        top[i][w] = top[i][w] == NONE ? INFINITY : top[i][w];
        dot[i][w] = at < q0 + rows ? delta[row + at] : 0.0f;
    }
    FETCH(held, q, d.qt, rows, BR)
    FETCH(held + HELD, g, d.gt, rows, BR)
    if (count > 0) { FETCH_KEYS(STAGE(0), begin) }
    COPY_GROUP();
    SPLIT_HELD()
    for (int n = 0; n < count; n++) {
        const int kb = begin + n * BC;
        const uint X = STAGE(n), Y = X + TILE;
        ARRIVED()
        if (n + 1 < count) { FETCH_KEYS(STAGE(n + 1), kb + BC) }
        COPY_GROUP();
        READ_MASK()
        float s[MT][NC][4], u[MT][NC][4];
        SCORES(s, held, warp * MT * 16, X)
        SCORES(u, held + HELD, warp * MT * 16, Y)
        SCORED(s)
        SCORED(u)
        EACH_ROWS {
            UNROLL for (int j = 0; j < NC; j++) UNROLL for (int e = 0; e < 4; e += 2)
                DROP_PAIR(u[i][j][e], u[i][j][e + 1], first + i * 16 + (e >> 1) * 8 + g8, kb + j * 8 + t4 * 2)
            UNROLL for (int j = 0; j < NC; j++) UNROLL for (int e = 0; e < 4; e++) {
                float bend = 1.0f;
                const float x = POWERS(s[i][j][e], PAIR_OF(i, e >> 1, j), e & 1, first + i * 16 + (e >> 1) * 8 + g8,
                                       kb + j * 8 + t4 * 2 + (e & 1), bend);
                s[i][j][e] = EXP2(BELOW(float, x - top[i][e >> 1])) * (u[i][j][e] - dot[i][e >> 1]) * bend;
            }
            HIDE(s[i], first + i * 16, 0.0f)
        }
        SPREAD(out, s, X)
    }
    COPY_WAIT(0);
    uint lost = 0;
    EACH_ROWS UNROLL for (int w = 0; w < 2; w++) {
        const int at = first + i * 16 + w * 8 + g8;
        const bool bad = is_lost(out[i], w);
        lost |= (uint)bad << (2 * i + w);
        if (at < q0 + rows && !bad) put_row(dq + (row + at) * D, out[i], w, D, t4, scale);
    }
    const int at = first + MY_ROW;
    if (MINE(lost) && at < q0 + rows)
        query_grad_row(dq + (row + at) * D, q + (at - q0) * d.qt, k, v, g + (at - q0) * d.gt, lse[row + at],
                       delta[row + at], marks, scale, &d, at);
}
#endif

#ifdef USE_KEY_GRAD
// stage n: queries from `at` on of head z of those that share the keys
#define FETCH_QUERIES(n, z, at) \
    FETCH(STAGE(n), q + (z) * d.qh + (at) * d.qt, d.qt, Tq - (at), BC) \
    FETCH(STAGE(n) + TILE, g + (z) * d.gh + (at) * d.gt, d.gt, Tq - (at), BC) \
    FETCH_SUMS(rows_at + ((n) & 1) * 8 * BC, (z) * Tq, at)
#ifdef SHAPED
#define KEY_POWERS(s, i, j, bend) shaped((s) * c, LOG2E, marks, &d, i, j, &bend)
#else
#define KEY_POWERS(s, i, j, bend) ((s) * c)
#endif
__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void key_grad(
    __global S* restrict dk, __global S* restrict dv, __global const S* restrict q, __global const S* restrict k,
    __global const S* restrict v, __global const S* restrict g, __global const float* restrict lse,
    __global const float* restrict delta, long oq, long ok, long ov, long og, long olse, MARKS_ARGS float scale,
    const Dims d) {
    SHARED(shared, KEPT + 4 * TILE + 16 * BC);
    PROMISE
    const int heads = d.H / d.G;
    PLACES
    const int k0 = get_group_id(0) * BR, rows = min(BR, Tk - k0), first = k0 + warp * 16;
    const uint rows_at = tiles + 4 * TILE;
    const long row = get_group_id(1) * (long)Tk;
    k += ok + b * d.kb + h * d.kh + k0 * d.kt;
    v += ov + b * d.vb + h * d.vh + k0 * d.vt;
    q += oq + b * d.qb + h * d.G * d.qh;
    g += og + b * d.gb + h * d.G * d.gh;
    lse += olse + (b * d.H + h * d.G) * Tq;
    delta += (b * d.H + h * d.G) * Tq;
    MARKS(b, h * d.G)
    const Marks first_head = marks;
    const int begin = FIRST_QUERY(k0), end = END_QUERY(k0 + rows - 1);     // those that see a key of this block
    const int count = (max(end - begin, 0) + BC - 1) / BC * (int)d.G;
    float ak[1][ND][4], av[1][ND][4];
    CLEAR(ak, ND)
    CLEAR(av, ND)
    FETCH(held, k, d.kt, rows, BR)
    FETCH(held + HELD, v, d.vt, rows, BR)
    if (count > 0) { FETCH_QUERIES(0, 0, begin) }
    COPY_GROUP();
    SPLIT_HELD()
    int z = 0, qb = begin;
    for (int n = 0; n < count; n++) {
        const bool last = qb + BC >= end;    // of this head
        const int z1 = z + last, at1 = last ? begin : qb + BC;
        const uint X = STAGE(n), Y = X + TILE;
        ARRIVED()
        if (n + 1 < count) { FETCH_QUERIES(n + 1, z1, at1) }
        COPY_GROUP();
        float s[1][NC][4], u[1][NC][4];
        SCORES(s, held, warp * 16, X)
        SCORES(u, held + HELD, warp * 16, Y)
        SCORED(s)
        SCORED(u)
#if defined(SHAPED) || defined(DROPOUT)
        marks = first_head;
        NEXT_HEADS(z, &d)
#endif
        const uint sums = rows_at + (n & 1) * 8 * BC + t4 * 8;
        UNROLL for (int j = 0; j < NC; j++) {
            float top[2], dot[2];
            LOAD_PAIR(top[0], top[1], sums + j * 32);
            LOAD_PAIR(dot[0], dot[1], sums + j * 32 + 4 * BC);
            UNROLL for (int w = 0; w < 2; w++) {
                const float t = top[w] == NONE ? INFINITY : top[w] * LOG2E;   // a query that sees nothing: all zero
                UNROLL for (int e = w; e < 4; e += 2) {
                    float bend = 1.0f;
                    const int query = qb + j * 8 + t4 * 2 + w, key = first + g8 + (e >> 1) * 8;
                    const float x = KEY_POWERS(s[0][j][e], query, key, bend);
                    const float p = EXP2(BELOW(float, x - t)), f = factor(marks, &d, query, key);
                    s[0][j][e] = p * f;
                    u[0][j][e] = p * (u[0][j][e] * f - dot[w]) * bend;
                }
            }
        }
        if (qb + BC > Tq || !WHOLE(qb, qb + BC - 1, first, 16))
            UNROLL for (int j = 0; j < NC; j++) UNROLL for (int w = 0; w < 2; w++) {
                const int at = qb + j * 8 + t4 * 2 + w, lo = lo_of(&d, at), hi = at < Tq ? hi_of(&d, at) : 0;
                UNROLL for (int e = w; e < 4; e += 2)
                    if (!SEEN(lo, hi, first + g8 + (e >> 1) * 8)) s[0][j][e] = u[0][j][e] = 0.0f;
            }
        SPREAD(av, s, Y)
        SPREAD(ak, u, X)
        z = z1;
        qb = at1;
    }
    COPY_WAIT(0);
    uint lost = 0;
    UNROLL for (int w = 0; w < 2; w++) {
        const int at = first + w * 8 + g8;
        const bool bad = is_lost(ak[0], w) | is_lost(av[0], w);
        lost |= (uint)bad << w;
        if (at < k0 + rows && !bad) {
            put_row(dk + (row + at) * D, ak[0], w, D, t4, scale);
            put_row(dv + (row + at) * D, av[0], w, D, t4, 1.0f);
        }
    }
    const int at = first + MY_ROW;
    if (MINE(lost) && at < k0 + rows)
        key_grad_row(dk + (row + at) * D, dv + (row + at) * D, q, k + (at - k0) * d.kt, v + (at - k0) * d.vt, g, lse,
                     delta, first_head, scale, &d, at);
}
#endif
