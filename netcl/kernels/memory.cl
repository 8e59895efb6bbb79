// memory.cl: how CPU kernels meet memory, where their compiler can.
//   STREAM_TO(V, p, v)      stores v, of vector type V, at an aligned address past the caches
//   AHEAD(p, write)         asks for the line at p, which need not exist, before it is used
#if defined(__has_builtin)
#if __has_builtin(__builtin_nontemporal_store)
#define STREAM_TO(V, p, v) __builtin_nontemporal_store((V)(v), (__global V*)(p))
#endif
#if __has_builtin(__builtin_prefetch)
#define AHEAD(p, write) __builtin_prefetch(p, write)
#endif
#endif
#ifndef STREAM_TO
#define STREAM_TO(V, p, v) (*(__global V*)(p) = (v))
#endif
#ifndef AHEAD
#define AHEAD(p, write)
#endif
