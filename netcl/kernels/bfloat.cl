// bfloat.cl: bfloat16, the upper half of a float, as floats. Stores round to nearest even; what is too large becomes
// infinite, and NaN a quiet NaN of its sign.
//   LOAD_BFLOAT(p, i), STORE_BFLOAT(p, i, v)  element i
//   LOAD_BFLOAT4(p), STORE_BFLOAT4(v, p)      vectors of 2, 4, 8 or 16 at any address
//   LOAD_BFLOAT4A(p), STORE_BFLOAT4A(v, p)    four, or eight, at an aligned address
//   ROUND_BFLOAT4(v), also 8 and 16           the float that a bfloat keeps of v
typedef ushort bfloat;
static inline float widen_bfloat(ushort x) { return as_float((uint)x << 16); }
static inline ushort narrow_bfloat(float v) {
    uint u = as_uint(v);
    return (v != v ? u | 0x400000u : u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
#define LOAD_BFLOAT(p, i) widen_bfloat((p)[i])
#define STORE_BFLOAT(p, i, v) ((p)[i] = narrow_bfloat(v))

#if defined(__has_builtin)
#if __has_builtin(__builtin_convertvector)
#define BFLOAT_AS(T, x) __builtin_convertvector(x, T)   // inline even where convert_T is a function call
#endif
#endif
#ifndef BFLOAT_AS
#define BFLOAT_AS(T, x) convert_##T(x)
#endif
#define BFLOATS(N)                                                                                           \
    typedef ushort##N BFLOAT##N __attribute__((aligned(2)));                                                 \
    static inline float##N widen_bfloat##N(ushort##N x) { return as_float##N(BFLOAT_AS(uint##N, x) << 16); } \
    static inline ushort##N narrow_bfloat##N(float##N v) {                                                   \
        uint##N u = as_uint##N(v);                                                                           \
        u = (v != v ? u | 0x400000u : u + 0x7fffu + (u >> 16 & 1u)) >> 16;                                   \
        return BFLOAT_AS(ushort##N, u);                                                                      \
    }
BFLOATS(2)
BFLOATS(4)
BFLOATS(8)
BFLOATS(16)
#define LOAD_BFLOAT2(p) widen_bfloat2(*(__global const BFLOAT2*)(p))
#define LOAD_BFLOAT4(p) widen_bfloat4(*(__global const BFLOAT4*)(p))
#define LOAD_BFLOAT8(p) widen_bfloat8(*(__global const BFLOAT8*)(p))
#define LOAD_BFLOAT16(p) widen_bfloat16(*(__global const BFLOAT16*)(p))
#define LOAD_BFLOAT4A(p) widen_bfloat4(*(__global const ushort4*)(p))
#define LOAD_BFLOAT8A(p) widen_bfloat8(*(__global const ushort8*)(p))
#define STORE_BFLOAT2(v, p) (*(__global BFLOAT2*)(p) = narrow_bfloat2(v))
#define STORE_BFLOAT4(v, p) (*(__global BFLOAT4*)(p) = narrow_bfloat4(v))
#define STORE_BFLOAT8(v, p) (*(__global BFLOAT8*)(p) = narrow_bfloat8(v))
#define STORE_BFLOAT16(v, p) (*(__global BFLOAT16*)(p) = narrow_bfloat16(v))
#define STORE_BFLOAT4A(v, p) (*(__global ushort4*)(p) = narrow_bfloat4(v))
#define STORE_BFLOAT8A(v, p) (*(__global ushort8*)(p) = narrow_bfloat8(v))
#define ROUND_BFLOAT4(v) widen_bfloat4(narrow_bfloat4(v))
#define ROUND_BFLOAT8(v) widen_bfloat8(narrow_bfloat8(v))
#define ROUND_BFLOAT16(v) widen_bfloat16(narrow_bfloat16(v))
