// gather.cl: elements picked by position. Elements are moved as bits: U is an unsigned type of their size (or of
// PER together), INDEX the type of the indices, I that of index arithmetic. Indices count from `low`, -n or 0; a bad
// one gives zeros and sets the error flag.
//   FORM 0 gather:  out[o, k, c] = x[o, index[o, k, c], c], x (outer, n, cols), index (outer, count, cols), any
//                   strides; index stride 0 along c picks whole rows. r numbers the rows (o, k).
//   FORM 1 one_hot: out[r, index[r]] = one; out holds zeros before
//   FORM 2 select:  out[count[i] - 1] = x[i] where mask[i], count being the running count of the mask
//   FORM 3 places:  out[count[i] - 1, axis] = i / inner % n where mask[i]: the positions along one of the `axes`
//   FORM 4 ravel:   out[r] = the position in an array of `lengths`, flattened, that index (rows, axes) names along axes
// Launch: on CPU devices (PLAIN) an item takes `step` rows (gather: of `chunk` columns); else one element (or row).

#if FORM == 0
__kernel void gather(__global const U* restrict x, __global const INDEX* restrict index, __global U* restrict out, I ox,
                     I oindex, int code, __global int* flag, I x_o, I x_n, I x_c, I i_o, I i_k, I i_c, I n, I low,
                     I count, I cols, I rows, I step, I chunk) {
    x += ox / PER;
    index += oindex;
#ifdef PLAIN
    const I c0 = (I)get_global_id(0) * chunk, c1 = LEAST(c0 + chunk, cols);
    I r = (I)get_global_id(1) * step, o = r / count, k = r - o * count;
    for (const I end = LEAST(r + step, rows); r < end; r++) {
        __global const U* from = x + o * x_o;
        __global const INDEX* at = index + o * i_o + k * i_k;
        __global U* to = out + r * cols;
        if (++k == count) { k = 0; o++; }
        if (i_c == 0) {
            const INDEX v = *at;
            if (v < low || v >= n) {
                bad_index(flag, code, v, LIMIT);
                for (I c = c0; c < c1; c++) to[c] = (U)(0);
                continue;
            }
            from += FROM_START(v) * x_n;
            if (x_c == 1)
                for (I c = c0; c < c1; c++) to[c] = from[c];
            else
                for (I c = c0; c < c1; c++) to[c] = from[c * x_c];
        } else {
            for (I c = c0; c < c1; c++) {
                const INDEX v = at[c * i_c];
                const bool good = v >= low && v < n;
                if (good) to[c] = from[FROM_START(v) * x_n + c * x_c];
                else { to[c] = (U)(0); bad_index(flag, code, v, LIMIT); }
            }
        }
    }
#else
    const I e = get_global_id(0), r = e / cols, c = e - r * cols, o = rows == count ? 0 : r / count, k = r - o * count;
    if (r >= rows) return;
    const INDEX v = index[o * i_o + k * i_k + c * i_c];
    if (v >= low && v < n) out[e] = x[o * x_o + FROM_START(v) * x_n + c * x_c];
    else { out[e] = (U)(0); bad_index(flag, code, v, LIMIT); }
#endif
}

#elif FORM == 1
__kernel void one_hot(__global const INDEX* restrict index, __global U* restrict out, I oindex, int code,
                      __global int* flag, I n, I rows, I step, U one) {
    I r = (I)get_global_id(0) * step;
    for (const I end = LEAST(r + step, rows); r < end; r++) {
        const INDEX v = index[oindex + r];
        if (v >= 0 && v < n) out[r * n + (I)v] = one;
        else bad_index(flag, code, v, n);
    }
}

#elif FORM == 2
__kernel void select_marked(__global const U* restrict x, __global const uchar* restrict mask,
                            __global const INDEX* restrict count, __global U* restrict out, I ox, I omask, I size,
                            I step) {
    I i = (I)get_global_id(0) * step;
    for (const I end = LEAST(i + step, size); i < end; i++)
        if (mask[omask + i]) out[count[i] - 1] = x[ox + i];
}

#elif FORM == 4
__kernel void ravel(__global const INDEX* restrict index, __global const long* restrict lengths,
                    __global U* restrict out, I oindex, int code, __global int* flag, I i_r, I i_k, I rows, I axes,
                    I step) {
    I r = (I)get_global_id(0) * step;
    for (const I end = LEAST(r + step, rows); r < end; r++) {
        long at = 0;
        for (I k = 0; k < axes; k++) {
            const long n = lengths[k], low = -n;
            const INDEX v = index[oindex + r * i_r + k * i_k];
            const bool good = v >= low && v < n;
            if (!good) bad_index(flag, code, v, LIMIT);
            at = at * n + (good ? (v < 0 ? v + n : v) : 0);
        }
        out[r] = (U)at;
    }
}

#else
__kernel void mark_places(__global const uchar* restrict mask, __global const INDEX* restrict count,
                          __global U* restrict out, I omask, I size, I step, I inner, I n, I axis, I axes) {
    I i = (I)get_global_id(0) * step;
    for (const I end = LEAST(i + step, size); i < end; i++)
        if (mask[omask + i]) out[(I)(count[i] - 1) * axes + axis] = (U)(i / inner % n);
}
#endif
