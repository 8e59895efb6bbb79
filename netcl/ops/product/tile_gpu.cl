// tile_gpu.cl: the register tiles of matmul_gpu.cl and conv_gpu.cl: sizes, and moving tiles to local memory and
// registers.
//
// A work-group multiplies a BM x BK by a BK x BN tile, both kept in local memory with k outermost. A work-item holds RM
// x RN sums, in pieces of PM x PN that lie a whole group apart. An operand that runs along k in memory is turned on the
// way in, its rows exchanged in blocks of 32 so that the writes meet on no bank. E is the compute type, S the storage
// type, I the type of offsets (int, or long where it must be); `item`, `k0` and `k1` (end of k) are names of the
// kernel's.
#ifndef BM
#define BM 64       // rows of a group's tile (16..256), a multiple of RM
#endif
#ifndef BN
#define BN 64       // columns of a group's tile (16..256), a multiple of RN
#endif
#ifndef BK
#define BK 16       // depth of a step (8..32), a multiple of 4
#endif
#ifndef RM
#define RM 4        // rows per work-item (1..8)
#endif
#ifndef RN
#define RN 4        // columns per work-item (1..16)
#endif
#define GM (BM / RM)
#define GN (BN / RN)
#define WG (GM * GN)
#define PM (RM % 4 == 0 ? 4 : RM % 2 == 0 ? 2 : 1)
#define PN (RN % 4 == 0 ? 4 : RN % 2 == 0 ? 2 : 1)
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define E4 CAT(E, 4)
#define TURN (32 / (BK / 4))    // step of the exchange of rows
#ifndef PAD
// or 4: elements between the tile's lines in local memory, instead of exchanging rows; for single loads
#define PAD 0
#endif
#define PITCH(ROWS) ((ROWS) + PAD)

#ifdef NARROW   // the forms for aligned vectors: others become four loads
#define LOAD4(p, i) JOIN(JOIN(LOAD_, NARROW), 4A)((p) + (i))
#define STORE4(p, i, v) JOIN(JOIN(STORE_, NARROW), 4A)(v, (p) + (i))
#else
#define LOAD4(p, i) (*(__global const E4*)((p) + (i)))
#define STORE4(p, i, v) (*(__global E4*)((p) + (i)) = (v))
#endif
// The loads of one operand: COUNT of VEC elements per work-item, `row` and `k` of the i-th.
#define COUNT(ROWS, VEC) ((ROWS * BK / VEC + WG - 1) / WG)
#define ROW_OF(i, ROWS, VEC, ALONG_K) (ALONG_K ? (item + (i) * WG) / (BK / VEC) : (item + (i) * WG) % (ROWS / VEC) \
                                       * VEC)
#define K_OF(i, ROWS, VEC, ALONG_K) (ALONG_K ? (item + (i) * WG) % (BK / VEC) * VEC : (item + (i) * WG) / (ROWS / VEC))
#define SWAP_ROW(r, k, ROWS, ALONG_K) (ALONG_K && PAD == 0 && ROWS % 32 == 0 && TURN >= 4 && BK <= 32 \
                                       ? (r) ^ ((k) / 4 * TURN) : (r))
// Rows past the end repeat the last one (their sums are not stored); past the end of k there are zeros.
#define FETCH(reg, from, r_step, k_step, r0, rows, ROWS, VEC, ALONG_K) \
    _Pragma("unroll") for (int i = 0; i < COUNT(ROWS, VEC); i++) { \
        const int k = K_OF(i, ROWS, VEC, ALONG_K), last = (int)(rows) - (ALONG_K ? 1 : VEC); \
        const I at = min((r0) + ROW_OF(i, ROWS, VEC, ALONG_K), last) * (I)(r_step) + k * (I)(k_step); \
        const bool in = k0 + k < k1 && (ROWS * BK / VEC % WG == 0 || k < BK); \
        if (VEC == 4) reg[i] = in ? LOAD4(from, at) : (E4)(0); \
        else reg[i].s0 = in ? LOAD(from, at) : (E)0; \
    }
#define PUT(to, reg, ROWS, VEC, ALONG_K) \
    _Pragma("unroll") for (int i = 0; i < COUNT(ROWS, VEC); i++) { \
        const int k = K_OF(i, ROWS, VEC, ALONG_K), r = ROW_OF(i, ROWS, VEC, ALONG_K); \
        if (ROWS * BK / VEC % WG != 0 && (k >= BK || r >= ROWS)) continue; \
        __local E* p = (to) + k * PITCH(ROWS) + SWAP_ROW(r, k, ROWS, ALONG_K); \
        if (VEC == 1) p[0] = reg[i].s0; \
        else if (ALONG_K) { \
            p[0] = reg[i].s0; p[PITCH(ROWS)] = reg[i].s1; \
            p[2 * PITCH(ROWS)] = reg[i].s2; p[3 * PITCH(ROWS)] = reg[i].s3; \
        } \
        else *(__local E4*)p = reg[i]; \
    }
#define READ(v, from, k, ROWS, PIECE, COUNT_, G, place, ALONG_K) \
    _Pragma("unroll") for (int c = 0; c < COUNT_ / PIECE; c++) { \
        __local const E* p = (from) + (k) * PITCH(ROWS) + SWAP_ROW((c * G + place) * PIECE, k, ROWS, ALONG_K); \
        if (PIECE == 4) { \
            const E4 four = *(__local const E4*)p; \
            v[c * PIECE] = four.s0; v[c * PIECE + PIECE / 4] = four.s1; \
            v[c * PIECE + PIECE / 2] = four.s2; v[c * PIECE + PIECE - 1] = four.s3; \
        } else { \
            v[c * PIECE] = p[0]; \
            if (PIECE == 2) v[c * PIECE + PIECE - 1] = p[PIECE - 1]; \
        } \
    }

// x, y: the work-item's place among GN x GM. 32 neighbours form a block of 8 x 4: less to read from local memory.
#if GM % 8 == 0 && GN % 4 == 0
#define PLACE_ITEM() \
    const int block = item / 32, y = block % (GM / 8) * 8 + item % 32 / 4, x = block / (GM / 8) * 4 + item % 4
#else
#define PLACE_ITEM() const int y = item / GN, x = item % GN
#endif
#define CLEAR() \
    _Pragma("unroll") for (int i = 0; i < RM; i++) _Pragma("unroll") for (int j = 0; j < RN; j++) c[i][j] = 0;
#define MULTIPLY(as, bs, A_TURNED, B_TURNED) \
    _Pragma("unroll") for (int k = 0; k < BK; k++) { \
        E a[RM], b[RN]; \
        READ(a, as, k, BM, PM, RM, GM, y, A_TURNED) \
        READ(b, bs, k, BN, PN, RN, GN, x, B_TURNED) \
        _Pragma("unroll") for (int i = 0; i < RM; i++) \
            _Pragma("unroll") for (int j = 0; j < RN; j++) c[i][j] = MAD(a[i], b[j], c[i][j]); \
    }
// rows and columns of the sums
#define ROW(i) (((i) / PM * GM + y) * PM + (i) % PM)
#define COLUMN(j) (((j) / PN * GN + x) * PN + (j) % PN)
