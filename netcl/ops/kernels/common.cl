// common.cl: what every hand-written kernel starts with.
// S is the storage type of elements, T the type they are computed in (half is stored, float is computed), ACC the type
// sums are kept in. LOAD and STORE convert between S and T, so half works on devices without cl_khr_fp16.
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#ifndef S
#define S float
#endif
#if !defined(T) && !defined(HAVE_T) && !defined(VECTOR)
#define T float
#endif
#ifndef ACC
#define ACC T
#endif
#ifdef HALF
#define LOAD(p, i) vload_half(i, p)
#define STORE(p, i, v) vstore_half_rte(v, i, p)
#else
#define LOAD(p, i) ((p)[i])
#define STORE(p, i, v) ((p)[i] = (S)(v))
#endif
