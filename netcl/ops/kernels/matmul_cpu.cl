// matmul_cpu.cl: C = act(alpha * A B + bias), or C += alpha * A B, for CPU devices. Any strides of A and B.
//
//   A (M, K)         one work-item computes a macro tile of mc rows x nc columns:
//   B (K, N)           for each block of KC along K
//                        copy the mc x KC block of A           -> Ap
//                        for each NP panels of NR columns
//                          copy the KC x (NP * NR) block of B  -> Bp
//                          for each panel, for each MR rows: micro
//
// Transposed operands differ only in how they are copied, so there is one kernel for all layouts and one launch.
// Launch: global = (ceil(M / mc), ceil(N / nc), batch), local = (1, 1, 1). Follows panel_cpu.cl.
// With half storage and K > KC partial sums go through the float workspace `part` instead of C.

// Sizes, strides in elements, batch strides, and the size of a macro tile. z = z0 * inner + z1 is the batch index.
typedef struct {
    long M, N, K, sam, sak, sbk, sbn, scm, mc, nc, inner, a0, a1, b0, b1, c0, c1, accumulate, act, has_bias;
} Dims;

__kernel void gemm(__global S* restrict C, __global E* restrict part, __global const S* restrict A,
                   __global const S* restrict B, __global const S* restrict bias, long oc, long oa, long ob, long obias,
                   float alpha, const Dims D) {
    __local E Ap[MC * KC], Bp[NP * KC * NR];
    int m0 = get_global_id(0) * D.mc, n0 = get_global_id(1) * D.nc, z = get_global_id(2), M = D.M, N = D.N, K = D.K;
    int m1 = min(m0 + (int)D.mc, M), n1 = min(n0 + (int)D.nc, N);
    long z0 = z / D.inner, z1 = z % D.inner;
    A += oa + z0 * D.a0 + z1 * D.a1;
    B += ob + z0 * D.b0 + z1 * D.b1;
    C += oc + z0 * D.c0 + z1 * D.c1;
    for (int kb = 0; kb == 0 || kb < K; kb += KC) {
        int kc = min(KC, K - kb), last = kb + KC >= K;
        copy_block(Ap, KC, A + m0 * D.sam + kb * D.sak, m1 - m0, kc, D.sam, D.sak);
        for (int nb = n0; nb < n1; nb += NP * NR) {
            int ne = min(nb + NP * NR, n1);
            for (int n = nb; n < ne; n += NR)
                copy_block(Bp + (n - nb) * KC, NR, B + kb * D.sbk + n * D.sbn, kc, min(NR, ne - n), D.sbk, D.sbn);
            for (int n = nb; n < ne; n += NR)
                for (int m = m0; m < m1; m += MR) {
                    E t[MR * NR];
                    micro(t, Ap + (m - m0) * KC, Bp + (n - nb) * KC, kc, (E)alpha);
                    int rows = min(MR, m1 - m), cols = min(NR, n1 - n);
                    for (int i = 0; i < rows; i++) {
                        E* u = t + i * NR;
                        __global S* c = C + (m + i) * D.scm + n;
#ifdef HALF
                        __global E* w = part + ((long)z * M + m + i) * N + n;
#else
                        __global E* w = c;
#endif
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
