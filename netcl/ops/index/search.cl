// search.cl: where values belong in sorted rows: out[r, j] counts the elements of row r that come before v[r, j], and
// equal ones where `right`. sorted (rows, n) and v (rows, m) of type S in any strides (s_r is 0 where all search one
// row), out (rows, m) of type R. NaN comes after everything and equals itself, as in sort.cl.
// With `bins` sorted holds edges, and out is a bin counted from 1: the last one has its upper edge as well, and 0 is
// outside, where NaN is.
// Launch: an item finds `step` places, EACH at once: bisection takes as many turns for each, and reads do not wait for
// each other.

static inline bool is_before(T a, T b) { return a < b || (a == a && b != b); }

__kernel void search(__global const S* restrict sorted, __global const S* restrict v, __global R* restrict out,
                     I osorted, I ov, I s_r, I s_n, I v_r, I v_m, I n, I m, I size, I step, int right, int bins) {
    I e = (I)get_global_id(0) * step;
    for (const I end = e + step < size ? e + step : size; e < end; e += EACH) {
        I from[EACH], at[EACH];
        T value[EACH];
        const int count = (int)(end - e < EACH ? end - e : EACH);
        for (int j = 0; j < EACH; j++) {
            const I i = j < count ? e + j : e, r = m == size ? 0 : i / m;
            from[j] = osorted + r * s_r;
            at[j] = 0;
            value[j] = LOAD(v, ov + r * v_r + (i - r * m) * v_m);
        }
        for (I length = n; length > 0; length /= 2) {
            const I part = length - length / 2;
            for (int j = 0; j < EACH; j++) {
                const T there = LOAD(sorted, from[j] + (at[j] + part - 1) * s_n);
                const bool goes = right ? !is_before(value[j], there) : is_before(there, value[j]);
                at[j] += goes ? part : 0;
            }
        }
        for (int j = 0; j < count; j++) {
            I found = at[j];
            if (bins && found >= n) found = value[j] == LOAD(sorted, from[j] + (n - 1) * s_n) ? n - 1 : 0;
            out[e + j] = (R)found;
        }
    }
}
