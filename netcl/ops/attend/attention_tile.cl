// attention_tile.cl: how attention_mma.cl moves tiles to shared memory and multiplies by them. Comes before its kernels
// and after attention_rows.cl.
// KIND is the units' name of the type.
//
// A tile has rows of DP elements, in blocks of 128 bytes, whose chunks of 16 bytes are exchanged so that no two lanes
// meet on a bank (the "128-byte swizzle" of wgmma).
//   SCORES(s, held, row, tile), SCORED(s)   s = rows of a held tile from `row` on, times the rows of a tile
//   SPREAD(o, s, tile)                      o += s times the rows of a tile, s being the sums as SCORED leaves them
// The sums s of a warp are, as they lie in its registers, the left operand of the next product: 16-bit after rounding,
// and TF32 with the columns of 8 taken in the order 0 2 4 6 1 3 5 7, which the loads along the rows of a tile follow.
//   16-bit types: float sums.      TF32 (float): both operands split into high and low, three products, float sums.
//   What is not finite has a low part that is not a number, and so is every product with it.
#ifdef TF32
#define ES 4
#define SHAPE "m16n8k8"
#else
#define ES 2
#define SHAPE "m16n8k16"
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
#ifdef USE_ATTEND
#define HELDS 1                     // tiles of BR rows that a group holds; of TF32, the low parts lie behind them
#else
#define HELDS 2
#endif
#ifdef TF32
#define KEPT (2 * HELDS * HELD)
#else
#define KEPT (HELDS * HELD)
#endif

#define PLACE(r, c, all) (((c) >> 3) * (all) * 128 + (r) * 128 + ((((c) & 7) ^ ((r) & 7)) << 4))
// copies `count` rows (the others become 0) of D elements to a tile of `all` rows
#define CHUNKS (ROW_BYTES / 16)
#define FETCH(at, from, step, count, all) { \
    const int r_ = item / CHUNKS, c_ = item % CHUNKS, here_ = c_ * EACH < D ? (count) : 0; \
    __global const S* p_ = (from) + r_ * (step) + c_ * EACH; \
    UNROLL for (int i_ = 0; i_ < (all) * CHUNKS / NT; i_++) { \
        const int n_ = r_ + i_ * (NT / CHUNKS) < here_ ? 16 : 0; \
        COPY16((at) + PLACE(r_ + i_ * (NT / CHUNKS), c_, all), p_, n_); \
        p_ += NT / CHUNKS * (step); \
    } \
}
// copies the log-sums and the dots of BC queries from `at` of the head that starts at `head`
#define FETCH_SUMS(to, head, at) \
    UNROLL for (int x_ = item; x_ < 2 * BC; x_ += NT) { \
        const int i_ = (at) + x_ % BC; \
        COPY4((to) + x_ * 4, (x_ < BC ? lse : delta) + (head) + i_, i_ < Tq ? 4 : 0); \
    }
// Where a lane reads: 16 rows by 2 chunks, 2 x 8 rows by 2 chunks, and of TF32 2 rows by 8 words. Chunks further on are
// found by an exclusive or, rows by adding.
#define LANE_ROWS ((lane & 15) * 128 + (((lane >> 4) ^ (lane & 7)) << 4))
#define LANE_ACROSS (((lane & 7) + ((lane >> 4) << 3)) * 128 + ((((lane >> 3) & 1) ^ (lane & 7)) << 4))
#define LANE_WORDS (t4 * 256 + (((g8 >> 2) ^ (t4 * 2)) << 4) + (g8 & 3) * 4)
#define CHUNK(at, c, all) (((at) ^ (((c) & 7) << 4)) + ((c) >> 3) * (all) * 128)
// 16 rows from r of a held tile, step kk along its elements: a left operand
#define LEFT(a, at, r, kk) LOAD_MATRIX(a, CHUNK((at) + (r) * 128 + LANE_ROWS, (kk) * 2, BR))
// rows j * 16 .. of a tile as 2 x 8 columns of a right operand, step kk along its elements
#define ACROSS(two, at, j, kk) LOAD_MATRIX(two, CHUNK((at) + LANE_ACROSS, (kk) * 2, BC) + (j) * 2048)
// elements j * 16 .. of a tile's rows as 2 x 8 columns of a right operand, step kk along its rows
#ifndef TF32
#define ALONG(two, at, j, kk) LOAD_MATRIX_T(two, CHUNK((at) + LANE_ROWS, (j) * 2, BC) + (kk) * 2048)
#else
#define ALONG(two, at, j, kk) \
    UNROLL for (int q_ = 0; q_ < 4; q_++) \
        LOAD_WORD((two)[q_], CHUNK((at) + LANE_WORDS, ((j) * 4 + (q_ >> 1) * 2) ^ (q_ & 1), BC) \
                  + (q_ & 1) * 128 + (kk) * 1024);
#endif

#define EACH_ROWS UNROLL for (int i = 0; i < MT; i++)
#define EACH_SUM(n) EACH_ROWS UNROLL for (int j = 0; j < n; j++) UNROLL for (int e = 0; e < 4; e++)
#define CLEAR(x, n) EACH_SUM(n) x[i][j][e] = 0.0f;
// c[MT][2 j ..] += a[MT] times a right operand of 2 x 8 columns
#define PRODUCT(c, j, a, b) \
    EACH_ROWS { \
        MMA(SHAPE, KIND, c[i][2 * (j)], a[i], b); \
        MMA(SHAPE, KIND, c[i][2 * (j) + 1], a[i], (b + 2)); \
    }

