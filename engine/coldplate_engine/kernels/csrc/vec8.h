// Eight floats at a time, in the compiler's own vector type: AVX2 registers on x86-64, pairs of NEON ones on aarch64.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "simd.h"

namespace coldplate {

typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline f32x8 load8(const float* p) {
  f32x8 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store8(float* p, f32x8 v) { std::memcpy(p, &v, sizeof v); }

inline f32x8 splat8(float x) { return f32x8{x, x, x, x, x, x, x, x}; }

inline float widen(float x) { return x; }

inline float widen(Bf16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float widen(F16 x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  return half_to_float(x.bits);
#endif
}

inline void narrow(float x, float* to) { *to = x; }

// Rounds to nearest, ties to even; NaN stays NaN.
inline void narrow(float x, Bf16* to) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  to->bits = x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline void narrow(float x, F16* to) {
#if defined(__F16C__)
  to->bits = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
  to->bits = float_to_half(x);
#endif
}

// Sixteen neighbours as two vectors. For bfloat16 the first holds the even and the second the odd ones, which costs a
// shift and a mask; ``in_order`` puts results made from them back.
inline void load16(const float* p, f32x8& a, f32x8& b) {
  a = load8(p);
  b = load8(p + 8);
}

inline void load16(const Bf16* p, f32x8& a, f32x8& b) {
  u32x8 pairs;
  std::memcpy(&pairs, p, sizeof pairs);
  a = (f32x8)(pairs << 16);
  b = (f32x8)(pairs & 0xffff0000u);
}

inline void load16(const F16* p, f32x8& a, f32x8& b) {
#if defined(__F16C__)
  a = (f32x8)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  b = (f32x8)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)));
#else
  for (int i = 0; i < 8; i++) {
    a[i] = widen(p[i]);
    b[i] = widen(p[8 + i]);
  }
#endif
}

template <class T>
inline void in_order(f32x8&, f32x8&) {}

template <>
inline void in_order<Bf16>(f32x8& a, f32x8& b) {
  const f32x8 even = a, odd = b;
  a = __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
  b = __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
}

inline float sum8(f32x8 v) {
  float total = 0;
  for (int i = 0; i < 4; i++) total += v[i] + v[i + 4];
  return total;
}

inline f32x8 max8(f32x8 a, f32x8 b) { return a > b ? a : b; }

// e^x within 2 units in the last place; exactly 0 below -87.3, infinity above 88.7; NaN stays NaN.
inline f32x8 exp8(f32x8 x) {
  const f32x8 scaled = x * splat8(1.44269504088896341f);
  const f32x8 magic = splat8(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const f32x8 above = scaled < splat8(-127.0f) ? splat8(-127.0f) : scaled;
  const f32x8 clamped = above > splat8(128.0f) ? splat8(128.0f) : above;
  const f32x8 shifted = clamped + magic;
  const f32x8 whole = shifted - magic;
  const f32x8 r = (x - whole * splat8(0.693359375f)) - whole * splat8(-2.12194440e-4f);
  f32x8 p = splat8(1.9875691500e-4f);
  p = p * r + splat8(1.3981999507e-3f);
  p = p * r + splat8(8.3334519073e-3f);
  p = p * r + splat8(4.1665795894e-2f);
  p = p * r + splat8(1.6666665459e-1f);
  p = p * r + splat8(5.0000001201e-1f);
  p = p * (r * r) + r + splat8(1.0f);
  const i32x8 power = ((i32x8)shifted - (i32x8)magic + 127) << 23;
  const f32x8 result = p * (f32x8)power;
  return x < splat8(-87.3f) ? splat8(0.0f) : result;
}

}  // namespace coldplate
