typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#if !defined(__clang__)
// With jumps threaded gcc computes what follows a clamp once more for its bound (47 instructions of tanh, not 37). With
// expressions replaced, gcc 12 loads by a pointer behind its increment where several masked loads share one.
#pragma GCC optimize("no-thread-jumps", "no-tree-ter")
#endif

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define SF_HAS_FMA 1
#define SF_FMA(a, b, c) __builtin_fmaf(a, b, c)
#define SF_FMAD(a, b, c) __builtin_fma(a, b, c)
#else  // of float32 in float64, where products are exact: reductions of arguments rely on that
#define SF_HAS_FMA 0
#define SF_FMA(a, b, c) ((f32)((f64)(a) * (f64)(b) + (f64)(c)))
#define SF_FMAD(a, b, c) ((a) * (b) + (c))
#endif
#define SF_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)  // whose loops call no vector forms of functions that it compiles
#define SF_CALLED SF_INLINE
#else
#define SF_CALLED static __attribute__((simd("notinbranch"), noinline, const, nothrow))
#endif
#if __has_builtin(__builtin_assoc_barrier)  // gcc takes a cast to an integer and back for trunc(x): -0, nan and 1e30 stay
#define SF_WHOLE(x) __builtin_assoc_barrier(x)
#else
#define SF_WHOLE(x) (x)
#endif
#define SF_BITS(T, x) __builtin_bit_cast(T, x)
#define SF_INF __builtin_inff()
#define SF_NAN __builtin_nanf("")

#if defined(SF_VECTOR_LIBM) && !defined(__clang__)
#define SF_LIBM extern "C" __attribute__((simd("notinbranch"), const, nothrow))
#else
#define SF_LIBM extern "C" __attribute__((const, nothrow))
#endif
#define SF_LIBM_1(name) SF_LIBM f64 name(f64); SF_LIBM f32 name##f(f32);
#define SF_LIBM_2(name) SF_LIBM f64 name(f64, f64); SF_LIBM f32 name##f(f32, f32);
SF_LIBM_1(exp) SF_LIBM_1(exp2) SF_LIBM_1(expm1) SF_LIBM_1(log) SF_LIBM_1(log2) SF_LIBM_1(log10) SF_LIBM_1(log1p)
SF_LIBM_1(sin) SF_LIBM_1(cos) SF_LIBM_1(tan) SF_LIBM_1(asin) SF_LIBM_1(acos) SF_LIBM_1(atan)
SF_LIBM_1(sinh) SF_LIBM_1(cosh) SF_LIBM_1(tanh) SF_LIBM_1(asinh) SF_LIBM_1(acosh) SF_LIBM_1(atanh)
SF_LIBM_1(erf) SF_LIBM_1(erfc) SF_LIBM_2(pow) SF_LIBM_2(atan2) SF_LIBM_2(hypot)

// ---- storage formats

SF_INLINE f32 sf_load_bf16(u16 x) { return SF_BITS(f32, (u32)x << 16); }

SF_INLINE u16 sf_store_bf16(f32 x) {
  u32 u = SF_BITS(u32, x);
  u32 r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (u16)(x != x ? 0x7fc0u : r);
}

SF_INLINE u16 sf_pack_bf16(f32 x) { return (u16)(SF_BITS(u32, x) >> 16); }  // of a value that is rounded already

SF_INLINE f32 sf_round_bf16(f32 x) {
  u32 u = SF_BITS(u32, x);
  u32 r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return SF_BITS(f32, x != x ? 0x7fc00000u : r);
}

// By bits: compilers make vectors of this, and none of _Float16 where a processor computes with float32 alone.
// a: without the sign; from 2**16 on (0x47800000, as a half 0x0f800000) it is infinite or no number. A float32 that is
// added to 2**13 times its own power of two, which is at least 2**-14 (0x38800000), is rounded to the places of a half.
// No float32 on the way is denormal: where these count as zeros, small halves are still what they are, as in ATen.

SF_INLINE f32 sf_load_f16(u16 x) {
  i32 a = (x & 0x7fff) << 13, small = SF_BITS(i32, SF_BITS(f32, a + 0x38800000) - 0x1p-14f);
  i32 r = a + (a >= 0x0f800000 ? 0x70000000 : 0x38000000);
  return SF_BITS(f32, (u32)(a < 0x00800000 ? small : r) | (u32)(x & 0x8000) << 16);
}

