// memory.cl: how CPU kernels meet memory, where their compiler can.
//   STREAM_TO(V, p, v)      stores v, of vector type V, at an aligned address past the caches
//   AHEAD(p, write)         asks for the line at p, which need not exist, before it is used
//   LOAD_HALF8(p), STORE_HALF8(v, p), also 4 and 16: halves at any address as floats, rounded to nearest even; OpenCL's
//                           vload_half and vstore_half may be function calls that convert lane by lane
#if defined(__has_builtin)
#if __has_builtin(__builtin_nontemporal_store)
#define STREAM_TO(V, p, v) __builtin_nontemporal_store((V)(v), (__global V*)(p))
#endif
#if __has_builtin(__builtin_prefetch)
#define AHEAD(p, write) __builtin_prefetch(p, write)
#endif
#if __has_builtin(__builtin_convertvector) && (defined(__F16C__) || defined(__aarch64__))
#define CONVERTS_HALF   // in one instruction
#endif
#endif
#ifndef STREAM_TO
#define STREAM_TO(V, p, v) (*(__global V*)(p) = (v))
#endif
#ifndef AHEAD
#define AHEAD(p, write)
#endif

#ifdef CONVERTS_HALF
typedef half HALF4 __attribute__((ext_vector_type(4), aligned(2)));
typedef half HALF8 __attribute__((ext_vector_type(8), aligned(2)));
typedef half HALF16 __attribute__((ext_vector_type(16), aligned(2)));
#define LOAD_HALF4(p) __builtin_convertvector(*(__global const HALF4*)(p), float4)
#define LOAD_HALF8(p) __builtin_convertvector(*(__global const HALF8*)(p), float8)
#define LOAD_HALF16(p) __builtin_convertvector(*(__global const HALF16*)(p), float16)
#define STORE_HALF4(v, p) (*(__global HALF4*)(p) = __builtin_convertvector(v, HALF4))
#define STORE_HALF8(v, p) (*(__global HALF8*)(p) = __builtin_convertvector(v, HALF8))
#define STORE_HALF16(v, p) (*(__global HALF16*)(p) = __builtin_convertvector(v, HALF16))
#else
#define LOAD_HALF4(p) vload_half4(0, p)
#define LOAD_HALF8(p) vload_half8(0, p)
#define LOAD_HALF16(p) vload_half16(0, p)
#define STORE_HALF4(v, p) vstore_half4_rte(v, 0, p)
#define STORE_HALF8(v, p) vstore_half8_rte(v, 0, p)
#define STORE_HALF16(v, p) vstore_half16_rte(v, 0, p)
#endif
