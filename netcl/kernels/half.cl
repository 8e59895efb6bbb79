// half.cl: halves as floats, rounded to nearest even; works on devices without cl_khr_fp16.
//   LOAD_HALF(p, i), STORE_HALF(p, i, v)      element i
//   LOAD_HALF4(p), STORE_HALF4(v, p)          vectors of 2, 4, 8 or 16 at any address; on CPU devices in one
//                                             instruction where their compiler can: OpenCL's own may convert lane by
//   lane LOAD_HALF4A(p), STORE_HALF4A(v, p)        four, or eight, at an aligned address
//   ROUND_HALF4(v), also 8 and 16             the float that a half keeps of v
#if defined(__has_builtin)
#if __has_builtin(__builtin_convertvector) && (defined(__F16C__) || defined(__aarch64__))
#define CONVERTS_HALF
#endif
#endif
#define LOAD_HALF(p, i) vload_half(i, p)
#define STORE_HALF(p, i, v) vstore_half_rte(v, i, p)
#define LOAD_HALF4A(p) load_half4a(p)
#define LOAD_HALF8A(p) load_half8a(p)
#define STORE_HALF4A(v, p) store_half4a(v, p)
#define STORE_HALF8A(v, p) store_half8a(v, p)
// One access to memory, and conversions between registers: OpenCL's own make four accesses of it on NVIDIA devices.
#define HALVES_ALIGNED(N)                                              \
    static inline float##N load_half##N##a(__global const half* p) {    \
        const ushort##N h = *(__global const ushort##N*)p;              \
        return vload_half##N(0, (const half*)&h);                       \
    }                                                                   \
    static inline void store_half##N##a(float##N v, __global half* p) { \
        ushort##N h;                                                    \
        vstore_half##N##_rte(v, 0, (half*)&h);                          \
        *(__global ushort##N*)p = h;                                    \
    }
HALVES_ALIGNED(4)
HALVES_ALIGNED(8)
#define LOAD_HALF2(p) vload_half2(0, p)
#define STORE_HALF2(v, p) vstore_half2_rte(v, 0, p)
#ifdef CONVERTS_HALF
typedef half HALF4 __attribute__((ext_vector_type(4), aligned(2)));
typedef half HALF8 __attribute__((ext_vector_type(8), aligned(2)));
typedef half HALF16 __attribute__((ext_vector_type(16), aligned(2)));
#define LOAD_HALF4(p) __builtin_convertvector(*(__global const HALF4*)(p), float4)
#define LOAD_HALF8(p) __builtin_convertvector(*(__global const HALF8*)(p), float8)
#define LOAD_HALF16(p) __builtin_convertvector(*(__global const HALF16*)(p), float16)
#define STORE_HALF4(v, p) (*(__global HALF4*)(p) = __builtin_convertvector(v, HALF4))
#if __has_builtin(__builtin_ia32_vcvtps2ph256) && defined(__F16C__)
// Names the instruction: where halves are converted in and out around a float operation, LLVM would do that operation
// on halves, one by one.
typedef float FLOATS8 __attribute__((vector_size(32)));
typedef short BITS8 __attribute__((vector_size(16), aligned(2)));
#define STORE_HALF8(v, p) (*(__global BITS8*)(p) = __builtin_ia32_vcvtps2ph256(__builtin_astype((float8)(v), FLOATS8), \
    0))
#if __has_builtin(__builtin_ia32_vcvtps2ph512_mask) && defined(__AVX512F__)
typedef float FLOATS16 __attribute__((vector_size(64)));
typedef short BITS16 __attribute__((vector_size(32), aligned(2)));
#define NO_BITS16 __builtin_astype((short16)(0), BITS16)
#define STORE_HALF16(v, p) \
    (*(__global BITS16*)(p) = __builtin_ia32_vcvtps2ph512_mask(__builtin_astype((float16)(v), FLOATS16), 0, NO_BITS16, \
                                                               -1))
#else
static inline void store_half16(__global half* p, float16 v) {
    STORE_HALF8(v.lo, p);
    STORE_HALF8(v.hi, p + 8);
}
#define STORE_HALF16(v, p) store_half16(p, v)
#endif
#else
#define STORE_HALF8(v, p) (*(__global HALF8*)(p) = __builtin_convertvector(v, HALF8))
#define STORE_HALF16(v, p) (*(__global HALF16*)(p) = __builtin_convertvector(v, HALF16))
#endif
#define ROUND_HALF4(v) __builtin_convertvector(__builtin_convertvector(v, HALF4), float4)
#define ROUND_HALF8(v) __builtin_convertvector(__builtin_convertvector(v, HALF8), float8)
#define ROUND_HALF16(v) __builtin_convertvector(__builtin_convertvector(v, HALF16), float16)
#else
#define LOAD_HALF4(p) vload_half4(0, p)
#define LOAD_HALF8(p) vload_half8(0, p)
#define LOAD_HALF16(p) vload_half16(0, p)
#define STORE_HALF4(v, p) vstore_half4_rte(v, 0, p)
#define STORE_HALF8(v, p) vstore_half8_rte(v, 0, p)
#define STORE_HALF16(v, p) vstore_half16_rte(v, 0, p)
#define ROUNDS_HALF(N)                            \
    static inline float##N ROUND_HALF##N(float##N v) { \
        ushort##N h;                              \
        vstore_half##N##_rte(v, 0, (half*)&h);    \
        return vload_half##N(0, (const half*)&h); \
    }
ROUNDS_HALF(4)
ROUNDS_HALF(8)
ROUNDS_HALF(16)
#endif
