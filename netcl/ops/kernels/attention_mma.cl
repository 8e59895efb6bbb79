// attention_mma.cl: streaming attention and its gradients on NVIDIA's matrix units: mma.sync, or with WARPGROUP wgmma (16-bit
// storage, MT 1, a multiple of 4 warps), which reads right operands from shared memory itself. Follows ptx.cl.
//
// Blocks, columns and results are those of attention_gpu.cl. A group of WARPS warps holds 16 MT rows per warp and walks over
// tiles of BC columns, two stages of which are in shared memory, filled by copies that complete later:
//   attend        rows = queries  X = k, Y = v    s = q X^T   o += p Y
//   query_grad    rows = queries  X = k, Y = v    s = q X^T, u = g Y^T   dq += ds X
//   key_grad      rows = keys     X = q, Y = g    s = k X^T, u = v Y^T   dv += p^T Y, dk += ds^T X
// The sums s of a warp are, as they lie in its registers, the left operand of its next product: 16-bit after rounding, and
// TF32 with the columns of 8 taken in the order 0 2 4 6 1 3 5 7, which the loads of X and Y follow.
//   16-bit (half): float sums.     TF32 (float): both operands split into high and low, three products, float sums.
// A tile has rows of DP elements, in blocks of 128 bytes, whose chunks of 16 bytes are exchanged so that no two lanes meet on a
// bank (the "128-byte swizzle" of wgmma). Needs D, strides and offsets in multiples of 16 bytes, and scale > 0.
// Launch: local (WARPS * 32), global (blocks of rows * local, B * heads). USE_<KERNEL> picks the kernel of a program.
// Source: Dao 2023, arXiv:2307.08691; fragments: PTX ISA 8.3, section 9.7.14.
#ifdef TF32
#define ES 4
#define SHAPE "m16n8k8"
#define KIND "tf32"
#else
#define ES 2
#define SHAPE "m16n8k16"
#define KIND "f16"
#endif
#define EACH (16 / ES)              // elements of a chunk
#define DEPTH (32 / ES)             // k per instruction
#define KS (DP / DEPTH)             // steps along the head size
#define CS (BC / DEPTH)             // steps along the columns of a tile
#define NC (BC / 8)                 // blocks of 8 columns of a tile
#define ND (DP / 8)                 // blocks of 8 columns of a result
#define NT (WARPS * 32)
#define BR (WARPS * MT * 16)
#define ROW_BYTES (DP * ES)
#define TILE (BC * ROW_BYTES)
#define HELD (BR * ROW_BYTES)
#define LOG2E 1.4426950408889634f
#define NONE (-INFINITY)
#define UNROLL _Pragma("unroll")

// Lengths, then strides of q, k, v, g in elements by batch, head and row (rows themselves are contiguous).
typedef struct {
    long B, H, G, Tq, Tk, D, causal, window, mask_b, qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, splits, rows;
} Dims;

// Query i sees the keys [LO(i), HI(i)). `off` = Tk - Tq.
#define LO(i) (window > 0 ? max((i) + off - window + 1, 0) : 0)
#define HI(i) min(causal ? (i) + off + 1 : window > 0 ? (i) + off + window : Tk, Tk)
#ifdef MASK
#define REAL(j) (mask[j] == 0)
#else
#define REAL(j) 1
#endif
#define SEEN(i, j) ((j) >= LO(i) && (j) < HI(i) && REAL(j))
#define LENGTHS \
    const int Tq = d.Tq, Tk = d.Tk, D = d.D, off = Tk - Tq, window = d.window, causal = d.causal; \
    const int item = get_local_id(0), warp = item >> 5, lane = item & 31, g8 = lane >> 2, t4 = lane & 3; \
    const long b = get_group_id(1) / heads, h = get_group_id(1) % heads;

