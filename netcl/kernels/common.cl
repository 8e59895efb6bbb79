// common.cl: what every hand-written kernel starts with.
// S is the storage type of elements, T the type they are computed in (S, or float), ACC the type
// sums are kept in. LOAD and STORE convert between S and T. Types of 16 bits are stored, float is computed: for them
// NARROW is HALF or BFLOAT, which names the forms of half.cl or bfloat.cl that sources.py has put before this.
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
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#ifdef NARROW
#define LOAD(p, i) JOIN(LOAD_, NARROW)(p, i)
#define STORE(p, i, v) JOIN(STORE_, NARROW)(p, i, v)
#else
#define LOAD(p, i) ((p)[i])
#define STORE(p, i, v) ((p)[i] = (S)(v))
#endif
#ifdef FP_FAST_FMAF
#define MAD(a, b, c) fma(a, b, c)
#else
#define MAD(a, b, c) ((a) * (b) + (c))
#endif
// The same for parameters, stored as W.
#ifdef W_NARROW
#define LOADW(p, i) JOIN(LOAD_, W_NARROW)(p, i)
#define STOREW(p, i, v) JOIN(STORE_, W_NARROW)(p, i, v)
#else
#define LOADW(p, i) ((p)[i])
#define STOREW(p, i, v) ((p)[i] = (v))
#endif
