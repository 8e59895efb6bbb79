// norms_gpu.cl: vectors as the kernels of all norms for GPUs load and store them.
// V is a vector of VEC (1 or 4) elements of the compute type E; GET and SET are for elements of x and y, stored as S;
// WIDE and PUT for those of E; SUM adds the elements of a vector.
typedef VECTOR V;
#if VEC == 4
#define WIDE(p, i) (*(__global const V*)((p) + 4 * (i)))
#define PUT(p, i, v) (*(__global V*)((p) + 4 * (i)) = (v))
#define SUM(v) (((v).x + (v).y) + ((v).z + (v).w))
#else
#define WIDE(p, i) ((p)[i])
#define PUT(p, i, v) ((p)[i] = (v))
#define SUM(v) (v)
#endif
#ifdef NARROW
#if VEC == 4
#define GET(p, i) JOIN(JOIN(LOAD_, NARROW), 4A)((p) + 4 * (i))
#define SET(p, i, v) JOIN(JOIN(STORE_, NARROW), 4A)(v, (p) + 4 * (i))
#else
#define GET(p, i) LOAD(p, i)
#define SET(p, i, v) STORE(p, i, v)
#endif
#else
#define GET(p, i) WIDE(p, i)
#define SET(p, i, v) PUT(p, i, v)
#endif
