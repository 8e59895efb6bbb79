// conv_cpu.cl: 2-D convolution on CPU devices as matrix products over packed panels. Follows panel_cpu.cl
// and lanes_cpu.cl.
//
//   forward    Y (M, Q) = W (M, K) X (K, Q)     M output channels of a group, Q = N * Ho * Wo output pixels in one row,
//   weights    dW (K, M) = X (K, Q) G (Q, M)    K = C * KH * KW taps.
//
// The input gradient is the forward kernel over G with transposed filters, one launch per residue of the pixel modulo
// stride.
// Launch: local = (1, 1, 1); see each kernel.

// Whether a vector of pixels, `count` of which exist, lies at `at` as it is; rows of a strided y never do.
static inline int together(const long* at, int count, int rows_are_joined) {
    return rows_are_joined && count >= VW && at[VW - 1] == at[0] + VW - 1;
}

// u[NR] += the pixels of y at `at`, and those pixels = u.
static inline void add_pixels(E* u, __global const S* y, const long* at, int count, int rows_are_joined) {
    for (int h = 0; h < count; h += VW) {
        if (together(at + h, count - h, rows_are_joined)) PRIV(u + h) += GET(y + at[h]);
        else for (int j = h; j < min(h + VW, count); j++) u[j] += LOAD(y, at[j]);
    }
}

static inline void put_pixels(__global S* y, const E* u, const long* at, int count, int rows_are_joined) {
    for (int h = 0; h < count; h += VW) {
        if (together(at + h, count - h, rows_are_joined)) SET(y + at[h], PRIV(u + h));
        else for (int j = h; j < min(h + VW, count); j++) STORE(y, at[j], u[j]);
    }
}

// Forward. Launch: global = (ceil(M / mc), ceil(Q / nc), groups). Y has any strides; weights are (groups, M, K).
// Blocks of X go to Bp, blocks of the weights to Ap; with narrow storage and K > kstep sums wait in
// `part` (groups, M, Q).
__kernel void conv(__global S* restrict Y, __global E* restrict part, __global const S* restrict X,
                   __global const S* restrict Wt, __global const S* restrict bias, long oY, long oX, long oWt,
                   long obias, const Dims D) {
    __local E Ap[MC * LDA], Bp[NP * KC * NR];
    int M = D.M, K = D.K, g = get_global_id(2), m0 = get_global_id(0) * D.mc, m1 = min(m0 + (int)D.mc, M);
    long q0 = get_global_id(1) * D.nc, q1 = min(q0 + D.nc, D.Q);
    int Wo = D.Wo, P = D.Ho * Wo;
    int rows_are_joined = D.yw == 1 && D.yh == D.Wo, ends = D.has_bias || D.act;
    Y += oY + g * M * D.yc;
    X += oX + g * D.C * D.xc;
    Wt += oWt + (long)g * M * K;
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
            long n = qb / P;
            int p = qb - n * P, row = p / Wo, column = p - row * Wo;
            for (int j = 0; j < qe - qb; j++) {
                off[j] = n * D.yn + row * D.yh + column * D.yw;
                if (++column == Wo) { column = 0; if (++row == D.Ho) { row = 0; n++; } }
            }
            for (int m = m0, step; m < m1; m += step) {
                step = tile_rows(m1 - m);
                for (long q = qb; q < qe; q += NR) {
                    E t[MR * NR];
                    const long* at = off + (q - qb);
                    int rows = min(step, m1 - m), cols = min((long)NR, q1 - q);
                    int joined = rows_are_joined && cols == NR && at[NR - 1] == at[0] + NR - 1;
                    __global S* y = Y + m * D.yc;
#ifdef NARROW
                    __global E* w = part + ((long)g * M + m) * D.Q + q;
                    long ld = D.Q;
                    int whole = rows == step && cols == NR && !last;
#else
                    __global E* w = y + at[0];
                    long ld = D.yc;
                    int whole = rows == step && joined;
#endif
                    whole = whole && !(last && ends);
                    micro(step, t, Ap + (m - m0) * LDA, LDA, Bp + (q - qb) * KC, NR, kc, (E)1, whole ? w : 0, ld,
                          kb > 0);
                    if (whole) continue;
                    for (int i = 0; i < rows; i++, w += ld, y += D.yc) {
                        E* u = t + i * NR;
#ifdef NARROW
                        if (kb > 0) add_part(u, w, cols);
                        if (!last) { put_part(w, u, cols); continue; }
#else
                        if (kb > 0) add_pixels(u, y, at, cols, rows_are_joined);
#endif
                        if (last && ends) {
                            E b = D.has_bias ? (E)LOAD(bias, obias + g * M + m + i) : (E)0;
                            PRIV(u) = activate(PRIV(u) + b, D.act);
                            PRIV(u + VW) = activate(PRIV(u + VW) + b, D.act);
                        }
                        put_pixels(y, u, at, cols, rows_are_joined);
                    }
                }
            }
        }
    }
}

// Weight gradient, summed over the pixels of one split. Launch: global = (ceil(K / mc), splits, groups).
// Blocks of X go to Ap, blocks of G (N, groups * M, Ho, Wo; contiguous) to Bp; nc = pixels of a split.
// part (splits, groups, K, M) holds sums over the blocks of a split; conv_weights_sum adds the splits.
__kernel void conv_weights(__global E* restrict part, __global const S* restrict G, __global const S* restrict X,
                           long oG, long oX, const Dims D) {
    __local E Ap[MC * LDA], Bp[NP * KC * NR];
    int M = D.M, K = D.K, g = get_global_id(2), k0 = get_global_id(0) * D.mc, k1 = min(k0 + (int)D.mc, K);
    long q0 = get_global_id(1) * D.nc, q1 = min(q0 + D.nc, D.Q), P = D.Ho * D.Wo;
    part += ((long)get_global_id(1) * get_global_size(2) + g) * K * M;
    G += oG + g * M * D.yc;
    X += oX + g * D.C * D.xc;
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
                    micro(step, t, Ap + (k - k0) * LDA, LDA, Bp + (m - mb) * KC, NR, depth, (E)1, whole ? w : 0, M,
                          qb > q0);
                    for (int i = 0; i < rows && !whole; i++, w += M)
                        for (int j = 0; j < cols; j++) w[j] = qb > q0 ? w[j] + t[i * NR + j] : t[i * NR + j];
                }
            }
        }
    }
}

// dW (groups, M, K) = sum over splits of part (splits, groups, K, M). Launch: global = (ceil(M / 8), groups).
__kernel void conv_weights_sum(__global S* dW, __global const E* part, long odW, long M, long K, long splits) {
    long m = 8 * get_global_id(0), g = get_global_id(1), all = get_global_size(1) * M * K, k = 0;
    int rows = min(8L, M - m);
    dW += odW + (g * M + m) * K;
    part += g * K * M + m;
#if VW >= 8
    for (; rows == 8 && k + 8 <= K; k += 8) {
        V8 sums[8];
        for (int i = 0; i < 8; i++) {
            __global const E* p = part + (k + i) * M;
            sums[i] = *(__global const U8*)p;
            for (long s = 1; s < splits; s++) sums[i] += *(__global const U8*)(p + s * all);
        }
#define SUMMED(i) sums[i]
#define TO_ROW(i, v) SET8(dW + i * K + k, v)
        TRANSPOSE8(SUMMED, TO_ROW)
    }
#endif
    for (; k < K; k++)
        for (int i = 0; i < rows; i++) {
            E sum = 0;
            for (long s = 0; s < splits; s++) sum += part[s * all + k * M + i];
            STORE(dW, i * K + k, sum);
        }
}
