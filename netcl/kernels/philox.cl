// philox.cl: PHILOX(name, UW, LW, TO_UINT, TO_ULONG) defines a function that makes the four words x of blocks `block`,
// one block a lane of the integer vectors UW and LW: philox(counter = (block lo, block hi, 0, 0), key = (k0, k1)).
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
#define PHILOX(name, UW, LW, TO_UINT, TO_ULONG)                                                                       \
    static inline void name(LW block, uint k0, uint k1, UW* x) {                                                      \
        UW c0 = TO_UINT(block), c1 = TO_UINT(block >> 32), c2 = 0, c3 = 0;                                            \
        for (int round = 0; round < 10; round++) {                                                                    \
            LW p = TO_ULONG(c0) * (ulong)0xD2511F53u, q = TO_ULONG(c2) * (ulong)0xCD9E8D57u;                          \
            c0 = TO_UINT(q >> 32) ^ c1 ^ k0;                                                                          \
            c1 = TO_UINT(q);                                                                                          \
            c2 = TO_UINT(p >> 32) ^ c3 ^ k1;                                                                          \
            c3 = TO_UINT(p);                                                                                          \
            k0 += 0x9E3779B9u;                                                                                        \
            k1 += 0xBB67AE85u;                                                                                        \
        }                                                                                                             \
        x[0] = c0; x[1] = c1; x[2] = c2; x[3] = c3;                                                                   \
    }