#ifdef TF32
// A float is the sum of a high part of 11 bits, rounded for left operands, and a low part; the unit takes 11 bits of
// either. Right operands are their own high part: the unit ignores the last bits.
#define CUT(x) ((x) & 0xffffe000u)
#define LOW(x, h) as_uint(as_float(x) - as_float(h))
#define LEFT_PARTS(a) uint a##_low[MT][4]; EACH_ROWS UNROLL for (int q_ = 0; q_ < 4; q_++) { \
        const uint h_ = CUT(a[i][q_] + 0x1000u); \
        a##_low[i][q_] = LOW(a[i][q_], h_); \
        a[i][q_] = h_; \
    }
#define RIGHT_PARTS(b) uint b##_low[4]; UNROLL for (int q_ = 0; q_ < 4; q_++) b##_low[q_] = LOW(b[q_], CUT(b[q_]));
// the parts of what a group holds, once
#define SPLIT_HELD() \
    COPY_WAIT(0); \
    barrier(CLK_LOCAL_MEM_FENCE); \
    for (int i_ = item; i_ < HELDS * HELD / 16; i_ += NT) { \
        uint4 x_, h_, l_; \
        LOAD_FOUR(x_, held + i_ * 16); \
        h_ = CUT(x_ + 0x1000u); \
        l_.x = LOW(x_.x, h_.x); l_.y = LOW(x_.y, h_.y); l_.z = LOW(x_.z, h_.z); l_.w = LOW(x_.w, h_.w); \
        STORE_FOUR(held + i_ * 16, h_); \
        STORE_FOUR(held + HELDS * HELD + i_ * 16, l_); \
    }
#define HELD_LOW(at, row, kk) \
    uint a_low[MT][4]; \
    EACH_ROWS LEFT(a_low[i], (at) + HELDS * HELD, (row) + i * 16, kk);
// three products: of low parts into l, which may be c
#define PRODUCTS(c, l, j, a, b) \
    PRODUCT(l, j, a##_low, b) \
    PRODUCT(l, j, a, b##_low) \
    PRODUCT(c, j, a, b)
#else
#define LEFT_PARTS(a)
#define RIGHT_PARTS(b)
#define SPLIT_HELD()
#define HELD_LOW(at, row, kk)
#define PRODUCTS(c, l, j, a, b) PRODUCT(c, j, a, b)
#endif

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
// The unit truncates when it accumulates: TF32 scores add up their low products by themselves, and sums of a tile are
// added to the others in ordinary float arithmetic.
#ifdef TF32
#define CLEAR_LOW(s) float s##_low[MT][NC][4]; CLEAR(s##_low, NC)
#define ADD_LOW(s) EACH_SUM(NC) s[i][j][e] += s##_low[i][j][e];
#else
#define CLEAR_LOW(s)
#define ADD_LOW(s)
#endif
// s[MT][NC] = MT times 16 held rows from `row` on times the rows of a tile
#define SCORES(s, held, row, tile) \
    CLEAR(s, NC) \
    CLEAR_LOW(s) \
    UNROLL for (int kk = 0; kk < KS; kk++) { \
        uint a[MT][4]; \
        EACH_ROWS LEFT(a[i], held, (row) + i * 16, kk); \
        HELD_LOW(held, row, kk) \
        UNROLL for (int j = 0; j < NC / 2; j++) { \
            uint two[4]; \
            ACROSS(two, tile, j, kk); \
            RIGHT_PARTS(two) \
            PRODUCTS(s, s##_low, j, a, two) \
        } \
    } \
    ADD_LOW(s)
#endif

// the left operand a of step kk from the sums s
#ifdef TF32
#define TURN(a, s, kk) \
    (a)[0] = as_uint((s)[kk][0]); (a)[1] = as_uint((s)[kk][2]); (a)[2] = as_uint((s)[kk][1]); \
    (a)[3] = as_uint((s)[kk][3]);
#else
#define TURN(a, s, kk) \
    PACK_NARROW((a)[0], (s)[2 * (kk)][0], (s)[2 * (kk)][1]); \
    PACK_NARROW((a)[1], (s)[2 * (kk)][2], (s)[2 * (kk)][3]); \
    PACK_NARROW((a)[2], (s)[2 * (kk) + 1][0], (s)[2 * (kk) + 1][1]); \
    PACK_NARROW((a)[3], (s)[2 * (kk) + 1][2], (s)[2 * (kk) + 1][3]);
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
// o[MT][ND] += s times the rows of a tile
#define SPREAD_INTO(o, s, tile) \
    UNROLL for (int kk = 0; kk < CS; kk++) { \
        uint a[MT][4]; \
        EACH_ROWS { TURN(a[i], s[i], kk) } \
        LEFT_PARTS(a) \
        UNROLL for (int j = 0; j < ND / 2; j++) { \
            uint two[4]; \
            ALONG(two, tile, j, kk); \
            RIGHT_PARTS(two) \
            PRODUCTS(o, o, j, a, two) \
        } \
    }
#ifdef TF32
#define SPREAD(o, s, tile) { \
    float part[MT][ND][4]; \
    CLEAR(part, ND) \
    SPREAD_INTO(part, s, tile) \
    EACH_SUM(ND) o[i][j][e] += part[i][j][e]; \
}
#else
#define SPREAD SPREAD_INTO
#endif
#endif
