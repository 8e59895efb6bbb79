// winograd.cl: F(4x4, 3x3), 4x4 outputs of a 3x3 filter with 36 products instead of 144, on every device: the
// transforms along one axis. T is the type of values (vectors of channels on CPU devices, numbers on GPUs), E that of
// their elements.
//
//   forward   Y = A^T [F . V] A             F = G w G^T    filters
//   weights   dW = G^T [sum of Z . V] G     V = B^T d B    6x6 patches d of the input, at every fourth pixel
//                                           Z = A g A^T    4x4 tiles g of the output's gradient
//
// The points of evaluation are 0, 3/4, -3/4, 3/2, -3/2 and infinity: rounding grows by two to three against the direct
// sum, half of what 0, 1, -1, 2, -2 give. All sums of a tile round as its largest value does, and an infinity makes all
// of them NaN, so tiles with values beyond a limit are computed directly: winograd.py explains which and how exactly.
// Sources: Lavin and Gray 2015, arXiv:1509.09308; for points, Barabasz et al. 2020, arXiv:1803.10986.

#define POINTS 36
#ifndef SPREAD
#define SPREAD 8            // binary orders of magnitude between what is usual and the limit
#endif
#define LARGEST 0x58800000  // bits of 2^50, from which on transforms might overflow
#define SAMPLES 512         // of a tensor
#define RARE(zeros) (SAMPLES - (zeros) > 16 * 12 ? (SAMPLES - (zeros)) / 16 : 12)  // may be larger than what is usual
#define PEAK(v) (as_int(v) & INT_MAX)       // bits of |v|: ordered as |v| is, infinity and NaN behind
#define UNEQUAL(most, least) ((most) >= LARGEST || (most) > (least) + SPREAD * (1 << 23))
#define A1 ((E)0.75)        // the points are 0, A1, -A1, B1, -B1, infinity
#define B1 ((E)1.5)
#define A2 ((E)0.5625)
#define B2 ((E)2.25)
#define A3 ((E)0.421875)
#define B3 ((E)3.375)
#define N0 ((E)(64.0 / 81))         // scales of the rows of G
#define NA ((E)(-128.0 / 243))
#define NB ((E)(32.0 / 243))

// One axis of each transform. B^T of six pixels:
#define PATCH_AXIS(PUT, d0, d1, d2, d3, d4, d5)                             \
    {                                                                       \
        T ea = d4 - B2 * d2, oa = d3 - B2 * d1, eb = d4 - A2 * d2, ob = d3 - A2 * d1; \
        PUT(0, (A2 * B2) * d0 + (d4 - (A2 + B2) * d2));                     \
        PUT(1, ea + A1 * oa);                                               \
        PUT(2, ea - A1 * oa);                                               \
        PUT(3, eb + B1 * ob);                                               \
        PUT(4, eb - B1 * ob);                                               \
        PUT(5, (A2 * B2) * d1 + (d5 - (A2 + B2) * d3));                     \
    }
// A of four gradients.
#define TILE_AXIS(PUT, g0, g1, g2, g3)                                      \
    {                                                                       \
        T ea = g0 + A2 * g2, oa = g1 + A2 * g3, eb = g0 + B2 * g2, ob = g1 + B2 * g3; \
        PUT(0, g0);                                                         \
        PUT(1, ea + A1 * oa);                                               \
        PUT(2, ea - A1 * oa);                                               \
        PUT(3, eb + B1 * ob);                                               \
        PUT(4, eb - B1 * ob);                                               \
        PUT(5, g3);                                                         \
    }
// A^T of six sums.
#define SUMS_AXIS(PUT, m0, m1, m2, m3, m4, m5)                              \
    {                                                                       \
        T sa = m1 + m2, da = m1 - m2, sb = m3 + m4, db = m3 - m4;           \
        PUT(0, m0 + sa + sb);                                               \
        PUT(1, A1 * da + B1 * db);                                          \
        PUT(2, A2 * sa + B2 * sb);                                          \
        PUT(3, A3 * da + (B3 * db + m5));                                   \
    }
// G of three taps.
#define TAPS_AXIS(PUT, w0, w1, w2)                                          \
    {                                                                       \
        T ea = NA * w0 + (NA * A2) * w2, oa = (NA * A1) * w1, eb = NB * w0 + (NB * B2) * w2, ob = (NB * B1) * w1; \
        PUT(0, N0 * w0);                                                    \
        PUT(1, ea + oa);                                                    \
        PUT(2, ea - oa);                                                    \
        PUT(3, eb + ob);                                                    \
        PUT(4, eb - ob);                                                    \
        PUT(5, w2);                                                         \
    }
// G^T of six sums.
#define TAPS_GRAD_AXIS(PUT, m0, m1, m2, m3, m4, m5)                         \
    {                                                                       \
        T sa = m1 + m2, da = m1 - m2, sb = m3 + m4, db = m3 - m4;           \
        PUT(0, N0 * m0 + (NA * sa + NB * sb));                              \
        PUT(1, (NA * A1) * da + (NB * B1) * db);                            \
        PUT(2, (NA * A2) * sa + ((NB * B2) * sb + m5));                     \
    }

// Bits of |x| at the i-th of SAMPLES indices of a tensor of N x C x H x W at s, spread evenly over it.
// Source of the steps: Roberts 2018, "The unreasonable effectiveness of quasirandom sequences".
static inline int sample(__global const S* s, uint i, uint N, uint C, uint H, uint W, long sn, long sc, long sh,
                         long sw) {
    const long n = ((ulong)(uint)(i * 0xDB4F0B91u) * N) >> 32, c = ((ulong)(uint)(i * 0xBBE05633u) * C) >> 32;
    const long h = ((ulong)(uint)(i * 0xA0F2EC75u) * H) >> 32, w = ((ulong)(uint)(i * 0x89E18285u) * W) >> 32;
    return PEAK((E)LOAD(s, n * sn + c * sc + h * sh + w * sw));
}

// Bits of the limit of a tensor's tiles where more samples than are RARE have exponent e (biased) or more,
// but not e + 1.
#define LIMIT(e) ((e) == 0 ? 0 : (e) + SPREAD >= LARGEST >> 23 ? LARGEST - 1 : ((e) + SPREAD) * (1 << 23))