#define PLACE(r, c, all) (((c) >> 3) * (all) * 128 + (r) * 128 + ((((c) & 7) ^ ((r) & 7)) << 4))
// copies `count` rows (the others become 0) of D elements to a tile of `all` rows
#define FETCH(at, from, step, count, all) \
    UNROLL for (int i_ = 0; i_ < (all) * ROW_BYTES / 16 / NT; i_++) { \
        const int x_ = item + i_ * NT, r_ = x_ / (ROW_BYTES / 16), c_ = x_ % (ROW_BYTES / 16); \
        const int n_ = r_ < (count) && c_ * EACH < D ? 16 : 0; \
        COPY16((at) + PLACE(r_, c_, all), (from) + r_ * (step) + c_ * EACH, n_); \
    }
// copies the log-sums and the dots of BC queries from `at` of the head that starts at `head`
#define FETCH_SUMS(to, head, at) \
    UNROLL for (int x_ = item; x_ < 2 * BC; x_ += NT) { \
        const int i_ = (at) + x_ % BC; \
        COPY4((to) + x_ * 4, (x_ < BC ? lse : delta) + (head) + i_, i_ < Tq ? 4 : 0); \
    }
// 16 rows from r of a held tile, step kk along its elements: a left operand
#define LEFT(a, at, r, kk) LOAD_MATRIX(a, (at) + PLACE((r) + (lane & 15), (kk) * 2 + (lane >> 4), BR))
// rows j * 16 .. of a tile as 2 x 8 columns of a right operand, step kk along its elements
#define ACROSS(two, at, j, kk) \
    LOAD_MATRIX(two, (at) + PLACE((j) * 16 + (lane & 7) + ((lane >> 4) << 3), (kk) * 2 + ((lane >> 3) & 1), BC))
// elements j * 16 .. of a tile's rows as 2 x 8 columns of a right operand, step kk along its rows
#ifndef TF32
#define ALONG(two, at, j, kk) LOAD_MATRIX_T(two, (at) + PLACE((kk) * 16 + (lane & 15), (j) * 2 + (lane >> 4), BC))
#else
#define ALONG(two, at, j, kk) \
    UNROLL for (int q_ = 0; q_ < 4; q_++) { \
        const int r_ = (kk) * 8 + t4 * 2 + (q_ & 1), c_ = ((j) * 2 + (q_ >> 1)) * 8 + g8; \
        LOAD_WORD((two)[q_], (at) + PLACE(r_, c_ / 4, BC) + (c_ & 3) * 4); \
    }
#endif

#ifdef TF32
#define HIGH(x) (((x) + 0x1000u) & 0xffffe000u)
#define LOW(x, h) as_uint(as_float(x) - as_float(h))
#define PARTS(name, high) uint name[4]; UNROLL for (int q_ = 0; q_ < 4; q_++) { \
        const uint h_ = HIGH((high)[q_]); \
        name[q_] = LOW((high)[q_], h_); \
        (high)[q_] = h_; \
    }
#define LEFT_PARTS(a) uint a##_low[MT][4]; UNROLL for (int i = 0; i < MT; i++) UNROLL for (int q_ = 0; q_ < 4; q_++) { \
        const uint h_ = HIGH(a[i][q_]); \
        a##_low[i][q_] = LOW(a[i][q_], h_); \
        a[i][q_] = h_; \
    }
