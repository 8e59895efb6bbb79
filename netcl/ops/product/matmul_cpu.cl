// matmul_cpu.cl: C = act(alpha * A B + bias), or C += alpha * A B, for CPU devices. Any strides of A and B.
//
//   A (M, K)         one work-item computes a macro tile of mc rows x nc columns:
//   B (K, N)           for each block of KC along K
//                        copy the mc x KC block of A           -> Ap
//                        for each NP panels of NR columns
//                          copy the KC x (NP * NR) block of B  -> Bp
//                          for each MR rows, for each panel: micro
//
// Transposed operands differ only in how they are copied, so there is one kernel for all layouts and one launch.
// Launch: global = (ceil(M / mc), ceil(N / nc), batch), local = (1, 1, 1). Follows panel_cpu.cl.
// With B_IN_PLACE, B has rows of unit stride and whole panels, and is not copied; with A_IN_PLACE, A has rows of unit
// stride and whole tiles, and is not copied.
// With narrow storage and K > KC partial sums go through the float workspace `part` instead of C.
// Backward of a layer: with `has_mask` A counts only where `mask`, laid out like A, is positive (the gradient of relu
// by its output; NaN stays NaN); with `row_sums` the first column of items also writes sums[m] = sum over k of A[m, k].
// With BOTH what goes into `act` is written as well, to `sums`, laid out like C: the gradient needs it.

// Sizes, strides in elements, batch strides, and the size of a macro tile. z = z0 * inner + z1 is the batch index.
typedef struct {
    long M, N, K, a_m, a_k, b_k, b_n, c_m, mc, nc, inner, a0, a1, b0, b1, c0, c1, kstep, accumulate, act, has_bias,
        has_mask, row_sums;
} Dims;

// Zero the elements of a copied block whose mask is not positive.
static inline void mask_block(__local E* d, __global const S* s, int rows, int cols, long sr, long sc) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            E y = LOAD(s, r * sr + c * sc);
            d[r * LDA + c] = y > 0 ? d[r * LDA + c] : y - y;   // Mesa would take 0 * y for 0
        }
}

// sums[r] (+)= sum over the copied columns of row r.
static inline void sum_rows(__global S* sums, __local const E* d, int rows, int cols, int first) {
    for (int r = 0; r < rows; r++, d += LDA) {
        T v = (T)(0);
        int c = 0;
        for (; c + VW <= cols; c += VW) v += *(__local const U*)(d + c);
        E t[VW], sum = first ? 0 : LOAD(sums, r);
        PRIV(t) = v;
        for (int j = 0; j < VW; j++) sum += t[j];
        for (; c < cols; c++) sum += d[c];
        STORE(sums, r, sum);
    }
}

// With B_PACKED, `gemm_pack` has put B into panels before, for all work-items at once: (blocks of K, panels, kstep,
// NR). Launch: global = (ceil(N / (NP * NR)), ceil(K / kstep)), local = (1, 1).
#define WIDE(N) (((N) + NR - 1) / NR * (long)NR)
#ifdef B_PACKED
__kernel void gemm_pack(__global E* restrict P, __global const S* restrict B, long oB, const Dims D) {
    __local E Bp[NP * KC * NR];
    long nb = get_global_id(0) * (NP * NR), kb = get_global_id(1) * D.kstep;
    int ne = min(nb + NP * NR, D.N) - nb, kc = min(D.kstep, D.K - kb);
    copy_panels(Bp, B + oB + kb * D.b_k + nb * D.b_n, kc, ne, D.b_k, D.b_n);
    for (int n = 0; n < ne; n += NR) {
        __local const E* s = Bp + n * KC;
        __global E* d = P + kb * WIDE(D.N) + (nb + n) * D.kstep;
        for (int i = 0; i < kc * NR; i += VW) GLOB(d + i) = LOC(s + i);
    }
}
#endif

