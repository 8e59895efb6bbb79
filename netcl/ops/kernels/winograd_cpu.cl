// winograd_cpu.cl: 3x3 convolution of stride 1 on CPU devices with 16 instead of 36 products per 2x2 outputs:
// F(2x2, 3x3). Follows panel_cpu.cl and lanes_cpu.cl.
//
//   F = G w G^T       (16, M, C)  filters, by winograd_filters, in panels of as many rows as `tile_rows` says
//   V = B^T d B       (16, C, NR) 4x4 patches of the input at NR tiles, kept in local memory
//   Y = A^T (F V) A   (2x2 outputs per tile), transformed while the 16 products of a panel are in the first-level cache
//
// The patches are packed as if by a 4x4 filter of stride 2: in Dims, Ho x Wo counts tiles and KH = KW = 4, while mc x kstep
// is the size of y and nc the tiles per work-item. PATCH channels are packed at once.
// Rounding grows by a factor of two or so; an infinity in a patch makes its whole 2x2 outputs infinite or NaN.
// Source: Lavin and Gray 2015, arXiv:1509.09308.

#undef AT
#undef NEXT
#define AT(i) ap[i]
#define NEXT ap += STRIDE;
#define PRODUCTS(name, ROWS)                                                                  \
    static inline void name(E* t, __global const E* ap, __local const E* bp, int kc) {        \
        const E alpha = 1;                                                                    \
        const long ldb = NR;                                                                  \
        SUMS(ROWS)                                                                            \
        ROWS(KEEP)                                                                            \
    }
#define STRIDE 4
PRODUCTS(products4, ROWS4)
#undef STRIDE
#if MR == 12
#define STRIDE 8
PRODUCTS(products8, ROWS8)
#undef STRIDE
#define STRIDE 12
PRODUCTS(products12, ROWS12)
#else
#define STRIDE 6
PRODUCTS(products6, ROWS6)
#endif

static inline void products(int rows, E* t, __global const E* ap, __local const E* bp, int kc) {
    if (rows == 4) products4(t, ap, bp, kc);
#if MR == 12
    else if (rows == 8) products8(t, ap, bp, kc);
    else products12(t, ap, bp, kc);
#else
    else products6(t, ap, bp, kc);
#endif
}

// Two neighbours from u to p.
typedef JOIN(E, 2) PAIR __attribute__((aligned(sizeof(E))));
#ifdef NARROW
#define SET2(p, u) JOIN(JOIN(STORE_, NARROW), 2)(*(const PAIR*)(u), p)
#else
#define SET2(p, u) (*(__global PAIR*)(p) = *(const PAIR*)(u))
#endif

// a.s0, b.s0, a.s1, b.s1, ... of the first and of the last halves of a and b.
static inline T zip_low(T a, T b) {
#if VW == 16
    return (T)(a.s0, b.s0, a.s1, b.s1, a.s2, b.s2, a.s3, b.s3, a.s4, b.s4, a.s5, b.s5, a.s6, b.s6, a.s7, b.s7);
#else
    return (T)(a.s0, b.s0, a.s1, b.s1, a.s2, b.s2, a.s3, b.s3);
#endif
}
static inline T zip_high(T a, T b) {
#if VW == 16
    return (T)(a.s8, b.s8, a.s9, b.s9, a.sa, b.sa, a.sb, b.sb, a.sc, b.sc, a.sd, b.sd, a.se, b.se, a.sf, b.sf);
#else
    return (T)(a.s4, b.s4, a.s5, b.s5, a.s6, b.s6, a.s7, b.s7);
#endif
}

// Launch: global = (padded rows, groups); F is (groups, 16, padded rows * C).
__kernel void winograd_filters(__global E* F, __global const S* Wt, long ow, int M, int C) {
    int row = get_global_id(0), padded = get_global_size(0), g = get_global_id(1), start = 0;
    while (start + tile_rows(M - start) <= row) start += tile_rows(M - start);
    int step = tile_rows(M - start);
    long all = (long)padded * C;
    F += g * 16 * all + (long)start * C + (row - start);
    Wt += ow + ((long)g * M + row) * C * 9;
    for (int c = 0; c < C; c++, F += step) {
        E w[9], h[4][3];
        for (int t = 0; t < 9; t++) w[t] = row < M ? LOAD(Wt, c * 9 + t) : (E)0;
        for (int x = 0; x < 3; x++) {
            E sum = (w[x] + w[6 + x]) * (E)0.5, mid = w[3 + x] * (E)0.5;
            h[0][x] = w[x];
            h[1][x] = sum + mid;
            h[2][x] = sum - mid;
            h[3][x] = w[6 + x];
        }
        for (int y = 0; y < 4; y++) {
            E sum = (h[y][0] + h[y][2]) * (E)0.5, mid = h[y][1] * (E)0.5;
            F[(y * 4) * all] = h[y][0];
            F[(y * 4 + 1) * all] = sum + mid;
            F[(y * 4 + 2) * all] = sum - mid;
            F[(y * 4 + 3) * all] = h[y][2];
        }
    }
}

