// Dot products of bytes: every 32-bit lane is one output, its four bytes four input columns.
//
// NibbleSum adds up weights of 0 … 15 times int8 over at most 32 columns, ByteSum int8 times int8 over any number.
#pragma once

#include "simd.h"

namespace coldplate {

COLDPLATE_INLINE vi splat_bytes(const int8_t* four) {
  int32_t bits;
  std::memcpy(&bits, four, 4);
  return bits - vi{};
}

#if defined(COLDPLATE_X86) && defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)

struct NibbleSum {
  vi sum = {};
  COLDPLATE_INLINE void add(vi weight, vi x) {
    sum = (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weight, (__m512i)x);
  }
  COLDPLATE_INLINE vi total() const { return sum; }
};

struct ByteWeight {
  __m512i magnitude;
  __mmask64 negative;
  COLDPLATE_INLINE explicit ByteWeight(vi w)
      : magnitude(_mm512_abs_epi8((__m512i)w)), negative(_mm512_movepi8_mask((__m512i)w)) {}
};

struct ByteSum {
  vi sum = {};
  COLDPLATE_INLINE void add(const ByteWeight& w, vi x) {
    const __m512i value = _mm512_mask_sub_epi8((__m512i)x, w.negative, _mm512_setzero_si512(), (__m512i)x);
    sum = (vi)_mm512_dpbusd_epi32((__m512i)sum, w.magnitude, value);
  }
  COLDPLATE_INLINE vi total() const { return sum; }
};

#elif defined(COLDPLATE_X86) && !defined(__AVX512F__)

struct NibbleSum {
#if defined(__AVXVNNI__)
  vi sum = {};
  COLDPLATE_INLINE void add(vi weight, vi x) {
    sum = (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weight, (__m256i)x);
  }
  COLDPLATE_INLINE vi total() const { return sum; }
#else
  __m256i sum = _mm256_setzero_si256();  // int16: 8 times 2 * 15 * 127 stays below 32768
  COLDPLATE_INLINE void add(vi weight, vi x) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16((__m256i)weight, (__m256i)x));
    asm("" : "+x"(sum));  // keeps the compiler from summing products first, for which there are no registers
  }
  COLDPLATE_INLINE vi total() const { return (vi)_mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
#endif
};

struct ByteWeight {
  __m256i value, magnitude;
  COLDPLATE_INLINE explicit ByteWeight(vi w) : value((__m256i)w), magnitude(_mm256_abs_epi8((__m256i)w)) {}
};

struct ByteSum {
  vi sum = {};
  COLDPLATE_INLINE void add(const ByteWeight& w, vi x) {
    // |w| times x with w's sign. x is at least -127, so a pair stays within int16: 2 * 128 * 127 = 32512.
    const __m256i value = _mm256_sign_epi8((__m256i)x, w.value);
#if defined(__AVXVNNI__)
    sum = (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, w.magnitude, value);
#else
    sum += (vi)_mm256_madd_epi16(_mm256_maddubs_epi16(w.magnitude, value), _mm256_set1_epi16(1));
#endif
  }
  COLDPLATE_INLINE vi total() const { return sum; }
};

#elif defined(COLDPLATE_NEON) && defined(__ARM_FEATURE_DOTPROD)

struct ByteSum {
  vi sum = {};
  COLDPLATE_INLINE void add(vi weight, vi x) {
    sum = (vi)vdotq_s32((int32x4_t)sum, (int8x16_t)weight, (int8x16_t)x);
  }
  COLDPLATE_INLINE vi total() const { return sum; }
};
using NibbleSum = ByteSum;
using ByteWeight = vi;

#else

struct ByteSum {
  vi sum = {};
  COLDPLATE_INLINE void add(vi weight, vi x) {
    for (int byte = 0; byte < 4; byte++) {
      const int up = 24 - 8 * byte;
      sum += ((vi)((vu)weight << up) >> 24) * ((vi)((vu)x << up) >> 24);
    }
  }
  COLDPLATE_INLINE vi total() const { return sum; }
};
using NibbleSum = ByteSum;
using ByteWeight = vi;

#endif

}  // namespace coldplate
