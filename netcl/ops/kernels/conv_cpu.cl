// conv_cpu.cl: 2-D convolution on CPU devices as matrix products over packed panels. Follows panel_cpu.cl.
//
//   forward    Y (M, Q) = W (M, K) X (K, Q)     M output channels of a group, Q = N * Ho * Wo output pixels in one row,
//   weights    dW (K, M) = X (K, Q) G (Q, M)    K = C * KH * KW taps; X(k, q) is the input pixel that tap k of pixel q
//                                               reads, or 0 in the padding. X is never stored, only packed in blocks.
//
// The input gradient is the forward kernel over G with turned weights, one launch per residue of the pixel modulo stride.
// Launch: local = (1, 1, 1); see each kernel.
// x has unit stride along its last axis; `span` is the number of elements between the first and the end of x.

#define TAPS 16     // widest filter row the vector path takes
#define JOIN(a, b) a##b
#define AS(type, v) JOIN(as_, type)(v)
#define MASKED(v, keep) AS(VECTOR, AS(MASKS, v) & (keep))

typedef struct {
    long M, Q, K, C, H, W, KH, KW, sy, sx, py, px, dy, dx, Ho, Wo, xn, xc, xh, span;
    long yn, yc, yh, yw, mc, nc, kstep, act, has_bias;
} Dims;

// Output pixels q .. q + VW - 1 (those before `end`): part 0 of them lies in one output row, part 1 in the next.
typedef struct {
    long q, end;
    long from[2];               // element of x that lane 0 reads at tap (0, 0), as if the part covered every lane
    int row[2];                 // input row of tap row 0; H where the part is empty
    int scalar;                 // lanes lie in more than two rows, or the filter is beyond the vector path
    MASKS keep[2][TAPS];        // all ones where a lane of the part reads inside its row at tap column kw
} Lanes;

static inline void find_lanes(Lanes* L, long q, long end, const Dims* D) {
#if VW == 8
    const MASKS lane = (MASKS)(0, 1, 2, 3, 4, 5, 6, 7);
#else
    const MASKS lane = (MASKS)(0, 1, 2, 3);
#endif
    int Wo = D->Wo, P = D->Ho * Wo, sx = D->sx, px = D->px;
    long n = q / P;
    int p = q - n * P, y = p / Wo, x = p - y * Wo, first = min(VW, Wo - x), count = min((long)VW, end - q);
    L->q = q;
    L->end = end;
    L->scalar = D->KW > TAPS || sx > 2 || count > first + Wo;
    L->row[0] = y * D->sy - D->py;
    L->from[0] = n * D->xn + L->row[0] * D->xh + x * sx - px;
    if (++y == D->Ho) { y = 0; n++; }
    L->row[1] = y * D->sy - D->py;
    L->from[1] = n * D->xn + L->row[1] * D->xh - px - first * sx;
    if (count <= first) L->row[1] = D->H;
    if (L->scalar) return;
    MASKS in0 = lane < (MASK)min(first, count), in1 = (lane >= (MASK)first) & (lane < (MASK)count);
    MASKS x0 = lane * (MASK)sx + (MASK)(x * sx - px), x1 = (lane - (MASK)first) * (MASK)sx - (MASK)px;
    for (int t = 0; t < D->KW; t++, x0 += (MASK)D->dx, x1 += (MASK)D->dx) {
        L->keep[0][t] = in0 & (x0 >= (MASK)0) & (x0 < (MASK)D->W);
        L->keep[1][t] = in1 & (x1 >= (MASK)0) & (x1 < (MASK)D->W);
    }
}

// Rows k0 .. k0 + kc - 1 of X at the lanes to d, with `ld` elements per row: element by element.
static void pack_slowly(__local E* d, int ld, __global const S* X, const Lanes* L, int k0, int kc, const Dims* D) {
    int KW = D->KW, KH = D->KH, H = D->H, P = D->Ho * D->Wo, iy[VW], ix[VW];
    long from[VW];
    for (int l = 0; l < VW; l++) {
        long n = (L->q + l) / P;
        int p = (L->q + l) - n * P;
        iy[l] = L->q + l < L->end ? p / (int)D->Wo * D->sy - D->py : H;
        ix[l] = p % (int)D->Wo * D->sx - D->px;
        from[l] = n * D->xn + iy[l] * D->xh + ix[l];
    }
    int c = k0 / (KH * KW), u = k0 / KW % KH, v = k0 % KW;
    for (int k = 0; k < kc; k++, d += ld) {
        long at = c * D->xc + u * D->dy * D->xh + v * D->dx;
        for (int l = 0; l < VW; l++) {
            int inside = (uint)(iy[l] + u * (int)D->dy) < H && (uint)(ix[l] + v * (int)D->dx) < D->W;
            d[l] = inside ? (E)LOAD(X, from[l] + at) : (E)0;
        }
        if (++v == KW) { v = 0; if (++u == KH) { u = 0; c++; } }
    }
}

