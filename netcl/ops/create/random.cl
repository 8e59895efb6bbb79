// random.cl: Philox4x32-10 numbers, the same on every device and on NumPy. Follows philox.cl.
// Block b of a stream is philox(counter = (b lo, b hi, 0, 0), key = seed), four 32-bit words; element i of a draw is
// word i % 4 of block first + i / 4. Word l of block j of W goes to lane j of vector x_l.
//   FORM 0 uniform:   out = a + (b - a) * u,  u = (x >> 8) * 2^-24 in [0, 1)
//   FORM 1 normal:    out = a + b * sqrt(-2 log u1) * (cos, sin)(2 pi u2), words (0, 1) and (2, 3); u1 in (0, 1]
//   FORM 2 bernoulli: out = u < p, as x >> 8 < range = ceil(p * 2^24)
//   FORM 3 integers:  out = low + floor(x * range / 2^32)
//   FORM 4 dropout:   out = u < p ? 0 : x * b
// An item makes STEP times W blocks that lie side by side, and the items of a group lie side by side at each step. T is
// float x W. CPU devices (PLAIN) have groups of one item; on GPUs 4 * W elements are one access of at most 16 bytes.
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

#if W == 1
#define LANES(type) type
#else
#define LANES(type) JOIN(type, W)
#endif
typedef LANES(uint) UW;
typedef LANES(ulong) LW;
#define TO_UINT(v) LANES(convert_uint)(v)
#define TO_ULONG(v) LANES(convert_ulong)(v)

PHILOX(philox, UW, LW, TO_UINT, TO_ULONG)

// sin and cos of 2 pi u for u in [0, 1): a quarter turn at a time, so the reduction is exact.
static inline T turn(T u, int quarter) {
    T t = u * 4.0f + 12582912.0f;
    M q = (AS_M(t) & 3) + quarter;
    T r = (u * 4.0f - (t - 12582912.0f)) * 1.57079633f;
    T z = r * r;
    T s = z * 2.72503840e-6f - 1.98400918e-4f;
    s = s * z + 8.33333189e-3f;
    s = s * z - 1.66666667e-1f;
    s = s * z * r + r;
    T c = z * -2.76966464e-7f + 2.48040615e-5f;
    c = c * z - 1.38888945e-3f;
    c = c * z + 4.16666667e-2f;
    c = c * z * z - 0.5f * z + 1.0f;
    T y = (q & 1) == 0 ? s : c;
    return (q & 2) == 0 ? y : -y;
}

static inline T unit(UW x) {   // [0, 1) from the high 24 bits
    return LANES(convert_float)(LANES(convert_int)(x >> 8)) * 5.9604644775390625e-8f;
}

static inline void distribute(const UW* x, T* y, T a, T b, uint range) {
#if FORM == 1
    for (int pair = 0; pair < 4; pair += 2) {
        T radius = f_sqrt(-2.0f * f_log(unit(x[pair]) + 5.9604644775390625e-8f)) * b;
        T angle = unit(x[pair + 1]);
        y[pair] = a + radius * turn(angle, 1);
        y[pair + 1] = a + radius * turn(angle, 0);
    }
#else
    for (int l = 0; l < 4; l++)
#if FORM == 0
        y[l] = a + (b - a) * unit(x[l]);
#elif FORM == 2
        y[l] = (x[l] >> 8) < range ? (T)(1.0f) : (T)(0.0f);
#else
        y[l] = (x[l] >> 8) < range ? (T)(0.0f) : b;
#endif
#endif
}

#if FORM == 3
#define NUMBER long
#define VALUE(j, l) (low + (long)((((const uint*)&words[l])[j] * range) >> 32))
#else
#define NUMBER float
#define VALUE(j, l) ((const float*)&y[l])[j]
#endif
#if FORM == 4
#define PUT(i, v) { float f = v, g = LOAD(x, ox + (i)); STORE(out, i, f == 0.0f ? 0.0f : f * g); }
#elif defined(NARROW)
#define PUT(i, v) STORE(out, i, (float)(v));
#else
#define PUT(i, v) STORE(out, i, v);
#endif

#ifdef PLAIN
#define UNROLL
#else   // what GPUs move at once, at aligned addresses
#define UNROLL _Pragma("unroll")
#if W == 1
#define SEVERAL(name) JOIN(name, 4)
#else
#define SEVERAL(name) JOIN(name, 8)
#endif
typedef SEVERAL(NUMBER) NUMBERS;
#ifdef NARROW
#define GET(p) JOIN(SEVERAL(JOIN(LOAD_, NARROW)), A)(p)
#define SET(p, v) JOIN(SEVERAL(JOIN(STORE_, NARROW)), A)(SEVERAL(convert_float)(v), p)
#else
#define GET(p) SEVERAL(convert_float)(*(__global const SEVERAL(S)*)(p))
#define SET(p, v) (*(__global SEVERAL(S)*)(p) = SEVERAL(JOIN(convert_, S))(v))
#endif
#endif

__kernel void random(
#if FORM == 4
    __global const S* restrict x, long ox,
#endif
    __global S* restrict out, long first, uint k0, uint k1, float a, float b, long low, ulong range, long n) {
    const size_t group = get_local_size(0);
    for (int step = 0; step < STEP; step++) {
        const long block = (((long)get_group_id(0) * STEP + step) * group + get_local_id(0)) * W, start = block * 4;
        if (start >= n) return;
        LW blocks;
        for (int j = 0; j < W; j++) ((ulong*)&blocks)[j] = first + block + j;
        UW words[4];
        philox(blocks, k0, k1, words);
#if FORM != 3
        T y[4];
        distribute(words, y, (T)(a), (T)(b), (uint)range);
#endif
        NUMBER z[4 * W];
        UNROLL for (int j = 0; j < W; j++)
            UNROLL for (int l = 0; l < 4; l++) z[j * 4 + l] = VALUE(j, l);
        if (start + 4 * W > n) {
            UNROLL for (int i = 0; i < 4 * W; i++)   // by constants, or a GPU would keep z in memory
                if (start + i < n) PUT(start + i, z[i])
            return;
        }
#ifdef PLAIN
        for (int i = 0; i < 4 * W; i++) PUT(start + i, z[i])
#else
        NUMBERS v = SEVERAL(vload)(0, z);
#if FORM == 4
        NUMBERS g;
        if ((ox & (4 * W - 1)) == 0) g = GET(x + ox + start);
        else { UNROLL for (int i = 0; i < 4 * W; i++) ((float*)&g)[i] = LOAD(x, ox + start + i); }
        v = v == 0.0f ? (NUMBERS)(0.0f) : v * g;
#endif
        SET(out + start, v);
#endif
    }
}