#define RIGHT_PARTS(b) PARTS(b##_low, b)
#define PRODUCT(c, a, i, b, at) \
    MMA(SHAPE, KIND, c, a##_low[i], b + at); \
    MMA(SHAPE, KIND, c, a[i], b##_low + at); \
    MMA(SHAPE, KIND, c, a[i], b + at);
#else
#define LEFT_PARTS(a)
#define RIGHT_PARTS(b)
#define PRODUCT(c, a, i, b, at) MMA(SHAPE, KIND, c, a[i], b + at);
#endif
#define EACH_ROWS UNROLL for (int i = 0; i < MT; i++)
#define CLEAR(x, n) EACH_ROWS UNROLL for (int j = 0; j < n; j++) UNROLL for (int e = 0; e < 4; e++) x[i][j][e] = 0.0f;

#ifdef WARPGROUP
// descriptor of a matrix in shared memory with 128-byte swizzle: start, leading and stride offsets
#define MATRIX(at, lead, stride) \
    ((((ulong)(at) >> 4) & 0x3fff) | (ulong)((lead) >> 4) << 16 | (ulong)((stride) >> 4) << 32 | (ulong)1 << 62)
// s (64 x BC) = the 64 held rows of this warpgroup times the rows of a tile; ready after SCORED
#define SCORES(s, held, row, tile) \
    WG_FENCE(); \
    UNROLL for (int kk = 0; kk < KS; kk++) \
        WG_SCORES(s[0], MATRIX((held) + ((kk >> 2) * BR + (row) / 64 * 64) * 128 + (kk & 3) * 32, 16, 1024), \
                  MATRIX((tile) + (kk >> 2) * BC * 128 + (kk & 3) * 32, 16, 1024), kk > 0); \
    WG_COMMIT();
#define SCORED(s) \
    WG_WAIT(0); \
    UNROLL for (int j = 0; j < NC; j++) UNROLL for (int e = 0; e < 4; e++) PIN(s[0][j][e]);
#define READY() FENCE_ASYNC()
#define PROMISE GROUPS(RESIDENT);
#else
#define SCORED(s)
#define READY()
#define PROMISE
// s[MT][NC] = MT times 16 held rows from `row` on times the rows of a tile
#define SCORES(s, held, row, tile) \
    CLEAR(s, NC) \
    UNROLL for (int kk = 0; kk < KS; kk++) { \
        uint a[MT][4]; \
        EACH_ROWS LEFT(a[i], held, (row) + i * 16, kk); \
        LEFT_PARTS(a) \
        UNROLL for (int j = 0; j < NC / 2; j++) { \
            uint two[4]; \
            ACROSS(two, tile, j, kk); \
            RIGHT_PARTS(two) \
            EACH_ROWS { \
                PRODUCT(s[i][2 * j], a, i, two, 0) \
                PRODUCT(s[i][2 * j + 1], a, i, two, 2) \
            } \
        } \
    }
#endif

// the left operand a of step kk from the sums s
#ifdef TF32
#define TURN(a, s, kk) \
    (a)[0] = as_uint((s)[kk][0]); (a)[1] = as_uint((s)[kk][2]); (a)[2] = as_uint((s)[kk][1]); (a)[3] = as_uint((s)[kk][3]);
#else
#define TURN(a, s, kk) \
    PACK_HALF((a)[0], (s)[2 * (kk)][0], (s)[2 * (kk)][1]); \
    PACK_HALF((a)[1], (s)[2 * (kk)][2], (s)[2 * (kk)][3]); \
    PACK_HALF((a)[2], (s)[2 * (kk) + 1][0], (s)[2 * (kk) + 1][1]); \
    PACK_HALF((a)[3], (s)[2 * (kk) + 1][2], (s)[2 * (kk) + 1][3]);
#endif

#ifdef WARPGROUP
#define SPREAD(o, s, tile) { \
    uint a[CS][4]; \
    UNROLL for (int kk = 0; kk < CS; kk++) { \
        TURN(a[kk], s[0], kk) \
        UNROLL for (int q_ = 0; q_ < 4; q_++) PIN_WORD(a[kk][q_]); \
    } \
    WG_FENCE(); \
    UNROLL for (int kk = 0; kk < CS; kk++) \
        WG_SPREAD(o[0], a[kk], MATRIX((tile) + kk * 2048, BC * 128, 1024), 1); \
    WG_COMMIT(); \
    WG_WAIT(0); \
    UNROLL for (int j = 0; j < ND; j++) UNROLL for (int e = 0; e < 4; e++) PIN(o[0][j][e]); \
}
#else
// o[MT][ND] += s times the rows of a tile. TF32 sums of a tile are added in ordinary float arithmetic, because the unit
// truncates when it accumulates.
#ifdef TF32
#define PARTIAL float part[MT][ND][4]; CLEAR(part, ND)
#define TOTAL(o) EACH_ROWS UNROLL for (int j = 0; j < ND; j++) UNROLL for (int e = 0; e < 4; e++) o[i][j][e] += part[i][j][e];
#define INTO(o) part
#else
#define PARTIAL
#define TOTAL(o)
#define INTO(o) o
#endif
#define SPREAD(o, s, tile) { \
    PARTIAL \
    UNROLL for (int kk = 0; kk < CS; kk++) { \
        uint a[MT][4]; \
        EACH_ROWS { TURN(a[i], s[i], kk) } \
        LEFT_PARTS(a) \
        UNROLL for (int j = 0; j < ND / 2; j++) { \
            uint two[4]; \
            ALONG(two, tile, j, kk); \
            RIGHT_PARTS(two) \
            EACH_ROWS { \
                PRODUCT(INTO(o)[i][2 * j], a, i, two, 0) \
                PRODUCT(INTO(o)[i][2 * j + 1], a, i, two, 2) \
            } \
        } \
    } \
    TOTAL(o) \
}
#endif

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
        PACK_HALF(w, x, y);
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

