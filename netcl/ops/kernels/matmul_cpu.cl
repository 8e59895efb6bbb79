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
// With half storage and K > KC partial sums go through the float workspace `part` instead of C.

// Sizes, strides in elements, batch strides, and the size of a macro tile. z = z0 * inner + z1 is the batch index.
typedef struct {
    long M, N, K, sam, sak, sbk, sbn, scm, mc, nc, inner, a0, a1, b0, b1, c0, c1, kstep, accumulate, act, has_bias;
} Dims;

__kernel void gemm(__global S* restrict C, __global E* restrict part, __global const S* restrict A,
                   __global const S* restrict B, __global const S* restrict bias, long oc, long oa, long ob, long obias,
                   float alpha, const Dims D) {
    __local E Ap[MC * LDA], Bp[NP * KC * NR];
    int m0 = get_global_id(0) * D.mc, n0 = get_global_id(1) * D.nc, z = get_global_id(2), M = D.M, N = D.N, K = D.K;
    int m1 = min(m0 + (int)D.mc, M), n1 = min(n0 + (int)D.nc, N);
    long z0 = z / D.inner, z1 = z % D.inner;
    A += oa + z0 * D.a0 + z1 * D.a1;
    B += ob + z0 * D.b0 + z1 * D.b1;
    C += oc + z0 * D.c0 + z1 * D.c1;
    for (int kb = 0; kb == 0 || kb < K; kb += D.kstep) {
        int kc = min((int)D.kstep, K - kb), last = kb + D.kstep >= K;
        copy_block(Ap, LDA, A + m0 * D.sam + kb * D.sak, m1 - m0, kc, D.sam, D.sak);
        for (int nb = n0; nb < n1; nb += NP * NR) {
            int ne = min(nb + NP * NR, n1);
            copy_panels(Bp, B + kb * D.sbk + nb * D.sbn, kc, ne - nb, D.sbk, D.sbn);
            for (int m = m0, step; m < m1; m += step) {
                step = tile_rows(m1 - m);
                for (int n = nb; n < ne; n += NR) {
                    E t[MR * NR];
                    int rows = min(step, m1 - m), cols = min(NR, n1 - n), whole = rows == step && cols == NR;
                    __global S* c = C + m * D.scm + n;
#ifdef HALF
                    __global E* w = part + ((long)z * M + m) * N + n;
                    long ld = N;
                    whole = whole && !last && (kb > 0 || !D.accumulate);
#else
                    __global E* w = c;
                    long ld = D.scm;
#endif
#ifdef EPILOGUE
                    whole = whole && !last;
#endif
                    micro(step, t, Ap + (m - m0) * LDA, Bp + (n - nb) * KC, kc, (E)alpha, whole ? w : 0, ld,
                          kb > 0 || D.accumulate);
                    if (whole) continue;
                    for (int i = 0; i < rows; i++, w += ld, c += D.scm) {
                        E* u = t + i * NR;
                        if (kb > 0) add_part(u, w, cols);
                        else if (D.accumulate) add_row(u, c, cols);
                        if (!last) { put_part(w, u, cols); continue; }
#ifdef EPILOGUE
                        if (D.has_bias) add_row(u, bias + obias + n, cols);
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
