// conv_finish.cl: what the portable convolutions for GPUs do to a sum of output channel o. Comes before their kernels.
#ifdef EPILOGUE
#define FINISH(v, o) ACT((v) + (HAS_BIAS ? LOAD(bias, obias + (o)) : (E)0))
#else
#define FINISH(v, o) (v)
#endif
