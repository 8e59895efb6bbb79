// index.cl: what kernels that follow indices share. A bad index is reported once, and nothing is read or written by it.
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
// Indices lie in [low, n), low being 0 or -n: negative ones count from the end. The flag's limit is -n where they may.
#define FROM_START(v) ((v) < 0 ? (I)(v) + n : (I)(v))
#define LIMIT (low < 0 ? low : n)

static inline void bad_index(__global int* flag, int code, long value, long limit) {
    if (atomic_cmpxchg(flag, 0, 2) == 0) {
        flag[1] = code;
        flag[2] = (int)value;
        flag[3] = (int)limit;
        flag[4] = (int)(value >> 32);
        flag[5] = (int)(limit >> 32);
    }
}