SF_INLINE u16 sf_store_f16(f32 x) {
  u32 u = SF_BITS(u32, x);
  i32 a = u & 0x7fffffffu, e = a & 0x7f800000;
  e = e < 0x38800000 ? 0x38800000 : e;
  u32 over = e + 0x06800000u, places = SF_BITS(u32, SF_BITS(f32, a) + SF_BITS(f32, over)) - over;
  u32 large = a > 0x7f800000 ? 0x7e00 | (a >> 13 & 0x3ff) : 0x7c00;
  return (u16)((a < 0x47800000 ? places + ((e - 0x38800000) >> 13) : large) | (u >> 16 & 0x8000u));
}

SF_INLINE u16 sf_pack_f16(f32 x) {  // of a value that is rounded already
  u32 u = SF_BITS(u32, x);
  i32 a = u & 0x7fffffffu, small = SF_BITS(i32, SF_BITS(f32, a) + 0.5f) - 0x3f000000;
  i32 large = a >= 0x7f800000 ? 0x7c00 | (a >> 13 & 0x3ff) : (a >> 13) - 0x1c000;
  return (u16)((a < 0x38800000 ? small : large) | (u >> 16 & 0x8000u));
}

SF_INLINE f32 sf_round_f16(f32 x) {
  u32 u = SF_BITS(u32, x);
  i32 a = u & 0x7fffffffu, e = a & 0x7f800000;
  f32 over = SF_BITS(f32, (e < 0x38800000 ? 0x38800000 : e) + 0x06800000u);
  i32 large = a > 0x7f800000 ? (a | 0x400000) & ~0x1fff : 0x7f800000;
  i32 r = a < 0x477ff000 ? SF_BITS(i32, SF_BITS(f32, a) + over - over) : large;
  return SF_BITS(f32, r | (u & 0x80000000u));
}

// ---- float32, at most 2 ulp unless said otherwise

template <class... C> SF_INLINE f32 sf_horner(f32 x, f32 p, C... c) { ((p = SF_FMA(p, x, c)), ...); return p; }
template <class... C> SF_INLINE f64 sf_horner(f64 x, f64 p, C... c) { ((p = SF_FMAD(p, x, c)), ...); return p; }

SF_INLINE f32 sf_exp_reduced_f32(f32 x, f32 n) {  // x - n * log(2)
  return SF_FMA(n, -1.42860677e-6f, SF_FMA(n, -0.693145752f, x));
}

#define SF_EXP_SHIFT 12583166.0f  // 1.5 * 2**23 + 254

SF_INLINE i32 sf_exp_bits_f32(f32 z) {
  // Of z = n + SF_EXP_SHIFT: half of the last bits is the exponent of one power of two, the rest that of another, and
  // their product is 2**n. n is clamped, as an integer (which is one instruction), x is not: for larger ones the
  // polynomial is large or infinite.
  i32 bits = SF_BITS(i32, z), least = 0x4b4000fe - 151, most = 0x4b4000fe + 129;
  bits = bits < least ? least : bits;
  return bits > most ? most : bits;
}

SF_INLINE f32 sf_exp_scaled_f32(f32 r, i32 bits) {
  // exp(r) * 2**n for |r| <= log(2)/2, n in bits, in two steps: results below the normal range round once
  f32 p = sf_horner(r, 1.37805939e-3f, 8.37312452e-3f, 4.16695364e-2f, 1.66664720e-1f, 4.99999851e-1f, 1.0f, 1.0f);
  i32 h = bits >> 1;
  return p * SF_BITS(f32, h << 23) * SF_BITS(f32, (bits - h) << 23);
}

SF_INLINE f32 sf_exp_f32(f32 x) {
  i32 bits = sf_exp_bits_f32(SF_FMA(x, 1.44269504f, SF_EXP_SHIFT));
  f32 y = sf_exp_scaled_f32(sf_exp_reduced_f32(x, SF_BITS(f32, bits) - SF_EXP_SHIFT), bits);
  return x < -104.0f ? 0.0f : y;
}

SF_INLINE f32 sf_exp2_f32(f32 x) {
  i32 bits = sf_exp_bits_f32(x + SF_EXP_SHIFT);
  f32 y = sf_exp_scaled_f32((x - (SF_BITS(f32, bits) - SF_EXP_SHIFT)) * 0.693147181f, bits);
  return x < -151.0f ? 0.0f : y;
}

SF_INLINE f32 sf_expm1_f32(f32 a) {
  f32 x = a > 89.0f ? 89.0f : a;
  x = x < -25.0f ? -25.0f : x;
  f32 z = SF_FMA(x, 1.44269504f, 12582912.0f), r = sf_exp_reduced_f32(x, z - 12582912.0f);
  f32 p = sf_horner(r, 1.98412698e-4f, 1.38888889e-3f, 8.33333333e-3f, 4.16666667e-2f, 1.66666667e-1f, 0.5f);
  p = SF_FMA(p * r, r, r);
  f32 s = SF_BITS(f32, (SF_BITS(i32, z) - 0x4b400000 + 126) << 23);
  f32 y = SF_FMA(s, p, s - 0.5f);
  return a == 0.0f ? a : y + y;
}