__kernel void gemm(__global S* restrict C, __global E* restrict part, __global const S* restrict A,
                   __global const S* restrict B, __global const S* restrict bias, __global const S* restrict mask,
                   __global S* restrict sums, long oC, long oA, long oB, long obias, long omask, float alpha,
                   const Dims D) {
#ifndef A_IN_PLACE
    __local E Ap[MC * LDA];
#endif
#if !defined(B_IN_PLACE) && !defined(B_PACKED)
    __local E Bp[NP * KC * NR];
#endif
    int m0 = get_global_id(0) * D.mc, n0 = get_global_id(1) * D.nc, z = get_global_id(2), M = D.M, N = D.N, K = D.K;
    int m1 = min(m0 + (int)D.mc, M), n1 = min(n0 + (int)D.nc, N);
    long z0 = z / D.inner, z1 = z % D.inner;
    A += oA + z0 * D.a0 + z1 * D.a1;
    B += oB + z0 * D.b0 + z1 * D.b1;
#ifdef BOTH
    __global const S* start = C + oC;
#endif
    C += oC + z0 * D.c0 + z1 * D.c1;
    for (int kb = 0; kb == 0 || kb < K; kb += D.kstep) {
        int kc = min((int)D.kstep, K - kb), last = kb + D.kstep >= K;
#ifdef A_IN_PLACE
        __global const E* block = A + m0 * D.a_m + kb;
        const long lda = D.a_m;
#else
        __local const E* block = Ap;
        const long lda = LDA;
        copy_block(Ap, LDA, A + m0 * D.a_m + kb * D.a_k, m1 - m0, kc, D.a_m, D.a_k);
        if (D.has_mask) mask_block(Ap, mask + omask + m0 * D.a_m + kb * D.a_k, m1 - m0, kc, D.a_m, D.a_k);
        if (D.row_sums && n0 == 0) sum_rows(sums + m0, Ap, m1 - m0, kc, kb == 0);
#endif
        for (int nb = n0; nb < n1; nb += NP * NR) {
            int ne = min(nb + NP * NR, n1);
#if defined(B_PACKED)
            __global const E* panel = B + kb * WIDE(N) + nb * D.kstep;
            const long across = D.kstep, ldb = NR;
#elif defined(B_IN_PLACE)
            __global const E* panel = B + kb * D.b_k + nb;
            const long across = 1, ldb = D.b_k;  // of elements between panels, and between rows
#else
            __local const E* panel = Bp;
            const long across = KC, ldb = NR;
            copy_panels(Bp, B + kb * D.b_k + nb * D.b_n, kc, ne - nb, D.b_k, D.b_n);
#endif
            for (int m = m0, step; m < m1; m += step) {
                step = tile_rows(m1 - m);
                for (int n = nb; n < ne; n += NR) {
                    E t[MR * NR];
                    int rows = min(step, m1 - m), cols = min(NR, n1 - n), whole = rows == step && cols == NR;
                    __global S* c = C + m * D.c_m + n;
#ifdef NARROW
                    __global E* w = part + ((long)z * M + m) * N + n;
                    long ld = N;
                    whole = whole && !last && (kb > 0 || !D.accumulate);
#else
                    __global E* w = c;
                    long ld = D.c_m;
#endif
#ifdef EPILOGUE
                    whole = whole && !last;
#endif
                    micro(step, t, block + (m - m0) * lda, lda, panel + (n - nb) * across, ldb, kc, (E)alpha,
                          whole ? w : 0, ld, kb > 0 || D.accumulate);
                    if (whole) continue;
                    for (int i = 0; i < rows; i++, w += ld, c += D.c_m) {
                        E* u = t + i * NR;
                        if (kb > 0) add_part(u, w, cols);
                        else if (D.accumulate) add_row(u, c, cols);
                        if (!last) { put_part(w, u, cols); continue; }
#ifdef EPILOGUE
                        if (D.has_bias) add_row(u, bias + obias + n, cols);
#ifdef BOTH
                        put_row(sums + (c - start), u, cols);
#endif
                        PRIV(u) = activate(PRIV(u), D.act);
                        PRIV(u + VW) = activate(PRIV(u + VW), D.act);
#endif
                        put_row(c, u, cols);
                    }
                }
            }
        }
    }
}
