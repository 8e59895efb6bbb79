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
#define MASKED(v, keep) AS(VECTOR, AS(MASKS, v) & *(const MASKU*)(keep))
typedef MASKS MASKU __attribute__((aligned(sizeof(E))));

typedef struct {
    long M, Q, K, C, H, W, KH, KW, sy, sx, py, px, dy, dx, Ho, Wo, xn, xc, xh, span;
    long yn, yc, yh, yw, mc, nc, kstep, act, has_bias;
} Dims;

// VW output pixels q .. q + VW - 1: the part of them in one output row, and the part in the next row.
typedef struct {
    long from0, from1;          // element of x that lane 0 reads at tap (0, 0, 0), as if each part covered every lane
    int row0, row1;             // input row of tap row 0, H and above where the part is empty
    int scalar;                 // lanes lie in more than two rows, or the filter is beyond the vector path
    int iy[VW], ix[VW];         // per lane: input row and column of tap (0, 0); iy = H where the lane is past the end
    long from[VW];
    MASK keep[2][TAPS][VW];     // all ones where lane l of part p reads inside the row at tap column kw
} Lanes;

static inline void find_lanes(Lanes* L, long q, long end, const Dims* D) {
    int Wo = D->Wo, W = D->W, KW = D->KW, sx = D->sx;
    long P = D->Ho * D->Wo, n = q / P;
    int p = q - n * P, y = p / Wo, x = p - y * Wo, first = min((long)min(VW, Wo - x), end - q);
    L->scalar = KW > TAPS || sx > 2;
    for (int l = 0, part = 0; l < VW; l++, x++) {
        if (x == Wo) {
            x = 0;
            part++;
            if (++y == D->Ho) { y = 0; n++; }
        }
        int inside = q + l < end;
        L->iy[l] = inside ? y * D->sy - D->py : D->H;
        L->ix[l] = x * sx - D->px;
        L->from[l] = n * D->xn + L->iy[l] * D->xh + L->ix[l];
        if (inside && part > 1) L->scalar = 1;
    }
    L->row0 = L->iy[0];
    L->from0 = L->from[0];
    int second = first < VW && q + first < end;
    L->row1 = second ? L->iy[first < VW ? first : 0] : D->H;
    L->from1 = second ? L->from[first < VW ? first : 0] - first * sx : 0;
    if (L->scalar) return;
    for (int kw = 0; kw < KW; kw++)
        for (int l = 0; l < VW; l++) {
            int x = L->ix[l] + kw * D->dx;
            MASK in = x >= 0 && x < W && L->iy[l] < D->H ? -1 : 0;
            L->keep[0][kw][l] = l < first ? in : 0;
            L->keep[1][kw][l] = l < first ? 0 : in;
        }
}

// VW elements from p on, or every other one.
#define EVERY1(p) GET(p)
#define EVERY2(p) ((T)(GET(p).even, GET((p) + VW).even))
// Taps t < n of one filter row: rows of d from the parts of the lanes that are inside.
#define TAP_ROW(EVERY)                                                                                               \
    for (int t = 0; t < n; t++, d += ld) {                                                                           \
        T v = (T)(0);                                                                                                \
        if (ok0) v = MASKED(EVERY(p0 + t * D->dx), L->keep[0][kw + t]);                                              \
        if (ok1) v += MASKED(EVERY(p1 + t * D->dx), L->keep[1][kw + t]);                                             \
        LOC(d) = v;                                                                                                  \
    }

