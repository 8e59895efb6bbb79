// math.cl: float functions over a vector T without OpenCL builtins, and the integer forms of dialect functions.
// Some CPU drivers leave builtins as function calls with every register spilled; these inline. Relative error about
// 1e-7; NaN, infinities, zeros and (for exp and log) denormals follow IEEE. M is the integer vector as wide as T.
// Polynomials: own least-squares fits with the relative error evened out; exp: range reduction by 12582912.f = 1.5 * 2^23.
// Each block starts with its name; dialect.py takes the blocks it needs.

// @exp
static inline T f_exp(T x) {
    T c = x < -104.0f ? (T)(-104.0f) : x;
    c = c > 89.0f ? (T)(89.0f) : c;
    T t = c * 1.44269504f + 12582912.0f;
    T k = t - 12582912.0f;
    T r = c - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    T p = r * 1.98756915e-4f + 1.39819995e-3f;
    p = p * r + 8.33345191e-3f;
    p = p * r + 4.16657959e-2f;
    p = p * r + 1.66666665e-1f;
    p = p * r + 5.00000012e-1f;
    p = p * r * r + r + 1.0f;
    M e = AS_M(t) - 0x4b400000;
    M h = e >> 1;                       // 2^e in two steps, so that overflow and denormals come out right
    return p * AS_T((h + 127) << 23) * AS_T((e - h + 127) << 23);
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
    T z = x * x;
    T p = z * 2.37613973e-3f - 8.41490569e-3f;
    p = p * z + 2.17898434e-2f;
    p = p * z - 5.39617468e-2f;
    p = p * z + 1.33333137e-1f;
    p = p * z - 3.33333332e-1f;
    T small = p * z * x + x;
    T a = x < 0.0f ? -x : x;
    T big = 1.0f - 2.0f / (f_exp(a + a) + 1.0f);
    return a < 0.6f ? small : x < 0.0f ? -big : big;
}
// @erf
static inline T f_erf(T x) {
    T a = x < 0.0f ? -x : x;
    T z = x * x;
    T p = z * -5.66013419e-04f + 4.92478427e-03f;
    p = p * z - 2.67177028e-02f;
    p = p * z + 1.12804114e-01f;
    p = p * z - 3.76123557e-01f;
    p = p * z + 1.12837913e+00f;
    T t = a > 4.0f ? (T)(4.0f) : a;
    T q = t * -1.85580589e-04f + 2.93967009e-03f;
    q = q * t - 2.18055627e-02f;
    q = q * t + 1.03037866e-01f;
    q = q * t + 6.38225120e-01f;
    q = q * t + 1.12704036e+00f;
    q = q * t + 3.53640950e-04f;
    T big = 1.0f - f_exp(-q);
    return a < 1.0f ? p * x : x < 0.0f ? -big : big;
}
// @abs
#define f_abs(a) AS_T(AS_M(a) & 0x7fffffff)
// @int_abs
static inline T f_abs(T a) { return where(a < 0, -a, a); }
// @int_fmod
static inline T f_fmod(T a, T b) {
    // x / 0 is 0 as in NumPy; x / -1 would trap for the smallest integer
    T d = where((b == 0) | ((b == (T)(-1)) & ((T)(-1) < (T)(0))), 1, b);
    return where(b == 0, 0, a % d);
}
// @int_pow
static inline T f_pow(T a, T b) {
    T y = (T)(1), base = a, e = where(b < 0, 0, b);
    for (int i = 0; i < 63; i++) {
        y = where((e & (T)(1)) != 0, y * base, y);
        base = base * base;
        e = e / (T)(2);
    }
    return where(b < 0, where(a == 1, 1, 0), y);
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