// VW elements from p on, or every other one.
#define EVERY1(p) GET(p)
#define EVERY2(p) ((T)(GET(p).even, GET((p) + VW).even))
// For every channel, the taps of one filter row.
#define CHANNELS(VALUE)                                                                           \
    for (int c = 0; c < channels; c++, e += taps * ld, p0 += D->xc, p1 += D->xc)                  \
        for (int t = 0; t < KW; t++) LOC(e + t * ld) = VALUE;
#define PACK(EVERY)                                                                               \
    if (ok0 && ok1) {                                                                             \
        CHANNELS(MASKED(EVERY(p0 + t * dx), L->keep[0][t]) + MASKED(EVERY(p1 + t * dx), L->keep[1][t])) \
    } else if (ok0) { CHANNELS(MASKED(EVERY(p0 + t * dx), L->keep[0][t])) }                       \
    else if (ok1) { CHANNELS(MASKED(EVERY(p1 + t * dx), L->keep[1][t])) }                         \
    else { CHANNELS((T)(0)) }

// The same by vectors, where the block is made of whole filters and no vector reaches past the ends of x.
static void pack_lanes(__local E* d, int ld, __global const S* X, const Lanes* L, int k0, int kc, const Dims* D) {
    int KW = D->KW, KH = D->KH, H = D->H, dx = D->dx, taps = KH * KW, channels = kc / taps;
    int slow = L->scalar || k0 % taps || kc % taps;
    for (int u = 0; u < KH && !slow; u++) {
        int row = u * (int)D->dy, ok0 = (uint)(L->row[0] + row) < H, ok1 = (uint)(L->row[1] + row) < H;
        long at = k0 / taps * D->xc + row * D->xh, f0 = L->from[0] + at, f1 = L->from[1] + at;
        long limit = D->span - (channels - 1) * D->xc - (KW - 1) * dx - VW * D->sx;
        slow = (ok0 && (f0 < 0 || f0 > limit)) || (ok1 && (f1 < 0 || f1 > limit));
        __global const S* p0 = X + f0;
        __global const S* p1 = X + f1;
        __local E* e = d + u * KW * ld;
        if (slow) break;
        if (D->sx == 1) { PACK(EVERY1) } else { PACK(EVERY2) }
    }
    if (slow) pack_slowly(d, ld, X, L, k0, kc, D);
}

// Forward. Launch: global = (ceil(M / mc), ceil(Q / nc), groups). Y has any strides; weights are (groups, M, K).
// Blocks of X go to Bp, blocks of the weights to Ap; with half storage and K > kstep sums wait in `part` (groups, M, Q).
__kernel void conv(__global S* restrict Y, __global E* restrict part, __global const S* restrict X,
                   __global const S* restrict Wt, __global const S* restrict bias, long oy, long ox, long ow, long ob,
                   const Dims D) {
    __local E Ap[MC * LDA], Bp[NP * KC * NR];
    int M = D.M, K = D.K, g = get_global_id(2), m0 = get_global_id(0) * D.mc, m1 = min(m0 + (int)D.mc, M);
    long q0 = get_global_id(1) * D.nc, q1 = min(q0 + D.nc, D.Q), P = D.Ho * D.Wo;
    int rows_are_joined = D.yw == 1 && D.yh == D.Wo;
    Y += oy + g * M * D.yc;
    X += ox + g * D.C * D.xc;
    Wt += ow + (long)g * M * K;
    for (int kb = 0; kb == 0 || kb < K; kb += D.kstep) {
        int kc = min((int)D.kstep, K - kb), last = kb + D.kstep >= K;
        copy_block(Ap, LDA, Wt + (long)m0 * K + kb, m1 - m0, kc, K, 1);
        for (long qb = q0; qb < q1; qb += NP * NR) {
            long qe = min(qb + NP * NR, q1);
            for (long q = qb; q < qe; q += VW) {
                Lanes L;
                find_lanes(&L, q, q1, &D);
                pack_lanes(Bp + (q - qb) / NR * NR * KC + (q - qb) % NR, NR, X, &L, kb, kc, &D);
            }
            long off[NP * NR];  // of each column in Y
            for (int j = 0; j < qe - qb; j++) {
                long n = (qb + j) / P;
                int p = (qb + j) - n * P;
                off[j] = n * D.yn + p / (int)D.Wo * D.yh + p % (int)D.Wo * D.yw;
            }
            for (int m = m0, step; m < m1; m += step) {
                step = tile_rows(m1 - m);
                for (long q = qb; q < qe; q += NR) {
                    E t[MR * NR];
                    const long* at = off + (q - qb);
                    int rows = min(step, m1 - m), cols = min((long)NR, q1 - q);
                    int joined = rows_are_joined && cols == NR && at[NR - 1] == at[0] + NR - 1;
                    __global S* y = Y + m * D.yc;
#ifdef HALF
                    __global E* w = part + ((long)g * M + m) * D.Q + q;
                    long ld = D.Q;
                    int whole = rows == step && cols == NR && !last;
#else
                    __global E* w = y + at[0];
                    long ld = D.yc;
                    int whole = rows == step && joined;
#endif
#ifdef EPILOGUE
                    whole = whole && !last;
#endif
                    micro(step, t, Ap + (m - m0) * LDA, Bp + (q - qb) * KC, kc, (E)1, whole ? w : 0, ld, kb > 0);
                    if (whole) continue;
                    for (int i = 0; i < rows; i++, w += ld, y += D.yc) {
                        E* u = t + i * NR;
#ifdef HALF
                        if (kb > 0) add_part(u, w, cols);
                        if (!last) { put_part(w, u, cols); continue; }
#else
                        if (kb > 0 && joined) add_row(u, w, NR);
                        else if (kb > 0) for (int j = 0; j < cols; j++) u[j] += y[at[j]];
#endif
#ifdef EPILOGUE
                        if (last) {
                            E b = D.has_bias ? (E)LOAD(bias, ob + g * M + m + i) : (E)0;
                            PRIV(u) = activate(PRIV(u) + b, D.act);
                            PRIV(u + VW) = activate(PRIV(u + VW) + b, D.act);
                        }
#endif
                        if (joined) put_row(y + at[0], u, NR);
                        else for (int j = 0; j < cols; j++) STORE(y, at[j], u[j]);
                    }
                }
            }
        }
    }
}

