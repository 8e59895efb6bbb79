// conv_gpu.cl: 2-D convolution on any device with work-groups, as matrix products whose operands are read in place.
//
//   conv          Y (M, Q) = act(W (M, K) X (K, Q) + bias)   M output channels of a group, Q = N * Ho * Wo pixels,
//   conv_weights  dW (M, K) = G (M, Q) X^T (Q, K)            K = C * KH * KW taps; X(k, q) is the input pixel that tap
//                                                            k of pixel q reads, or 0 in the padding.
//
// taps[k] = (offset, row, column, offset) of the pixel that tap k reads, relative to the first one of an output pixel;
// the offset has its low half in front. Tiles as in tile_gpu.cl: the next step is loaded into registers while this one
// is multiplied.
//
//   CHECKED 0: all taps of all pixels lie inside, and the tiles' steps of k are whole.
//   A_VEC, B_VEC 4: four elements per load; of W along k, of G and X over pixels that lie behind one another (B_VEC:
//   filters of one tap that take every pixel). Y_VEC: four pixels per store. PART_VEC: four taps.
//
// E is the compute type, S the storage type; sums stay in E. USE_<KERNEL> picks the kernel of a program: drivers
// compile all that they see, and some count the local memory of all.
#ifndef CHECKED
#define CHECKED 1
#endif
typedef struct {
    long M, Q, K, C, H, W, sy, sx, py, px, Ho, Wo, xn, xc, xh, xw, yn, yc, yh, yw, depth;
} Dims;

// The image, row and column of an output pixel.
typedef struct {
    int n, i, j;
} Place;
static inline Place place(int q, const Dims* D) {
    const int P = (int)D->Ho * (int)D->Wo, n = q / P, p = q - n * P, i = p / (int)D->Wo;
    const Place at = {n, i, p - i * (int)D->Wo};
    return at;
}
// The one `step` pixels further.
static inline Place further(Place at, Place step, const Dims* D) {
    at.j += step.j;
    const bool row = at.j >= (int)D->Wo;
    at.i += step.i + row;
    const bool image = at.i >= (int)D->Ho;
    at.n += step.n + image;
    at.j -= row ? (int)D->Wo : 0;
    at.i -= image ? (int)D->Ho : 0;
    return at;
}
// Where it lies in Y (or G).
static inline I result(Place at, const Dims* D) { return at.n * (I)D->yn + at.i * (I)D->yh + at.j * (I)D->yw; }

// The first pixel that it reads, and that one's row and column.
typedef struct {
    __global const S* in;
    int row, column;
} Pixel;
static inline Pixel pixel(__global const S* X, Place p, const Dims* D) {
    Pixel at;
    at.row = p.i * (int)D->sy - (int)D->py;
    at.column = p.j * (int)D->sx - (int)D->px;
    at.in = X + (p.n * (I)D->xn + at.row * (I)D->xh + at.column * (I)D->xw);
    return at;
}
static inline bool inside(Pixel at, int4 t, const Dims* D) {
    return !CHECKED | ((uint)at.row + (uint)t.y < (uint)D->H) & ((uint)at.column + (uint)t.z < (uint)D->W);
}
static inline I offset(int4 t) { return (I)as_long((int2)(t.x, t.w)); }
#define TAP(reg, at, t, in_k) \
    if (B_VEC == 4) (reg) = (in_k) & inside(at, t, &D) ? LOAD4((at).in, offset(t)) : (E4)(0); \
    else (reg).s0 = (in_k) & inside(at, t, &D) ? LOAD((at).in, offset(t)) : (E)0;

// Of `n` places a work-item's loads see so many different ones, in turn. ALL: no load falls beside the tile.
#define PERIOD(n, loads) (WG % (n) == 0 ? 1 : (n) % WG == 0 ? (n) / WG : (loads))
#define ALL(ROWS, VEC) (ROWS * BK / VEC % WG == 0)

