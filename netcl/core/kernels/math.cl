// math.cl: float functions over a vector T without OpenCL builtins, and the integer forms of dialect functions.
// Some CPU drivers leave builtins as function calls with every register spilled; these inline. Relative error about
// 1e-7 (tanh, erf 4e-7); NaN, infinities and zeros follow IEEE. M is the integer vector as wide as T.
// Polynomials and quotients: own least-squares fits with the relative error evened out. Range reduction in exp adds
// 1.5 * 2^23 and 126, which rounds to an integer.
// Each block starts with its name; dialect.py takes the blocks it needs.

// @exp
static inline T f_exp(T x) {
    T c = x < -87.33f ? (T)(-87.33f) : x;   // below, results are denormal: 0
    c = c > 89.0f ? (T)(89.0f) : c;
    T t = c * 1.44269504f + 12583038.0f;    // rounds to k + 126 in the low bits
    T k = t - 12583038.0f;
    T r = c - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    T p = r * 1.38145406e-3f + 8.36874545e-3f;
    p = p * r + 4.16683890e-2f;
    p = p * r + 1.66665211e-1f;
    p = p * r + 4.99999940e-1f;
    p = p * r * r + r + 1.0f;
    return (p + p) * AS_T(AS_M(t) << 23);   // 2 p * 2^(k-1): k = 128 overflows as it should
}
// @log
static inline T f_log(T x) {
    M tiny = x < 1.17549435e-38f;       // zero, denormal or negative
    T s = tiny ? x * 8388608.0f : x;
    M bits = AS_M(s);
    M e = (bits - 0x3f3504f3) >> 23;    // exponent with the mantissa in [sqrt(1/2), sqrt(2))
    T m = AS_T(bits - (e << 23));
    T k = AS_T(e - (tiny & 23) + 0x4b400000) - 12582912.0f;
    T u = (m - 1.0f) / (m + 1.0f);
    T z = u * u;
    T p = z * 2.33314796e-1f + 2.85507820e-1f;
    p = p * z + 4.00000121e-1f;
    p = p * z + 6.66666666e-1f;
    T y = k * -2.12194440e-4f + p * z * u + 2.0f * u + k * 0.693359375f;
    y = x == INFINITY ? x : y;
    y = x == 0.0f ? (T)(-INFINITY) : y;
    return x < 0.0f ? (T)(NAN) : x != x ? x : y;
}
// @log1p
static inline T f_log1p(T x) {
    T u = x / (2.0f + x);
    T z = u * u;
    T p = z * 2.33314796e-1f + 2.85507820e-1f;
    p = p * z + 4.00000121e-1f;
    p = p * z + 6.66666666e-1f;
    T y = x + u * (z * p - x);          // x - u * x = 2 u
    return (x > -0.29f) & (x < 0.41f) ? y : f_log(1.0f + x);
}
// @expm1
static inline T f_expm1(T x) {
    T p = x * 1.99127870e-4f + 1.39371840e-3f;
    p = p * x + 8.33327830e-3f;
    p = p * x + 4.16664318e-2f;
    p = p * x + 1.66666668e-1f;
    p = p * x + 5.00000002e-1f;
    T y = p * x * x + x;
    return (x > -0.35f) & (x < 0.35f) ? y : f_exp(x) - 1.0f;
}
// @tanh
static inline T f_tanh(T x) {
    T c = x < -9.05f ? (T)(-9.05f) : x;     // there it is 1 to the last bit
    c = c > 9.05f ? (T)(9.05f) : c;
    T z = c * c;
    T p = z * 1.326581288e-08f + 2.054508027e-05f;
    p = p * z + 3.491701236e-03f;
    p = p * z + 1.337775310e-01f;
    p = p * z + 9.999999783e-01f;
    T q = z * 7.740234200e-07f + 3.279276971e-04f;
    q = q * z + 2.586219585e-02f;
    q = q * z + 4.671106780e-01f;
    q = q * z + 1.0f;
    T y = c * p / q;
    y = y > 1.0f ? (T)(1.0f) : y;
    return y < -1.0f ? (T)(-1.0f) : y;
}
// @erf
static inline T f_erf(T x) {
    T c = x < -3.95f ? (T)(-3.95f) : x;     // there it is 1 to the last bit
    c = c > 3.95f ? (T)(3.95f) : c;
    T z = c * c;
    T p = z * 2.025911594e-06f + 2.846878809e-04f;
    p = p * z + 3.808158585e-03f;
    p = p * z + 5.287543722e-02f;
    p = p * z + 1.915502131e-01f;
    p = p * z + 1.128379144e+00f;
    T q = z * 3.783184604e-05f + 1.170725460e-03f;
    q = q * z + 1.505508335e-02f;
    q = q * z + 1.145595868e-01f;
    q = q * z + 5.030896321e-01f;
    q = q * z + 1.0f;
    T y = c * p / q;
    y = y > 1.0f ? (T)(1.0f) : y;
    return y < -1.0f ? (T)(-1.0f) : y;
}
// @abs
#define f_abs(a) AS_T(AS_M(a) & 0x7fffffff)
// @int_abs
static inline T f_abs(T a) { return where(a < (T)(0), -a, a); }
// @int_fmod
static inline T f_fmod(T a, T b) {
    // x / 0 is 0 as in NumPy; x / -1 would trap for the smallest integer
    T d = where((b == (T)(0)) | ((b == (T)(-1)) & ((T)(-1) < (T)(0))), 1, b);
    return where(b == (T)(0), 0, a % d);
}
// @int_pow
static inline T f_pow(T a, T b) {
    T y = (T)(1), base = a, e = where(b < (T)(0), 0, b);
    while (SOME(e > (T)(0))) {
        y = where((e & (T)(1)) != (T)(0), y * base, y);
        base = base * base;
        e = e / (T)(2);
    }
    T unit = where((b & (T)(1)) == (T)(0), 1, a);   // of a = -1
    T below = where(a == (T)(1), 1, where(a == (T)(-1), unit, 0));
    return where(b < (T)(0), below, y);
}
// @double_fmod
// Exact, where builtins of some drivers are not: a quotient below 2^52 is taken off in one fused step, which rounds
// nothing; a larger one in several, the divisor raised by a power of two.
static inline T f_fmod(T a, T b) {
    T r = fabs(a), d = fabs(b);
    M usable = (r < (T)(INFINITY)) & (d > 0.0) & (d < (T)(INFINITY));
    T rest = usable ? r : (T)(0.0), by = usable ? d : (T)(1.0);
    while (SOME(rest >= by)) {
        T step = by, q = rest / step;
        while (SOME(q >= 4503599627370496.0)) {
            M up = (AS_M(q) >> 52) - 1074;              // the power that leaves a quotient of about 2^51
            step = step * AS_T(((up > 0 ? up : (M)(0)) + 1023) << 52);
            q = rest / step;
        }
        rest = fma(-trunc(q), step, rest);
        rest = rest < 0.0 ? rest + step : rest;         // the quotient was rounded up
    }
    T y = copysign(rest, a);
    return usable ? y : (r < (T)(INFINITY)) & (d == (T)(INFINITY)) ? a : (T)(NAN);
}
// @quarter
// x = q * pi/2 + r with |r| <= pi/4, reduced in double precision: right up to |x| = 2^30.
static inline T f_quarter(T x, M* q) {
    D d = CONVERT_D(x);
    D k = d * 0.63661977236758134 + 6755399441055744.0;   // 1.5 * 2^52 rounds to an integer kept in the low bits
    *q = CONVERT_M(AS_L(k) & 3);
    k = k - 6755399441055744.0;
    return CONVERT_T((d - k * 1.5707963267341256) - k * 6.077100506506192e-11);
}
static inline T quarter_sin(T r) {
    T z = r * r;
    T p = z * 2.72503840e-6f - 1.98400918e-4f;
    p = p * z + 8.33333189e-3f;
    p = p * z - 1.66666667e-1f;
    return p * z * r + r;
}
static inline T quarter_cos(T r) {
    T z = r * r;
    T p = z * -2.76966464e-7f + 2.48040615e-5f;
    p = p * z - 1.38888945e-3f;
    p = p * z + 4.16666667e-2f;
    return p * z * z - 0.5f * z + 1.0f;
}
// @sin
static inline T f_sin(T x) {
    M q;
    T r = f_quarter(x, &q);
    T y = (q & 1) == 0 ? quarter_sin(r) : quarter_cos(r);
    return (q & 2) == 0 ? y : -y;
}
// @cos
static inline T f_cos(T x) {
    M q;
    T r = f_quarter(x, &q);
    T y = (q & 1) == 0 ? quarter_cos(r) : quarter_sin(r);
    return ((q + 1) & 2) == 0 ? y : -y;
}
// @tan
static inline T f_tan(T x) {
    M q;
    T r = f_quarter(x, &q);
    T s = quarter_sin(r), c = quarter_cos(r);
    return (q & 1) == 0 ? s / c : -c / s;
}
// @quotient
static inline T f_quotient(T a, T b) { return a / b; }
// @int_quotient
static inline T f_quotient(T a, T b) {
    // x / 0 is 0 as in NumPy; the smallest integer / -1 would trap
    M opposite = (b == (T)(-1)) & ((T)(-1) < (T)(0));
    T q = a / where((b == (T)(0)) | opposite, 1, b);
    return where(b == (T)(0), 0, where(opposite, -a, q));
}
// @int_lshift
static inline T f_lshift(T a, T b) { return where((b < (T)(0)) | (b >= (T)(BITS)), 0, a << b); }
// @int_rshift
static inline T f_rshift(T a, T b) {
    // a distance that is no place of a bit counts as a far one
    M far = (b < (T)(0)) | (b >= (T)(BITS));
    return a >> where(far, BITS - 1, b) >> where(far, 1, 0);
}
// @erfinv
static inline T f_erfinv(T x) {
    // Giles 2010, "Approximating the erfinv function": polynomials in the middle and in the tails
    T w = -f_log((1.0f - x) * (1.0f + x));
    T s = w - 2.5f, t = f_sqrt(w) - 3.0f;
    T p = s * 2.81022636e-08f + 3.43273939e-07f;
    p = p * s - 3.5233877e-06f;
    p = p * s - 4.39150654e-06f;
    p = p * s + 2.1858087e-04f;
    p = p * s - 1.25372503e-03f;
    p = p * s - 4.17768164e-03f;
    p = p * s + 2.46640727e-01f;
    p = p * s + 1.50140941f;
    T q = t * -2.00214257e-04f + 1.00950558e-04f;
    q = q * t + 1.34934322e-03f;
    q = q * t - 3.67342844e-03f;
    q = q * t + 5.73950773e-03f;
    q = q * t - 7.6224613e-03f;
    q = q * t + 9.43887047e-03f;
    q = q * t + 1.00167406f;
    q = q * t + 2.83297682f;
    T y = (w < 5.0f ? p : q) * x;
    return w == INFINITY ? x * INFINITY : y;
}
// @double_erfinv
static inline T f_erfinv(T x) {
    // a start within a few percent, then steps of Halley's, each of which triples the right digits
    T size = fabs(x), rest = 1.0 - fabs(x);
    T far = -f_log(rest * 1.7724538509055160);
    T y = size < 0.9 ? 0.8862269254527580 * size * (1.0 + 0.2617993877991494 * size * size)
                     : f_sqrt(far - 0.5 * f_log(far));
    for (int i = 0; i < 4; i++) {
        T e = (size < 0.5 ? f_erf(y) - size : rest - f_erfc(y)) / (1.1283791670955126 * f_exp(-y * y));
        y = y - e / (1.0 + y * e);
    }
    y = size < 1.0 ? y : size == 1.0 ? (T)(INFINITY) : (T)(NAN);
    return copysign(y, x);
}