SF_INLINE f32 sf_log1p_reduced_f32(f32 f) {
  // log(1 + f) for f in [-1/3, 1/3]
  f32 s = f * f;
  f32 r = SF_FMA(-0.130310059f, s, -0.121483684f), t = SF_FMA(0.140869141f, s, 0.139814854f);
  return SF_FMA(sf_horner(f, r, t, -0.166846126f, 0.200120345f, -0.249996200f, 0.333331972f, -0.5f), s, f);
}

SF_INLINE f32 sf_log_special_f32(f32 x, f32 r) {
  r = x == 0.0f ? -SF_INF : r;
  r = x < 0.0f ? SF_NAN : r;
  return x < SF_INF ? r : x;
}

SF_INLINE f32 sf_log_parts_f32(f32 x, f32 *k) {
  // log(m), and k: x is m * 2**k
  bool tiny = x < 1.17549435e-38f;
  f32 a = tiny ? x * 8388608.0f : x;
  i32 e = (SF_BITS(i32, a) - 0x3f2aaaab) & (i32)0xff800000;
  *k = SF_FMA((f32)e, 1.1920929e-7f, tiny ? -23.0f : 0.0f);
  return sf_log1p_reduced_f32(SF_BITS(f32, SF_BITS(i32, a) - e) - 1.0f);
}

SF_INLINE f32 sf_log_f32(f32 x) {
  f32 k, p = sf_log_parts_f32(x, &k);
  return sf_log_special_f32(x, SF_FMA(k, 0.693147182f, p));
}

SF_INLINE f32 sf_log2_f32(f32 x) {
  f32 k, p = sf_log_parts_f32(x, &k);
  return sf_log_special_f32(x, SF_FMA(p, 1.44269502f, SF_FMA(p, 1.92596299e-8f, k)));
}

SF_INLINE f32 sf_log10_f32(f32 x) {
  f32 k, p = sf_log_parts_f32(x, &k);
  return sf_log_special_f32(x, SF_FMA(k, 0.30102998f, SF_FMA(p, 0.434294482f, k * 1.4320989e-8f)));
}

SF_INLINE f32 sf_log1p_f32(f32 x) {
  f32 u = 1.0f + x;
  f32 c = x - (u - 1.0f);
  i32 e = (SF_BITS(i32, u) - 0x3f2aaaab) & (i32)0xff800000;
  f32 m = SF_BITS(f32, SF_BITS(i32, u) - e);
  f32 scale = SF_BITS(f32, e > 0x20000000 ? 0 : 0x3f800000 - e);
  f32 f = SF_FMA(c, scale, m - 1.0f);
  f32 r = SF_FMA((f32)e * 1.1920929e-7f, 0.693147182f, sf_log1p_reduced_f32(f));
  r = x == -1.0f ? -SF_INF : r;
  r = x < -1.0f ? SF_NAN : r;
  r = x < SF_INF ? r : x;
  return x == 0.0f ? x : r;
}

SF_INLINE f32 sf_tanh_f32(f32 x) {
  f32 y = __builtin_fabsf(x);
  f32 e = sf_expm1_f32(y > 10.0f ? 20.0f : y + y);
  return __builtin_copysignf(e / (e + 2.0f), x);
}