#ifdef USE_ATTEND
__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void attend(
    __global S* restrict o, __global float* restrict lse, __global const S* restrict q, __global const S* restrict k,
    __global const S* restrict v, __global const uchar* restrict mask, long oq, long ok, long ov, long om, float scale,
    const Dims d) {
    SHARED(shared, HELD + 4 * TILE);
    PROMISE
    const int heads = d.H;
    LENGTHS
    const uint held = LOCAL(shared), tiles = held + HELD;
    // The last blocks of a causal head have the most keys: they go first, so that no unit is left with one at the end.
    const int q0 = ((int)get_num_groups(0) - 1 - (int)get_group_id(0)) * BR, rows = min(BR, Tq - q0);
    const float c = scale * LOG2E;
    q += oq + b * d.qb + h * d.qh + q0 * d.qt;
    k += ok + b * d.kb + h / d.G * d.kh;
    v += ov + b * d.vb + h / d.G * d.vh;
    mask += om + b * d.mask_b;
    const int begin = LO(q0), end = HI(q0 + rows - 1), count = (max(end - begin, 0) + BC - 1) / BC;
    const int r0 = q0 + warp * MT * 16;
    float out[MT][ND][4], top[MT][2], sum[MT][2];
    UNROLL for (int i = 0; i < MT; i++) {
        top[i][0] = top[i][1] = NONE;
        sum[i][0] = sum[i][1] = 0.0f;
        UNROLL for (int j = 0; j < ND; j++) UNROLL for (int e = 0; e < 4; e++) out[i][j][e] = 0.0f;
    }
    FETCH(held, q, d.qt, rows, BR)
    if (count > 0) {
        FETCH(tiles, k + begin * d.kt, d.kt, Tk - begin, BC)
        FETCH(tiles + TILE, v + begin * d.vt, d.vt, Tk - begin, BC)
    }
    COPY_GROUP();
    for (int n = 0; n < count; n++) {
        const int kb = begin + n * BC;
        const uint X = tiles + (n & 1) * 2 * TILE, Y = X + TILE, next = tiles + ((n + 1) & 1) * 2 * TILE;
        COPY_WAIT(0);
        READY();
        barrier(CLK_LOCAL_MEM_FENCE);
        if (n + 1 < count) {
            FETCH(next, k + (kb + BC) * d.kt, d.kt, Tk - kb - BC, BC)
            FETCH(next + TILE, v + (kb + BC) * d.vt, d.vt, Tk - kb - BC, BC)
        }
        COPY_GROUP();
        float s[MT][NC][4];
        SCORES(s, held, warp * MT * 16, X)
        SCORED(s)
        EACH_ROWS {
            const int first = r0 + i * 16;
#ifdef MASK
            const bool whole = false;
#else
            const bool whole = kb >= LO(first + 15) && kb + BC <= HI(first);
#endif
            if (!whole)
                UNROLL for (int j = 0; j < NC; j++) UNROLL for (int e = 0; e < 4; e++) {
                    const int at = first + g8 + (e >> 1) * 8, key = kb + j * 8 + t4 * 2 + (e & 1);
                    if (!SEEN(at, key)) s[i][j][e] = NONE;
                }
            UNROLL for (int w = 0; w < 2; w++) {
                float m = top[i][w];
                UNROLL for (int j = 0; j < NC; j++) {
                    m = fmax(m, s[i][j][2 * w]);
                    m = fmax(m, s[i][j][2 * w + 1]);
                }
                m = over_lanes(m, 1);
                const float base = m == NONE ? 0.0f : m * c, al = EXP2(top[i][w] * c - base);
                top[i][w] = m;
                float t = 0.0f;
                UNROLL for (int j = 0; j < NC; j++) {
                    s[i][j][2 * w] = EXP2(s[i][j][2 * w] * c - base);
                    s[i][j][2 * w + 1] = EXP2(s[i][j][2 * w + 1] * c - base);
                    t += s[i][j][2 * w] + s[i][j][2 * w + 1];
                }
                sum[i][w] = sum[i][w] * al + t;
                UNROLL for (int j = 0; j < ND; j++) {
                    out[i][j][2 * w] *= al;
                    out[i][j][2 * w + 1] *= al;
                }
            }
        }
        SPREAD(out, s, Y)
    }
    COPY_WAIT(0);
    const long row = get_group_id(1) * (long)Tq;
    UNROLL for (int i = 0; i < MT; i++) UNROLL for (int w = 0; w < 2; w++) {
        const int at = r0 + i * 16 + w * 8 + g8;
        const float t = over_lanes(sum[i][w], 0);
        if (at < q0 + rows) {
            put_row(o + (row + at) * D, out[i], w, D, t4, t == 0.0f ? 0.0f : 1.0f / t);
            if (t4 == 0) lse[row + at] = t == 0.0f ? NONE : top[i][w] * scale + log(t);
        }
    }
}
#endif