#ifdef USE_CONV
// Taps behind the last of a whole step, and of one step more, are there and lie outside.
// Launch: groups (tiles of Q * tiles of M, groups of channels).
#define LINE (BN + 16)  // of sums on their way out
#define SPARE (2 * BK * PITCH(BN) > GM * LINE ? 2 * BK * PITCH(BN) : GM * LINE)    // of B's tiles, or of lines
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void conv(
    __global S* Y, __global const S* X, __global const S* Wt, __global const S* bias, __global const int4* taps,
    long oY, long oX, long oWt, long obias, const Dims D) {
    __local __attribute__((aligned(64))) E As[2 * BK * PITCH(BM)], Bs[SPARE];
    __local int4 table[2 * BK];
    const int item = get_local_id(0), tiles_m = (int)((D.M + BM - 1) / BM), tile = get_group_id(0), g = get_group_id(1);
    const int m0 = tile % tiles_m * BM, q0 = tile / tiles_m * BN, k1 = D.K;
    PLACE_ITEM();
    X += oX + g * D.C * D.xc;
    Wt += oWt + (long)g * D.M * D.K;
    Y += oY + g * D.M * D.yc;
#define COLUMNS PERIOD(BN / B_VEC, COUNT(BN, B_VEC))
#define AHEAD ((BK + WG - 1) / WG)
    Pixel at[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const int q = min(q0 + ROW_OF(i, BN, B_VEC, 0), (int)D.Q - B_VEC);
        at[i] = pixel(X, place(q, &D), &D);
    }
#define GATHER(table) \
    _Pragma("unroll") for (int i = 0; i < COUNT(BN, B_VEC); i++) { \
        const int k = K_OF(i, BN, B_VEC, 0); \
        TAP(b_next[i], at[i % COLUMNS], (table)[ALL(BN, B_VEC) ? k : min(k, BK - 1)], ALL(BN, B_VEC) || k < BK) \
    }
    E c[RM][RN];
    E4 a_next[COUNT(BM, A_VEC)], b_next[COUNT(BN, B_VEC)];
    int4 ahead[AHEAD];
    CLEAR()
    int k0 = 0, turn = 0;
    FETCH(a_next, Wt, D.K, 1, m0, D.M, BM, A_VEC, 1)
    GATHER(taps)
    PUT(As, a_next, BM, A_VEC, 1)
    PUT(Bs, b_next, BN, B_VEC, 0)
    for (int k = item; k < BK; k += WG) table[k] = taps[BK + k];
    barrier(CLK_LOCAL_MEM_FENCE);
    while (k0 < k1) {
        k0 += BK;
        const bool more = k0 < k1;
        if (more) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++) ahead[i] = taps[k0 + BK + min(item + i * WG, BK - 1)];
            Wt += BK;
            FETCH(a_next, Wt, D.K, 1, m0, D.M, BM, A_VEC, 1)
            GATHER(table + turn * BK)
        }
        __local const E* as = As + turn * BK * PITCH(BM);
        __local const E* bs = Bs + turn * BK * PITCH(BN);
        MULTIPLY(as, bs, 1, 0)
        turn ^= 1;
        if (more) {
            PUT(As + turn * BK * PITCH(BM), a_next, BM, A_VEC, 1)
            PUT(Bs + turn * BK * PITCH(BN), b_next, BN, B_VEC, 0)
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (item + i * WG < BK) table[turn * BK + item + i * WG] = ahead[i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#if Y_VEC == 4 && PN == 4
#pragma unroll
    for (int j = 0; j < RN; j += PN) {
        const int q = q0 + COLUMN(j);
        if (q >= D.Q) continue;
        const I to = result(place(q, &D), &D);
#pragma unroll
        for (int i = 0; i < RM; i++) {
            const int m = m0 + ROW(i);
            if (m >= D.M) continue;
            E4 four;
            four.s0 = FINISH(c[i][j], g * D.M + m);
            four.s1 = FINISH(c[i][j + 1], g * D.M + m);
            four.s2 = FINISH(c[i][j + 2], g * D.M + m);
            four.s3 = FINISH(c[i][j + 3], g * D.M + m);
            STORE4(Y, to + m * (I)D.yc, four);
        }
    }
#else   // through local memory, STAGE rows of every work-item at a time, for neighbours to store neighbouring pixels
#define STAGE (SPARE / (GM * LINE) > RM ? RM : SPARE / (GM * LINE))
    I to[PERIOD(BN, RN)];
#pragma unroll
    for (int e = 0; e < PERIOD(BN, RN); e++) to[e] = result(place(q0 + (item + e * WG) % BN, &D), &D);
#pragma unroll
    for (int first = 0; first < RM; first += STAGE) {
#pragma unroll
        for (int s = 0; s < STAGE; s++) {
            if (first + s >= RM) continue;
            __local E* line = Bs + (s * GM + y) * LINE;
#pragma unroll
            for (int j = 0; j < RN; j += PN) {
#if PN == 4
                *(__local E4*)(line + COLUMN(j)) =
                    (E4)(c[first + s][j], c[first + s][j + 1], c[first + s][j + 2], c[first + s][j + 3]);
#else
#pragma unroll
                for (int e = 0; e < PN; e++) line[COLUMN(j + e)] = c[first + s][j + e];
#endif
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int s = 0; s < STAGE && first + s < RM; s++)
#pragma unroll
            for (int e = 0; e < RN; e++) {
                const int n = (item + e * WG) % BN, r = (item + e * WG) / BN, i = first + s;
                const int m = m0 + (i / PM * GM + r) * PM + i % PM;
                const E sum = Bs[(s * GM + r) * LINE + n];
                if (m < D.M && q0 + n < D.Q) STORE(Y, to[e % PERIOD(BN, RN)] + m * (I)D.yc, FINISH(sum, g * D.M + m));
            }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
}
#endif

#ifdef USE_CONV_WEIGHTS
// part (splits, groups, M, K) = sums over `depth` pixels each; split_k.cl adds the splits. G has the strides of Y.
// Launch: groups (tiles of K * tiles of M, splits * groups of channels).
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void conv_weights(
    __global E* part, __global const S* G, __global const S* X, __global const int4* taps, long oG, long oX, int groups,
    const Dims D) {
    __local __attribute__((aligned(64))) E As[2 * BK * PITCH(BM)], Bs[2 * BK * PITCH(BN)];
    const int item = get_local_id(0), tiles_m = (int)((D.M + BM - 1) / BM), tile = get_group_id(0);
    const int g = get_group_id(1) % groups, m0 = tile % tiles_m * BM, n0 = tile / tiles_m * BN;
    const int q0 = get_group_id(1) / groups * (int)D.depth, k1 = min((long)q0 + D.depth, D.Q);
    PLACE_ITEM();
    X += oX + g * D.C * D.xc;
    G += oG + g * D.M * D.yc;
    part += get_group_id(1) * D.M * D.K;
#define A_SPOTS PERIOD(BK / A_VEC, COUNT(BM, A_VEC))
#define B_SPOTS PERIOD(BK / B_VEC, COUNT(BN, B_VEC))
    Place a_at[A_SPOTS], b_at[B_SPOTS];
    int4 columns[COUNT(BN, B_VEC)];
    const Place step = place(BK, &D);
#pragma unroll
    for (int i = 0; i < A_SPOTS; i++) a_at[i] = place(q0 + K_OF(i, BM, A_VEC, 1), &D);
#pragma unroll
    for (int i = 0; i < B_SPOTS; i++) b_at[i] = place(q0 + K_OF(i, BN, B_VEC, 1), &D);
#pragma unroll
    for (int i = 0; i < COUNT(BN, B_VEC); i++) columns[i] = taps[min(n0 + ROW_OF(i, BN, B_VEC, 1), (int)D.K - 1)];
    E c[RM][RN];
    E4 a_next[COUNT(BM, A_VEC)], b_next[COUNT(BN, B_VEC)];
    CLEAR()
#define GATHER_BOTH() \
    _Pragma("unroll") for (int i = 0; i < COUNT(BM, A_VEC); i++) { \
        const I from = result(a_at[i % A_SPOTS], &D) + min(m0 + ROW_OF(i, BM, A_VEC, 1), (int)D.M - 1) * (I)D.yc; \
        const bool in = k0 + K_OF(i, BM, A_VEC, 1) < k1; \
        if (A_VEC == 4) a_next[i] = in ? LOAD4(G, from) : (E4)(0); \
        else a_next[i].s0 = in ? LOAD(G, from) : (E)0; \
    } \
    _Pragma("unroll") for (int i = 0; i < COUNT(BN, B_VEC); i++) { \
        const bool in = k0 + K_OF(i, BN, B_VEC, 1) < k1; \
        const Pixel at = pixel(X, b_at[i % B_SPOTS], &D); \
        TAP(b_next[i], at, columns[i], in) \
    } \
    _Pragma("unroll") for (int i = 0; i < A_SPOTS; i++) a_at[i] = further(a_at[i], step, &D); \
    _Pragma("unroll") for (int i = 0; i < B_SPOTS; i++) b_at[i] = further(b_at[i], step, &D);
    int k0 = q0, turn = 0;
    GATHER_BOTH()
    PUT(As, a_next, BM, A_VEC, 1)
    PUT(Bs, b_next, BN, B_VEC, 1)
    barrier(CLK_LOCAL_MEM_FENCE);
    while (k0 < k1) {
        k0 += BK;
        const bool more = k0 < k1;
        if (more) { GATHER_BOTH() }
        __local const E* as = As + turn * BK * PITCH(BM);
        __local const E* bs = Bs + turn * BK * PITCH(BN);
        MULTIPLY(as, bs, 1, 1)
        turn ^= 1;
        if (more) {
            PUT(As + turn * BK * PITCH(BM), a_next, BM, A_VEC, 1)
            PUT(Bs + turn * BK * PITCH(BN), b_next, BN, B_VEC, 1)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j += PN) {
            const int m = m0 + ROW(i), n = n0 + COLUMN(j);
            __global E* to = part + (long)m * D.K + n;
            if (m >= D.M) continue;
#if PART_VEC == 4 && PN == 4
            if (n < D.K) *(__global E4*)to = (E4)(c[i][j], c[i][j + 1], c[i][j + 2], c[i][j + 3]);
#else
#pragma unroll
            for (int e = 0; e < PN; e++)
                if (n + e < D.K) to[e] = c[i][j + e];
#endif
        }
}
#endif
