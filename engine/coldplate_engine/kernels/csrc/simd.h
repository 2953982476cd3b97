// Vectors of kLanes 32-bit lanes, in the widest size this build's processor has.
//
// Arithmetic is the compiler's vector extension, so that every processor has all kernels; what a compiler cannot find
// by itself (dot products of bytes, float16) is in dot.h and below. -DCOLDPLATE_GENERIC leaves only the extension.
#pragma once

#include <cstdint>
#include <cstring>

#if !defined(COLDPLATE_GENERIC) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define COLDPLATE_X86 1
#include <immintrin.h>
#endif
#if !defined(COLDPLATE_GENERIC) && defined(__aarch64__)
#define COLDPLATE_NEON 1
#include <arm_neon.h>
#endif

namespace coldplate {

#if defined(COLDPLATE_X86) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
constexpr int kLanes = 16;
#elif defined(COLDPLATE_X86)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kParts = 16 / kLanes;  // vectors to a panel

typedef float vf __attribute__((vector_size(4 * kLanes)));
typedef int32_t vi __attribute__((vector_size(4 * kLanes)));
typedef uint32_t vu __attribute__((vector_size(4 * kLanes)));

#define COLDPLATE_INLINE inline __attribute__((always_inline))
#define COLDPLATE_LAMBDA __attribute__((always_inline))

template <class V>
COLDPLATE_INLINE V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class V>
COLDPLATE_INLINE void store(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

COLDPLATE_INLINE vf splat(float x) { return x - vf{}; }

// a * b + c, rounded once where the processor can: written out, so that all sizes of a kernel round alike.
COLDPLATE_INLINE vf fma(vf a, vf b, vf c) {
#if defined(COLDPLATE_X86) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(COLDPLATE_X86)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(COLDPLATE_NEON)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

COLDPLATE_INLINE vf to_float(vi v) { return __builtin_convertvector(v, vf); }

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// IEEE half precision, with subnormals, infinities and NaN.
inline float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Shifted into place, the exponent is short by 112: one exact multiplication mends it, subnormals included.
  const float value = bits_to_float(magnitude << 13) * bits_to_float(0x77800000u);
  return bits_to_float(float_to_bits(value) | sign);
}

inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded mantissa in the low bits
    return sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u);
  }
  return sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13);
}

// kLanes consecutive halves.
COLDPLATE_INLINE vf load_half(const uint16_t* p) {
#if defined(COLDPLATE_X86) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  return (vf)_mm512_cvtph_ps(load<__m256i>(p));
#elif defined(COLDPLATE_X86)
  return (vf)_mm256_cvtph_ps(load<__m128i>(p));
#elif defined(COLDPLATE_NEON)
  return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  vf v;
  for (int i = 0; i < kLanes; i++) v[i] = half_to_float(p[i]);
  return v;
#endif
}

}  // namespace coldplate