#ifdef USE_QUERY_GRAD
__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void query_grad(
    __global S* restrict dq, __global const S* restrict q, __global const S* restrict k, __global const S* restrict v,
    __global const S* restrict g, __global const float* restrict lse, __global const float* restrict delta,
    __global const uchar* restrict mask, long oq, long ok, long ov, long og, long ol, long om, float scale, const Dims d) {
    SHARED(shared, 2 * HELD + 4 * TILE);
    PROMISE
    const int heads = d.H;
    LENGTHS
    const uint held = LOCAL(shared), tiles = held + 2 * HELD;
    const int q0 = ((int)get_num_groups(0) - 1 - (int)get_group_id(0)) * BR, rows = min(BR, Tq - q0);
    const float c = scale * LOG2E;
    const long row = get_group_id(1) * (long)Tq;
    q += oq + b * d.qb + h * d.qh + q0 * d.qt;
    g += og + b * d.gb + h * d.gh + q0 * d.gt;
    k += ok + b * d.kb + h / d.G * d.kh;
    v += ov + b * d.vb + h / d.G * d.vh;
    mask += om + b * d.mask_b;
    const int begin = LO(q0), end = HI(q0 + rows - 1), count = (max(end - begin, 0) + BC - 1) / BC;
    const int first = q0 + warp * 16;
    float out[1][ND][4], top[2], dot[2];
    CLEAR(out, ND)
    UNROLL for (int w = 0; w < 2; w++) {
        const int at = first + w * 8 + g8;
        top[w] = at < q0 + rows ? lse[ol + row + at] * LOG2E : NONE;
        top[w] = top[w] == NONE ? INFINITY : top[w];
        dot[w] = at < q0 + rows ? delta[row + at] : 0.0f;
    }
    FETCH(held, q, d.qt, rows, BR)
    FETCH(held + HELD, g, d.gt, rows, BR)
    if (count > 0) {
        FETCH(tiles, k + begin * d.kt, d.kt, Tk - begin, BC)
        FETCH(tiles + TILE, v + begin * d.vt, d.vt, Tk - begin, BC)
    }
    COPY_GROUP();
    for (int n = 0; n < count; n++) {
        const int kb = begin + n * BC;
        const uint X = tiles + (n & 1) * 2 * TILE, Y = X + TILE, next = tiles + ((n + 1) & 1) * 2 * TILE;
        COPY_WAIT(0);
        READY();
        barrier(CLK_LOCAL_MEM_FENCE);
        if (n + 1 < count) {
            FETCH(next, k + (kb + BC) * d.kt, d.kt, Tk - kb - BC, BC)
            FETCH(next + TILE, v + (kb + BC) * d.vt, d.vt, Tk - kb - BC, BC)
        }
        COPY_GROUP();
        float s[1][NC][4], u[1][NC][4];
        SCORES(s, held, warp * 16, X)
        SCORES(u, held + HELD, warp * 16, Y)
        SCORED(s)
        SCORED(u)
#ifdef MASK
        const bool whole = false;
#else
        const bool whole = kb >= LO(first + 15) && kb + BC <= HI(first);
#endif
        UNROLL for (int j = 0; j < NC; j++) UNROLL for (int e = 0; e < 4; e++) {
            const float p = EXP2(s[0][j][e] * c - top[e >> 1]);
            s[0][j][e] = p * (u[0][j][e] - dot[e >> 1]);
        }
        if (!whole)
            UNROLL for (int j = 0; j < NC; j++) UNROLL for (int e = 0; e < 4; e++) {
                const int at = first + g8 + (e >> 1) * 8, key = kb + j * 8 + t4 * 2 + (e & 1);
                if (!SEEN(at, key) || top[e >> 1] == INFINITY) s[0][j][e] = 0.0f;
            }
        SPREAD(out, s, X)
    }
    COPY_WAIT(0);
    UNROLL for (int w = 0; w < 2; w++) {
        const int at = first + w * 8 + g8;
        if (at < q0 + rows) put_row(dq + (row + at) * D, out[0], w, D, t4, scale);
    }
}
#endif