// Rows k0 .. k0 + kc - 1 of X at the lanes, to d with `ld` elements per row. Channels count from `channel`.
static void pack_lanes(__local E* d, int ld, __global const S* X, const Lanes* L, int channel, int k0, int kc,
                       const Dims* D) {
    int KW = D->KW, KH = D->KH, H = D->H, c = k0 / (KH * KW), kh = k0 / KW % KH, kw = k0 % KW;
    while (kc > 0) {
        int n = min(KW - kw, kc), ok0 = (uint)(L->row0 + kh * (int)D->dy) < H, ok1 = (uint)(L->row1 + kh * (int)D->dy) < H;
        long at = (channel + c) * D->xc + kh * D->dy * D->xh + kw * D->dx, f0 = L->from0 + at, f1 = L->from1 + at;
        long reach = D->span - (n - 1) * D->dx - VW * D->sx;  // vectors may read past a row, but not past x
        if (L->scalar || (ok0 && (f0 < 0 || f0 > reach)) || (ok1 && (f1 < 0 || f1 > reach))) {
            for (int t = 0; t < n; t++, d += ld)
                for (int l = 0; l < VW; l++) {
                    int inside = (uint)(L->iy[l] + kh * (int)D->dy) < H && (uint)(L->ix[l] + (kw + t) * (int)D->dx) < D->W;
                    d[l] = inside ? (E)LOAD(X, L->from[l] + at + t * D->dx) : (E)0;
                }
        } else {
            __global const S* p0 = X + f0;
            __global const S* p1 = X + f1;
            if (D->sx == 1) { TAP_ROW(EVERY1) } else { TAP_ROW(EVERY2) }
        }
        kc -= n;
        kw = 0;
        if (++kh == KH) { kh = 0; c++; }
    }
}

// Forward. Launch: global = (ceil(M / mc), ceil(Q / nc), groups). Y has any strides; weights are (groups, M, K).
// Blocks of X go to Bp, blocks of the weights to Ap; with half storage and K > kstep sums wait in `part` (groups, M, Q).
__kernel void conv(__global S* restrict Y, __global E* restrict part, __global const S* restrict X,
                   __global const S* restrict Wt, __global const S* restrict bias, long oy, long ox, long ow, long ob,
                   const Dims D) {
    __local E Ap[MC * KC], Bp[NP * KC * NR];
    int M = D.M, K = D.K, g = get_global_id(2), m0 = get_global_id(0) * D.mc, m1 = min(m0 + (int)D.mc, M);
    long q0 = get_global_id(1) * D.nc, q1 = min(q0 + D.nc, D.Q), P = D.Ho * D.Wo;
    int rows_are_joined = D.yw == 1 && D.yh == D.Wo;
    Y += oy + g * M * D.yc;
    X += ox;
    Wt += ow + (long)g * M * K;
    for (int kb = 0; kb == 0 || kb < K; kb += D.kstep) {
        int kc = min((int)D.kstep, K - kb), last = kb + D.kstep >= K;
        copy_block(Ap, KC, Wt + (long)m0 * K + kb, m1 - m0, kc, K, 1);
        for (long qb = q0; qb < q1; qb += NP * NR) {
            long qe = min(qb + NP * NR, q1);
            for (long q = qb; q < qe; q += VW) {
                Lanes L;
                find_lanes(&L, q, q1, &D);
                pack_lanes(Bp + (q - qb) / NR * NR * KC + (q - qb) % NR, NR, X, &L, g * D.C, kb, kc, &D);
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
                    micro(step, t, Ap + (m - m0) * KC, Bp + (q - qb) * KC, kc, (E)1, whole ? w : 0, ld, kb > 0);
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
    __local E Ap[MC * KC], Bp[NP * KC * NR];
    int M = D.M, K = D.K, g = get_global_id(2), k0 = get_global_id(0) * D.mc, k1 = min(k0 + (int)D.mc, K);
    long q0 = get_global_id(1) * D.nc, q1 = min(q0 + D.nc, D.Q), P = D.Ho * D.Wo;
    part += ((long)get_global_id(1) * get_global_size(2) + g) * K * M;
    G += og + g * M * D.yc;
    X += ox;
    for (long qb = q0; qb < q1; qb += D.kstep) {
        int depth = min(D.kstep, q1 - qb);
        for (int i = 0; i < depth; i += VW) {
            Lanes L;
            find_lanes(&L, qb + i, q1, &D);
            pack_lanes(Ap + i, KC, X, &L, g * D.C, k0, k1 - k0, &D);
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
                    micro(step, t, Ap + (k - k0) * KC, Bp + (m - mb) * KC, depth, (E)1, whole ? w : 0, M, qb > q0);
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