SF_INLINE f32 sf_sigmoid_f32(f32 x) {
  f32 e = sf_exp_f32(-__builtin_fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

SF_INLINE f32 sf_erf_f32(f32 a) {
  // 1 - exp(r) with r = log(1 - erf(t)) = -t * (1 + polynomial) for t = |a|, by least squares up to 4, where erf is 1
  f32 t = __builtin_fabsf(a);
  t = t > 4.0f ? 4.0f : t;
  f32 t2 = t * t;
  f32 even = sf_horner(t2, 9.25896711e-06f, 0.000632930081f, 0.000160586322f, -0.102777794f, -0.128379166f);
  f32 odd = sf_horner(t2, -0.000117666328f, -0.00166720652f, 0.0191529524f, -0.636619389f);
  f32 q = SF_FMA(odd, t, even);
  f32 x = SF_FMA(q, t, -t);
  f32 z = SF_FMA(x, 1.44269504f, 12582912.0f);
  f32 n = z - 12582912.0f;
  f32 s = SF_BITS(f32, (SF_BITS(i32, z) << 23) + 0x3f800000);  // 2**n: n is -26 to 0
  f32 y = SF_FMA(n, -0.693147182f, x);  // exp(y) - 1
  f32 p = sf_horner(y, 1.98412698e-4f, 1.38888889e-3f, 8.33333333e-3f, 4.16666667e-2f, 1.66666667e-1f, 0.5f);
  p = SF_FMA(p * y, y, y);
  return a != a ? a : __builtin_copysignf(SF_FMA(-s, p, 1.0f - s), a);
}

static constexpr struct sf_turns {  // 2**(20 + i) / (2*pi) without its whole part: the first 64 bits, and the 40 after them
  u64 high[85], low[85];
  constexpr sf_turns() : high(), low() {
    u64 a = 0x0db9391054a7f09dull, b = 0x5f47d4d377036d8aull, c = 0x5664f10e4107f940ull;
    for (int i = 0; i < 85; i++, a = a << 1 | b >> 63, b = b << 1 | c >> 63, c <<= 1) high[i] = a, low[i] = b >> 24;
  }
} sf_turns;

SF_INLINE f64 sf_exact_product_sum_f64(f64 a, f64 b, f64 c) {
  // a * b + c, as good as if fused; without FMA by Dekker's product: what a * b loses is added to the sum
  if (SF_HAS_FMA) return SF_FMAD(a, b, c);
  f64 p = a * b, s = 134217729.0 * a, t = 134217729.0 * b;
  f64 ah = s - (s - a), al = a - ah, bh = t - (t - b), bl = b - bh;
  return (p + c) + ((((ah * bh - p) + ah * bl) + al * bh) + al * bl);
}

SF_INLINE f64 sf_quarter_turns_f32(f32 x, i32 *quadrant) {
  // x - n*pi/2 in float64 with a two-part pi/2 up to 2**43; above, the turns of 24 bits at a known exponent
  f64 a = x;
  f64 z = SF_FMAD(a, 0.63661977236758134308, 6755399441055744.0);
  f64 n = z - 6755399441055744.0;
  f64 near = SF_FMAD(n, -6.123233995736766e-17, sf_exact_product_sum_f64(n, -1.5707963267948966, a));
  i32 bits = SF_BITS(i32, x);
  i32 row = ((bits >> 23) & 255) - 170;
  row = row < 0 ? 0 : row > 84 ? 84 : row;
  u64 m = (u64)((bits & 0x7fffff) | 0x800000);
  u64 turns = m * sf_turns.high[row] + ((m * sf_turns.low[row]) >> 40);
  u64 quarter = (turns + 0x2000000000000000ull) >> 62;
  f64 far = (f64)(i64)(turns - (quarter << 62)) * 3.4061215800865545e-19;
  i32 is_far = __builtin_fabsf(x) >= 8796093022208.0f;
  i32 q = (i32)quarter;
  *quadrant = is_far ? (bits < 0 ? -q : q) : (i32)SF_BITS(i64, z);
  return is_far ? (bits < 0 ? -far : far) : near;
}

SF_INLINE f32 sf_sine_of_turns_f32(f64 r, i32 q) {
  f64 s = r * r;
  f64 c = sf_horner(s, -2.7557313707070068e-7, 2.4801587302e-5, -1.3888888888888889e-3, 4.1666666666666664e-2, -0.5,
                       1.0);
  f64 t = sf_horner(s, 2.7557313707e-6, -1.9841269841e-4, 8.3333333333e-3, -1.6666666666666666e-1);
  t = SF_FMAD(t * s, r, r);
  f32 y = (f32)(q & 1 ? c : t);
  return q & 2 ? -y : y;
}

SF_INLINE f32 sf_sin_f32(f32 x) {
  i32 q;
  f64 r = sf_quarter_turns_f32(x, &q);
  f32 y = sf_sine_of_turns_f32(r, q);
  y = x == 0.0f ? x : y;
  return __builtin_fabsf(x) < SF_INF ? y : SF_NAN;
}

SF_INLINE f32 sf_cos_f32(f32 x) {
  i32 q;
  f64 r = sf_quarter_turns_f32(x, &q);
  f32 y = sf_sine_of_turns_f32(r, q + 1);
  return __builtin_fabsf(x) < SF_INF ? y : SF_NAN;
}

// The same for |x| < 32768, in float32 alone: a loop takes them where no argument of it is larger (see range_guard in statements.py).

SF_INLINE f32 sf_near_quarter_turns_f32(f32 x, f32 *rest, i32 *quadrant) {
  // x - n*pi/2 by a three-part pi/2: the first difference is exact, `rest` is what the second one and its product lose
  f32 z = SF_FMA(x, 0.636619747f, 12582912.0f);
  f32 n = z - 12582912.0f;
  f32 first = SF_FMA(n, -1.57079625f, x);
  f32 p = n * 7.54978942e-8f, lost = SF_FMA(n, 7.54978942e-8f, -p);
  f32 r = first - p;
  *rest = SF_FMA(n, -5.39030253e-15f, ((first - r) - p) - lost);
  *quadrant = SF_BITS(i32, z);
  return r;
}

SF_INLINE f32 sf_near_sine_of_turns_f32(f32 r, f32 rest, i32 q) {
  f32 s = r * r;
  f32 c = sf_horner(s, 2.44331571e-5f, -1.38873162e-3f, 4.16666456e-2f);
  f32 half = s * 0.5f, w = 1.0f - half;
  c = w + (((1.0f - w) - half) + SF_FMA(c, s * s, -r * rest));
  f32 t = sf_horner(s, -1.95152959e-4f, 8.33216087e-3f, -1.66666546e-1f);
  t = r + SF_FMA(t * s, r, rest);
  f32 y = q & 1 ? c : t;
  return q & 2 ? -y : y;
}

SF_INLINE f32 sf_near_sin_f32(f32 x) {
  i32 q;
  f32 rest, r = sf_near_quarter_turns_f32(x, &rest, &q);
  f32 y = sf_near_sine_of_turns_f32(r, rest, q);
  return x == 0.0f ? x : y;
}

SF_INLINE f32 sf_near_cos_f32(f32 x) {
  i32 q;
  f32 rest, r = sf_near_quarter_turns_f32(x, &rest, &q);
  return sf_near_sine_of_turns_f32(r, rest, q + 1);
}

SF_INLINE f64 sf_log2_of_f32(f32 a) {
  // log2 of a positive float in float64, to about 1e-12; 0 gives -inf, inf gives inf
  f64 x = a;
  i64 e = (SF_BITS(i64, x) - 0x3fe5555555555555ll) & (i64)0xfff0000000000000ull;
  f64 m = SF_BITS(f64, SF_BITS(i64, x) - e);
  f64 s = (m - 1.0) / (m + 1.0), w = s * s;
  f64 p = sf_horner(w, 2.0 / 15.0, 2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0);
  f64 k = (f64)(i32)(e >> 52);
  f64 r = SF_FMAD(p * s, 1.4426950408889634, k);
  r = a == 0.0f ? -(f64)SF_INF : r;
  return a < SF_INF ? r : x;
}

SF_INLINE f64 sf_exp2_narrow_f64(f64 t) {
  // 2**t for results that are rounded to float: |t| is cut at 200
  t = t > 200.0 ? 200.0 : t;
  t = t < -200.0 ? -200.0 : t;
  f64 z = t + 6755399441055744.0;
  f64 r = (t - (z - 6755399441055744.0)) * 0.69314718055994531;
  f64 p = sf_horner(r, 2.5052108385441720e-8, 2.7557319223985893e-7, 2.7557319223985888e-6, 2.4801587301587302e-5,
                       1.9841269841269841e-4, 1.3888888888888889e-3, 8.3333333333333333e-3, 4.1666666666666664e-2,
                       1.6666666666666666e-1, 0.5, 1.0, 1.0);
  i64 n = SF_BITS(i64, z) - 0x4338000000000000ll;
  return p * SF_BITS(f64, (n + 1023) << 52);
}

SF_INLINE f32 sf_pow_f32(f32 x, f32 y) {
  // gcc gives up on selects by conditions on y where y is a constant: what y decides are numbers and masks
  f32 a = __builtin_fabsf(x), half = y * 0.5f;
  bool whole = __builtin_rintf(y) == y;
  i32 odd = whole & (__builtin_rintf(half) != half) ? (i32)0x80000000 : 0;
  f32 negative = whole ? 1.0f : SF_NAN, unit = y == y ? 1.0f : SF_NAN;
  i32 one = y == 0.0f ? -1 : 0;
  f32 r = (f32)sf_exp2_narrow_f64((f64)y * sf_log2_of_f32(a));
  r = a == 1.0f ? unit : r;
  r = SF_BITS(f32, SF_BITS(i32, r) | (SF_BITS(i32, x) & odd));
  r = (x < 0.0f) & (a < SF_INF) ? r * negative : r;
  r = x != x ? SF_NAN : r;
  r = SF_BITS(f32, (SF_BITS(i32, r) & ~one) | (0x3f800000 & one));
  return x == 1.0f ? 1.0f : r;
}

SF_INLINE f32 sf_erfinv_f32(f32 x) {
  // erfinv(x) / x is smooth in w = -log(1 - x*x) up to 5 and in sqrt(w) above (M. Giles): minimax polynomials, to 1e-8,
  // whose last step is in float64
  f32 a = __builtin_fabsf(x), w = -sf_log_f32((1.0f - a) * (1.0f + a)), v = __builtin_sqrtf(w) - 3.0f;
  f32 p = sf_horner(w, -8.79113049e-9f, 2.21033119e-7f, -1.97648637e-6f, 3.98336897e-6f, 4.45648147e-5f,
                    -1.27480918e-4f, -2.33429694e-3f, 1.15486542e-2f, 2.32013822e-1f);
  f32 q = sf_horner(v, 1.13640781e-4f, -3.07749026e-4f, -5.37636479e-5f, 1.48285611e-3f, -3.59898806e-3f,
                    5.68780815e-3f, -7.63695501e-3f, 9.44519229e-3f, 1.00167489f);
  bool middle = w < 5.0f;
  f64 first = middle ? 0.88622692049758816 : 2.8329768027096334;
  f32 r = (f32)((f64)x * SF_FMAD((f64)(middle ? w : v), (f64)(middle ? p : q), first));
  r = a == 1.0f ? __builtin_copysignf(SF_INF, x) : r;
  return a <= 1.0f ? r : SF_NAN;
}

// ---- float64: the C library's functions, and what it lacks

SF_INLINE f64 sf_sigmoid_f64(f64 x) {
  f64 e = exp(-__builtin_fabs(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

SF_INLINE f64 sf_erfinv_f64(f64 x) {
  f64 w = -log1p(-x * x);
  f64 h = 4.3307467508 - w * 0.5;
  f64 y = __builtin_copysign(__builtin_sqrt(__builtin_sqrt(h * h + w / 0.147) - h), x);
  for (int k = 0; k < 5; k++) {
    f64 miss = __builtin_fabs(y) < 1.0 ? erf(y) - x : (x > 0 ? (1.0 - x) - erfc(y) : erfc(-y) - (1.0 + x));
    y -= miss * 0.88622692545275801 * exp(y * y);
  }
  y = x == 0.0 ? x : y;
  y = __builtin_fabs(x) == 1.0 ? __builtin_copysign(__builtin_inf(), x) : y;
  return __builtin_fabs(x) <= 1.0 ? y : __builtin_nan("");
}

static inline f64 sf_digamma_f64(f64 x) {
  // reflection below 0, recurrence up to 10, then the asymptotic series (Cephes psi)
  if (x == 0.0) return __builtin_copysign(__builtin_inf(), -x);
  f64 extra = 0.0;
  if (x < 0.0) {
    if (__builtin_floor(x) == x) return __builtin_nan("");
    f64 whole = __builtin_trunc(x);
    extra = -3.14159265358979323846 / tan(3.14159265358979323846 * (x - whole));
    x = 1.0 - x;
  }
  while (x < 10.0) { extra -= 1.0 / x; x += 1.0; }
  f64 z = 1.0 / (x * x);
  f64 p = sf_horner(z, 8.33333333333333333333e-2, -2.10927960927960927961e-2, 7.57575757575757575758e-3,
                    -4.16666666666666666667e-3, 3.96825396825396825397e-3, -8.33333333333333333333e-3,
                    8.33333333333333333333e-2);
  return extra + log(x) - 0.5 / x - p * z;
}

static inline f32 sf_digamma_f32(f32 x) { return (f32)sf_digamma_f64(x); }

SF_INLINE f32 sf_lgamma_f32(f32 v) {
  // reflection below 1/2, recurrence up to 10, then Stirling's series, all in float64
  f64 x = v;
  f64 a = x < 0.5 ? 1.0 - x : x;
  f64 raised = a * (a + 1.0) * (a + 2.0) * (a + 3.0) * (a + 4.0) * (a + 5.0) * (a + 6.0) * (a + 7.0) * (a + 8.0) * (a + 9.0);
  f64 y = a < 10.0 ? a + 10.0 : a;
  f64 z = 1.0 / (y * y);
  f64 p = sf_horner(z, -1.91752691752691752692e-3, 8.41750841750841750842e-4, -5.95238095238095238095e-4,
                    7.93650793650793650794e-4, -2.77777777777777777778e-3, 8.33333333333333333333e-2);
  f64 s = (y - 0.5) * log(y) - y + 0.91893853320467274178 + p / y;
  s = a < 10.0 ? s - log(raised) : s;
  s = (a == 1.0) | (a == 2.0) ? 0.0 : s;
  f64 t = __builtin_fabs(sin(3.14159265358979323846 * (x - __builtin_rint(x))));
  s = x < 0.5 ? log(3.14159265358979323846 / t) - s : s;
  return __builtin_fabs(x) == __builtin_inf() ? SF_INF : (f32)s;
}

// ---- random numbers

static inline f32 sf_philox(i64 seed, i64 offset, i64 e, i64 threads, i64 width) {
  // Philox4x32-10, and the place of element e among the draws of ATen's kernels on a GPU: see the loop op `philox`
  i64 group = e / width, within = e % width, turn = e / threads;
  i64 thread = width == 1 ? e % threads : group % threads;
  i64 call = width == 1 ? turn / 4 : group / threads * (width > 4 ? width / 4 : 1) + within / 4;
  u64 start = (u64)offset / 4 + (u64)call;
  u32 k0 = (u32)seed, k1 = (u32)((u64)seed >> 32), c[4] = {(u32)start, (u32)(start >> 32), (u32)thread, 0};
  for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
    u64 left = 0xd2511f53ull * c[0], right = 0xcd9e8d57ull * c[2];
    c[0] = (u32)(right >> 32) ^ c[1] ^ k0;
    c[2] = (u32)(left >> 32) ^ c[3] ^ k1;
    c[1] = (u32)right;
    c[3] = (u32)left;
  }
  return (f32)c[(width == 1 ? turn : within) & 3] * 0x1p-32f + 0x1p-33f;
}

// ---- choices; maximum and minimum give nan if either is nan

template <class T> SF_INLINE T sf_maximum(T a, T b) {
  // two selects: a condition with || becomes branches, which gcc does not make vectors of
  T c = b >= a ? b : a;
  return b != b ? b : c;
}

template <class T> SF_INLINE T sf_minimum(T a, T b) {
  T c = b <= a ? b : a;
  return b != b ? b : c;
}

template <class T> SF_INLINE T sf_fmax(T a, T b) {
  T c = a > b ? a : b;
  return b != b ? a : c;
}

template <class T> SF_INLINE T sf_fmin(T a, T b) {
  T c = a < b ? a : b;
  return b != b ? a : c;
}

SF_INLINE f32 sf_copysign(f32 a, f32 b) { return __builtin_copysignf(a, b); }
SF_INLINE f64 sf_copysign(f64 a, f64 b) { return __builtin_copysign(a, b); }

template <class T, class I> SF_INLINE T sf_next(T a, T b, I u) {
  T next = SF_BITS(T, u + ((a < b) == (u >= 0) ? 1 : -1));
  next = a == 0 ? sf_copysign(SF_BITS(T, (I)1), b) : next;
  return a != a || b != b ? a + b : a == b ? b : next;
}

SF_INLINE f32 sf_nextafter(f32 a, f32 b) { return sf_next(a, b, SF_BITS(i32, a)); }
SF_INLINE f64 sf_nextafter(f64 a, f64 b) { return sf_next(a, b, SF_BITS(i64, a)); }

SF_INLINE f32 sf_fmod(f32 a, f32 b) { return __builtin_fmodf(a, b); }
SF_INLINE f64 sf_fmod(f64 a, f64 b) { return __builtin_fmod(a, b); }

SF_INLINE f32 sf_floor(f32 x) { return __builtin_floorf(x); }
SF_INLINE f64 sf_floor(f64 x) { return __builtin_floor(x); }

// The same for |a| < 2**28 * |b| (see range_guard in statements.py): the quotient has 28 bits and its product with b 52, nothing is rounded.

SF_INLINE f32 sf_near_fmod(f32 a, f32 b) {
  f64 q = __builtin_trunc((f64)a / (f64)b);
  f32 r = (f32)((f64)a - q * (f64)b);
  return q == 0.0 ? a : __builtin_copysignf(r, a);
}

template <class T> SF_INLINE T sf_signed_rest(T r, T b) { return r != 0 && (r < 0) != (b < 0) ? r + b : r; }

template <class T> SF_INLINE T sf_remainder(T a, T b) { return sf_signed_rest(sf_fmod(a, b), b); }

SF_INLINE f32 sf_near_remainder(f32 a, f32 b) { return sf_signed_rest(sf_near_fmod(a, b), b); }

template <class T> SF_INLINE T sf_floor_div(T a, T b) {
  // as c10::div_floor_floating
  if (b == 0) return a / b;
  T m = sf_fmod(a, b), d = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) d -= 1;
  if (d == 0) return sf_copysign((T)0, a / b);
  T f = sf_floor(d);
  return d - f > (T)0.5 ? f + 1 : f;
}

SF_INLINE f32 sf_near_floor_div(f32 a, f32 b) {
  f32 m = sf_near_fmod(a, b), d = (a - m) / b;
  d = m != 0.0f && (b < 0.0f) != (m < 0.0f) ? d - 1.0f : d;
  f32 f = sf_floor(d);
  f = d - f > 0.5f ? f + 1.0f : f;
  return d == 0.0f ? __builtin_copysignf(0.0f, a / b) : f;
}

// ---- integers; division by 0 gives 0 here and is reported by the kernel

SF_INLINE i64 sf_trunc_div_i64(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? -a : a / b; }

SF_INLINE i64 sf_fmod_i64(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }

SF_INLINE i64 sf_floor_div_i64(i64 a, i64 b) {
  i64 q = sf_trunc_div_i64(a, b);
  return b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

SF_INLINE i64 sf_remainder_i64(i64 a, i64 b) { return sf_signed_rest(sf_fmod_i64(a, b), b); }

SF_INLINE u64 sf_trunc_div_u64(u64 a, u64 b) { return b == 0 ? 0 : a / b; }

SF_INLINE u64 sf_remainder_u64(u64 a, u64 b) { return b == 0 ? 0 : a % b; }

SF_INLINE i64 sf_pow_i64(i64 x, i64 y) {
  // a negative exponent gives 1/x towards zero, as torch does
  if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
  i64 r = 1;
  for (u64 n = (u64)y; n; n >>= 1) { if (n & 1) r *= x; x *= x; }
  return r;
}

// ---- tiles

template <class T> SF_INLINE void sf_transpose_8x8(const T *from, i64 step, T *to, i64 pitch) {
  // three rounds of perfect shuffles of the rows
  typedef T V __attribute__((vector_size(8 * sizeof(T)), aligned(sizeof(T)), may_alias));
  V a[8], b[8];
  for (int k = 0; k < 8; k++) a[k] = *(const V *)(from + k * step);
  for (int round = 0; round < 3; round++) {
    for (int k = 0; k < 4; k++) {
      b[2 * k] = __builtin_shufflevector(a[k], a[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      b[2 * k + 1] = __builtin_shufflevector(a[k], a[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int k = 0; k < 8; k++) a[k] = b[k];
  }
  for (int k = 0; k < 8; k++) *(V *)(to + k * pitch) = a[k];
}

template <class T> static void sf_tile(const T *from, i64 step, i64 rows, i64 columns, T *to, i64 pitch) {
  // to[c * pitch + r] = from[r * step + c]: each row of `from` is read along memory
  i64 r = 0;
  for (; r + 8 <= rows; r += 8) {
    i64 c = 0;
    for (; c + 8 <= columns; c += 8) sf_transpose_8x8(from + r * step + c, step, to + c * pitch + r, pitch);
    for (; c < columns; c++)
      for (i64 k = r; k < r + 8; k++) to[c * pitch + k] = from[k * step + c];
  }
  for (; r < rows; r++)
    for (i64 c = 0; c < columns; c++) to[c * pitch + r] = from[r * step + c];
}

// ---- tiles of products

#if defined(__AVX512F__)
#define SF_LANES 16
#elif defined(__AVX__)
#define SF_LANES 8
#else
#define SF_LANES 4
#endif

template <int ROWS, int WIDTH> SF_INLINE void sf_tile_rows(i64 depth, const f32 *a, i64 step, const f32 *b, f32 *c) {
  typedef f32 lanes __attribute__((vector_size(SF_LANES * 4), aligned(4), may_alias));
  for (i64 j = 0; j < WIDTH; j += 2 * SF_LANES) {
    lanes t[ROWS][2];
    for (int r = 0; r < ROWS; r++)
      for (int v = 0; v < 2; v++) t[r][v] = *(const lanes *)(c + r * WIDTH + j + v * SF_LANES);
    for (i64 k = 0; k < depth; k++) {
      const lanes x = *(const lanes *)(b + k * WIDTH + j), y = *(const lanes *)(b + k * WIDTH + j + SF_LANES);
      for (int r = 0; r < ROWS; r++) t[r][0] += a[r * step + k] * x, t[r][1] += a[r * step + k] * y;
    }
    for (int r = 0; r < ROWS; r++)
      for (int v = 0; v < 2; v++) *(lanes *)(c + r * WIDTH + j + v * SF_LANES) = t[r][v];
  }
}

// c += a b: so many rows of WIDTH columns, a multiple of 32; rows of a are `step` apart
template <int WIDTH> static void sf_tile_product(i64 rows, i64 depth, const f32 *a, i64 step, const f32 *b, f32 *c) {
  i64 r = 0;
  for (; r + 4 <= rows; r += 4) sf_tile_rows<4, WIDTH>(depth, a + r * step, step, b, c + r * WIDTH);
  for (; r < rows; r++) sf_tile_rows<1, WIDTH>(depth, a + r * step, step, b, c + r * WIDTH);
}