#ifdef USE_KEY_GRAD
__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void key_grad(
    __global S* restrict dk, __global S* restrict dv, __global const S* restrict q, __global const S* restrict k,
    __global const S* restrict v, __global const S* restrict g, __global const float* restrict lse,
    __global const float* restrict delta, __global const uchar* restrict mask, long oq, long ok, long ov, long og, long ol,
    long om, float scale, const Dims d) {
    SHARED(shared, 2 * HELD + 4 * TILE + 16 * BC);
    PROMISE
    const int heads = d.H / d.G;
    LENGTHS
    const uint held = LOCAL(shared), tiles = held + 2 * HELD, rows_at = tiles + 4 * TILE;
    const int k0 = get_group_id(0) * BR, rows = min(BR, Tk - k0), first = k0 + warp * 16;
    const float c = scale * LOG2E;
    k += ok + b * d.kb + h * d.kh + k0 * d.kt;
    v += ov + b * d.vb + h * d.vh + k0 * d.vt;
    q += oq + b * d.qb + h * d.G * d.qh;
    g += og + b * d.gb + h * d.G * d.gh;
    lse += ol + (b * d.H + h * d.G) * Tq;
    delta += (b * d.H + h * d.G) * Tq;
    mask += om + b * d.mask_b;
    // Queries that see a key of this block: from its first key's own place on (causal), and at most `window` away.
    const int begin = max(0, causal ? k0 - off : window > 0 ? k0 - off - window + 1 : 0);
    const int end = window > 0 ? min(Tq, k0 + rows - 1 - off + window) : Tq;
    const int count = (max(end - begin, 0) + BC - 1) / BC * (int)d.G;
    float ak[1][ND][4], av[1][ND][4];
    CLEAR(ak, ND)
    CLEAR(av, ND)
    FETCH(held, k, d.kt, rows, BR)
    FETCH(held + HELD, v, d.vt, rows, BR)
    if (count > 0) {
        FETCH(tiles, q + begin * d.qt, d.qt, Tq - begin, BC)
        FETCH(tiles + TILE, g + begin * d.gt, d.gt, Tq - begin, BC)
        FETCH_SUMS(rows_at, 0, begin)
    }
    COPY_GROUP();
    int z = 0, qb = begin;
    for (int n = 0; n < count; n++) {
        const bool last = qb + BC >= end;    // of this head
        const int z1 = z + last, at1 = last ? begin : qb + BC;
        const uint X = tiles + (n & 1) * 2 * TILE, Y = X + TILE, next = tiles + ((n + 1) & 1) * 2 * TILE;
        COPY_WAIT(0);
        READY();
        barrier(CLK_LOCAL_MEM_FENCE);
        if (n + 1 < count) {
            FETCH(next, q + z1 * d.qh + at1 * d.qt, d.qt, Tq - at1, BC)
            FETCH(next + TILE, g + z1 * d.gh + at1 * d.gt, d.gt, Tq - at1, BC)
            FETCH_SUMS(rows_at + ((n + 1) & 1) * 8 * BC, z1 * Tq, at1)
        }
        COPY_GROUP();
        float s[1][NC][4], u[1][NC][4];
        SCORES(s, held, warp * 16, X)
        SCORES(u, held + HELD, warp * 16, Y)
        SCORED(s)
        SCORED(u)
#ifdef MASK
        const bool whole = false;
#else
        const bool whole = qb + BC <= Tq && first >= LO(qb + BC - 1) && first + 16 <= HI(qb);
#endif
        const uint sums = rows_at + (n & 1) * 8 * BC + t4 * 8;
        UNROLL for (int j = 0; j < NC; j++) {
            float top[2], dot[2];
            LOAD_PAIR(top[0], top[1], sums + j * 32);
            LOAD_PAIR(dot[0], dot[1], sums + j * 32 + 4 * BC);
            UNROLL for (int w = 0; w < 2; w++) {
                const int at = qb + j * 8 + t4 * 2 + w;
                const float t = top[w] == NONE ? INFINITY : top[w] * LOG2E;   // a query that sees nothing: all zero
                UNROLL for (int e = w; e < 4; e += 2) {
                    const float p = EXP2(s[0][j][e] * c - t);
                    const bool zero = !whole && (at >= Tq || !SEEN(at, first + g8 + (e >> 1) * 8));
                    s[0][j][e] = zero ? 0.0f : p;
                    u[0][j][e] = zero ? 0.0f : p * (u[0][j][e] - dot[w]);
                }
            }
        }
        SPREAD(av, s, Y)
        SPREAD(ak, u, X)
        z = z1;
        qb = at1;
    }
    COPY_WAIT(0);
    const long row = get_group_id(1) * (long)Tk;
    UNROLL for (int w = 0; w < 2; w++) {
        const int at = first + w * 8 + g8;
        if (at < k0 + rows) {
            put_row(dk + (row + at) * D, ak[0], w, D, t4, scale);
            put_row(dv + (row + at) * D, av[0], w, D, t4, 1.0f);
        }
    }
}
#endif