// 16 vectors at p (ld apart) to q (step apart): B^T d B.
static inline void transform_patch(__local E* q, int step, __local const E* p) {
    T r[4][4];
    for (int x = 0; x < 4; x++) {
        T d0 = LOC(p + x * NR), d1 = LOC(p + (4 + x) * NR), d2 = LOC(p + (8 + x) * NR), d3 = LOC(p + (12 + x) * NR);
        r[0][x] = d0 - d2;
        r[1][x] = d1 + d2;
        r[2][x] = d2 - d1;
        r[3][x] = d1 - d3;
    }
    for (int y = 0; y < 4; y++, q += 4 * step) {
        LOC(q) = r[y][0] - r[y][2];
        LOC(q + step) = r[y][1] + r[y][2];
        LOC(q + 2 * step) = r[y][2] - r[y][1];
        LOC(q + 3 * step) = r[y][1] - r[y][3];
    }
}

// Two rows of outputs, even and odd columns, of VW tiles: A^T m A with the 16 sums at t, MR * NR apart.
static inline void transform_sums(T* out, const E* t) {
    T r[2][4];
    for (int x = 0; x < 4; x++) {
        T m0 = PRIV(t + x * MR * NR), m1 = PRIV(t + (4 + x) * MR * NR), m2 = PRIV(t + (8 + x) * MR * NR);
        r[0][x] = m0 + m1 + m2;
        r[1][x] = m1 - m2 - PRIV(t + (12 + x) * MR * NR);
    }
    for (int y = 0; y < 2; y++) {
        out[2 * y] = r[y][0] + r[y][1] + r[y][2];
        out[2 * y + 1] = r[y][1] - r[y][2] - r[y][3];
    }
}

// Launch: global = (ceil(Q / nc), groups), local = (1, 1).
__kernel void winograd(__global S* restrict Y, __global const S* restrict X, __global const E* restrict F,
                       __global const S* restrict bias, long oy, long ox, long ob, int padded, const Dims D) {
    __local E V[VMAX], patches[PATCH * 16 * NR];
    int M = D.M, C = D.C, g = get_global_id(1), step_v = (C + 1) * NR, high = D.mc, wide = D.kstep;
    long q0 = get_global_id(0) * D.nc, q1 = min(q0 + D.nc, D.Q), all = (long)padded * C;
    Y += oy + g * M * D.yc;
    X += ox + g * C * D.xc;
    F += g * 16 * all;
    for (long q = q0; q < q1; q += NR) {
        Lanes L0, L1;
        find_lanes(&L0, q, q1, &D);
        find_lanes(&L1, q + VW, q1, &D);
        for (int c = 0; c < C; c += PATCH) {
            int n = min(PATCH, C - c);
            pack_lanes(patches, NR, X, &L0, c * 16, n * 16, &D);
            pack_lanes(patches + VW, NR, X, &L1, c * 16, n * 16, &D);
            for (int i = 0; i < n; i++) {
                transform_patch(V + (c + i) * NR, step_v, patches + i * 16 * NR);
                transform_patch(V + (c + i) * NR + VW, step_v, patches + i * 16 * NR + VW);
            }
        }
        long off[NR];
        int ty[NR], tx[NR], count = min((long)NR, q1 - q);
        for (int j = 0; j < count; j++) {
            long n = (q + j) / (D.Ho * D.Wo);
            int p = (q + j) - n * (D.Ho * D.Wo);
            ty[j] = p / (int)D.Wo * 2;
            tx[j] = p % (int)D.Wo * 2;
            off[j] = n * D.yn + ty[j] * D.yh + tx[j] * D.yw;
        }
        for (int m = 0, step; m < M; m += step) {
            E t[16 * MR * NR];
            step = tile_rows(M - m);
            for (int i = 0; i < 16; i++)
                products(step, t + i * MR * NR, F + i * all + (long)m * C, V + i * step_v, C);
            for (int i = 0; i < min(step, M - m); i++)
                for (int j = 0; j < count; j += VW) {
                    T out[4];
                    transform_sums(out, t + i * NR + j);
#ifdef EPILOGUE
                    E b = D.has_bias ? (E)LOAD(bias, ob + g * M + m + i) : (E)0;
                    for (int k = 0; k < 4; k++) out[k] = activate(out[k] + b, D.act);
#endif
                    __global S* y = Y + (m + i) * D.yc;
                    int whole = j + VW <= count && D.yw == 1 && off[j + VW - 1] == off[j] + 2 * VW - 2;
                    if (whole && tx[j] + 2 * VW <= wide && ty[j] + 2 <= high) {
                        for (int r = 0; r < 2; r++) {
                            T a = out[2 * r], b = out[2 * r + 1];
                            SET(y + off[j] + r * D.yh, zip_low(a, b));
                            SET(y + off[j] + r * D.yh + VW, zip_high(a, b));
                        }
                        continue;
                    }
                    for (int r = 0; r < 2; r++) {
                        E u[2 * VW];
                        PRIV(u) = zip_low(out[2 * r], out[2 * r + 1]);
                        PRIV(u + VW) = zip_high(out[2 * r], out[2 * r + 1]);
                        for (int l = 0; l < min(VW, count - j); l++) {
                            __global S* to = y + off[j + l] + r * D.yh;
                            if (ty[j + l] + r >= high) continue;
                            if (D.yw == 1 && tx[j + l] + 1 < wide) { SET2(to, u + 2 * l); continue; }
                            STORE(to, 0, u[2 * l]);
                            if (tx[j + l] + 1 < wide) STORE(to, D.yw, u[2 * l + 1]);
                        }
                    }
                }
        }
    }
}