// Weight gradient, summed over the pixels of one split. Launch: global = (ceil(K / mc), splits, groups).
// Blocks of X go to Ap, blocks of G (N, groups * M, Ho, Wo; contiguous) to Bp; nc = pixels of a split.
// part (splits, groups, K, M) holds sums over the blocks of a split; conv_weights_sum adds the splits.
__kernel void conv_weights(__global E* restrict part, __global const S* restrict G, __global const S* restrict X, long og,
                           long ox, const Dims D) {
    __local E Ap[MC * LDA], Bp[NP * KC * NR];
    int M = D.M, K = D.K, g = get_global_id(2), k0 = get_global_id(0) * D.mc, k1 = min(k0 + (int)D.mc, K);
    long q0 = get_global_id(1) * D.nc, q1 = min(q0 + D.nc, D.Q), P = D.Ho * D.Wo;
    part += ((long)get_global_id(1) * get_global_size(2) + g) * K * M;
    G += og + g * M * D.yc;
    X += ox + g * D.C * D.xc;
    for (long qb = q0; qb < q1; qb += D.kstep) {
        int depth = min(D.kstep, q1 - qb);
        for (int i = 0; i < depth; i += VW) {
            Lanes L;
            find_lanes(&L, qb + i, q1, &D);
            pack_lanes(Ap + i, LDA, X, &L, k0, k1 - k0, &D);
        }
        for (int mb = 0; mb < M; mb += NP * NR) {
            int me = min(mb + NP * NR, M);
            for (int m = mb; m < me; m += NR)
                for (int i = 0; i < depth;) {  // stretches of pixels of one image
                    long n = (qb + i) / P, p = (qb + i) % P;
                    int length = min((long)(depth - i), P - p);
                    copy_block(Bp + (m - mb) * KC + i * NR, NR, G + n * D.yn + m * D.yc + p, length, min(NR, me - m), 1,
                               D.yc);
                    i += length;
                }
            for (int k = k0, step; k < k1; k += step) {
                step = tile_rows(k1 - k);
                for (int m = mb; m < me; m += NR) {
                    E t[MR * NR];
                    int rows = min(step, k1 - k), cols = min(NR, M - m), whole = rows == step && cols == NR;
                    __global E* w = part + (long)k * M + m;
                    micro(step, t, Ap + (k - k0) * LDA, Bp + (m - mb) * KC, depth, (E)1, whole ? w : 0, M, qb > q0);
                    for (int i = 0; i < rows && !whole; i++, w += M)
                        for (int j = 0; j < cols; j++) w[j] = qb > q0 ? w[j] + t[i * NR + j] : t[i * NR + j];
                }
            }
        }
    }
}

// dW (groups, M, K) = sum over splits of part (splits, groups, K, M). Launch: global = (groups * M).
__kernel void conv_weights_sum(__global S* dW, __global const E* part, long od, long M, long K, long splits) {
    long row = get_global_id(0), g = row / M, m = row % M, all = get_global_size(0) * K;
    part += g * K * M + m;
    for (long k = 0; k < K; k++) {
        E sum = 0;
        for (long s = 0; s < splits; s++) sum += part[s * all + k * M];
        STORE(dW, od + row * K + k, sum);
    }
}
