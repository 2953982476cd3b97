// Which kernel a kind of weight has, and how a call is cut into parts.
#include "linear.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kinds.h"

namespace coldplate {
namespace {

struct Range {
  int64_t begin, end;
};

Range share(int64_t count, int part, int parts) { return {count * part / parts, count * (part + 1) / parts}; }

// The largest magnitude as bits: as integers, magnitudes order like the floats, and NaN comes above infinity.
int32_t largest_bits(const float* x, int count) {
  int32_t largest = 0;
  for (int i = 0; i < count; i++) {
    const int32_t magnitude = static_cast<int32_t>(float_to_bits(x[i]) & 0x7fffffffu);
    largest = std::max(largest, magnitude);
  }
  return largest;
}

// One block of at most 32 values on the scale of the largest one. A value that is not finite makes the scale NaN, and
// with it every output of this row. Below 1e-30 all counts as zero: the inverse would not be finite.
void quantise_block(const float* x, int count, int32_t largest, int8_t* values, float* scale, float* sum) {
  const float magnitude = bits_to_float(largest);
  if (largest >= 0x7f800000 || magnitude < 1e-30f) {
    std::memset(values, 0, kBlock);
    *scale = *sum = largest >= 0x7f800000 ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    return;
  }
  const float inverse = 127.0f / magnitude;
  alignas(64) float rounded[kBlock] = {};
  // Adding 1.5 * 2^23 rounds to even and leaves the integer in the low bits.
  for (int i = 0; i < count; i++) rounded[i] = x[i] * inverse;
  int32_t total = 0;
  for (int i = 0; i < kBlock; i++) {
    const int32_t value = static_cast<int32_t>(float_to_bits(rounded[i] + 12582912.0f) - 0x4b400000u);
    values[i] = static_cast<int8_t>(value);
    total += value;
  }
  *scale = magnitude / 127.0f;
  *sum = *scale * static_cast<float>(total);
}

template <class Element, class Widen>
void float_row(const PackedLinear& l, int64_t row, float* out, int place, Widen widen) {
  const Element* w = static_cast<const Element*>(l.weight) + row / kPanel * kPanel * l.k + place;
  for (int i = 0; i < l.k; i++) out[i] = widen(w[static_cast<size_t>(i) * kPanel]);
}

float scale_at(const PackedLinear& l, size_t index) {
  return l.wide_scales ? static_cast<const float*>(l.scales)[index]
                       : half_to_float(static_cast<const uint16_t*>(l.scales)[index]);
}

void quantised_row(const PackedLinear& l, int64_t row, float* out) {
  const int depth = round_up(l.k, kBlock), lane = row % kPanel;
  const size_t panel = row / kPanel, groups = (l.k + l.group - 1) / l.group;
  const uint8_t* w = static_cast<const uint8_t*>(l.weight) + panel * depth * kPanel / (l.kind == kInt4 ? 2 : 1);
  for (int i = 0; i < l.k; i++) {
    const size_t group = panel * groups + i / l.group;
    if (l.kind == kInt4) {
      const int packed = w[i / 8 * 64 + lane * 4 + i % 4], value = i % 8 < 4 ? packed & 15 : packed >> 4;
      const size_t at = group * 2 * kPanel + lane;
      out[i] = scale_at(l, at) * static_cast<float>(value) - scale_at(l, at + kPanel);
    } else {
      const int8_t value = static_cast<int8_t>(w[i / 4 * 64 + lane * 4 + i % 4]);
      out[i] = scale_at(l, group * kPanel + lane) * static_cast<float>(value);
    }
  }
}

}  // namespace

void column_range(int n, int part, int parts, int* begin, int* end) {
  const Range panels = share((n + kPanel - 1) / kPanel, part, parts);
  *begin = std::min<int64_t>(n, panels.begin * kPanel);
  *end = std::min<int64_t>(n, panels.end * kPanel);
}

size_t prepared_bytes(const PackedLinear& l, int rows) {
  if (!is_quantised(l.kind)) return 0;
  const size_t depth = round_up(l.k, kBlock), values = (rows * depth + 63) / 64 * 64;
  return values + 2 * sizeof(float) * rows * (depth / kBlock);
}

void prepare(const PackedLinear& l, const float* x, int64_t ldx, int rows, void* scratch, int part, int parts) {
  if (!is_quantised(l.kind)) return;
  const Prepared out(l, rows, scratch);
  const Range blocks = share(static_cast<int64_t>(rows) * out.blocks, part, parts);
  int64_t measured_row = -1;
  int32_t largest = 0;
  for (int64_t at = blocks.begin; at < blocks.end; at++) {
    const int64_t row = at / out.blocks, column = at % out.blocks * kBlock;
    const float* values = x + row * ldx + column;
    const int count = std::min<int64_t>(kBlock, l.k - column);
    if (l.kind != kInt8PerToken) {
      largest = largest_bits(values, count);
    } else if (row != measured_row) {  // every part that has some of the row measures all of it: cheaper than to meet
      largest = largest_bits(x + row * ldx, l.k);
      measured_row = row;
    }
    quantise_block(values, count, largest, out.values + row * out.depth + column, out.scales + at, out.sums + at);
  }
}

void linear(const PackedLinear& l, const float* x, int64_t ldx, const void* prepared, int rows, float* y, int64_t ldy,
            bool add, int part, int parts) {
  int begin, end;
  column_range(l.n, part, parts, &begin, &end);
  if (begin == end) return;
  if (is_quantised(l.kind)) {
    quantised_linear(l, Prepared(l, rows, const_cast<void*>(prepared)), rows, y, ldy, add, begin, end);
  } else {
    float_linear(l, x, ldx, rows, y, ldy, add, begin, end);
  }
}

void weight_rows(const PackedLinear& l, const int64_t* ids, int count, float* out, int64_t ldout, int part, int parts) {
  const Range mine = share(count, part, parts);
  for (int64_t i = mine.begin; i < mine.end; i++) {
    const int64_t row = ids[i];
    float* to = out + i * ldout;
    const int lane = row % kPanel;
    switch (l.kind) {
      case kFloat32: float_row<float>(l, row, to, lane, [](float w) { return w; }); break;
      case kBfloat16:
        float_row<uint16_t>(l, row, to, bf16_place(lane), [](uint16_t w) { return bits_to_float(uint32_t{w} << 16); });
        break;
      case kFloat16: float_row<uint16_t>(l, row, to, lane, half_to_float); break;
      default: quantised_row(l, row, to);
    }
  }
}

}  // namespace coldplate
