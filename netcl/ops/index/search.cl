// search.cl: where values belong in sorted rows: out[r, j] counts the elements of row r that come before v[r, j], and
// equal ones where `right`. sorted (rows, n) and v (rows, m) of type S in any strides (s_r is 0 where all search one
// row), out (rows, m). NaN comes after everything and equals itself, as in sort.cl.
// Launch: an item finds `step` places by bisection.

static inline bool is_before(T a, T b) { return a < b || (a == a && b != b); }

__kernel void search(__global const S* restrict sorted, __global const S* restrict v, __global long* restrict out,
                     I osorted, I ov, I s_r, I s_n, I v_r, I v_m, I n, I m, I size, I step, int right) {
    I e = (I)get_global_id(0) * step;
    for (const I end = e + step < size ? e + step : size; e < end; e++) {
        const I r = e / m, from = osorted + r * s_r;
        const T value = LOAD(v, ov + r * v_r + (e - r * m) * v_m);
        I low = 0, high = n;
        while (low < high) {
            const I middle = low + (high - low) / 2;
            const T there = LOAD(sorted, from + middle * s_n);
            if (right ? !is_before(value, there) : is_before(there, value)) low = middle + 1;
            else high = middle;
        }
        out[e] = low;
    }
}
