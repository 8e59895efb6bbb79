// norms_cpu.cl: vectors as the kernels of all norms for CPU devices load and store them.
// V is a vector of VW elements of the compute type E; GET, SET and RESERVE are for elements of x and y, stored as S;
// WIDE and PUT for those of E.
typedef VECTOR V;
typedef VECTOR U __attribute__((aligned(sizeof(E))));   // a vector that need not be aligned
#define WIDE(p) (*(__global const U*)(p))
#define PUT(p, v) (*(__global U*)(p) = (v))
#ifdef NARROW
#define GET(p) JOIN(JOIN(LOAD_, NARROW), VW)(p)
#define RESERVE(p)
#define SET(p, v) JOIN(JOIN(STORE_, NARROW), VW)(v, p)
#else
#define GET(p) WIDE(p)
#ifdef STREAM
#define RESERVE(p)
#define SET(p, v) STREAM_TO(V, p, v)     // rows are whole vectors
#else
#define RESERVE(p) AHEAD(p, 1)  // so that stores do not wait for their lines
#define SET(p, v) PUT(p, v)
#endif
#endif

static inline E total(V v) {
#if VW == 16
    v.lo += v.hi;
#endif
#if VW >= 8
    v.s0123 += v.s4567;
#endif
    v.s01 += v.s23;
    return v.s0 + v.s1;
}
