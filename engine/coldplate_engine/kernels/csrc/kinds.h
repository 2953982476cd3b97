// What the kinds of weights share behind linear.h.
#pragma once

#include <cstring>

#include "linear.h"
#include "simd.h"

namespace coldplate {

constexpr int kBlock = 32;  // input columns that share an activation scale

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

inline bool is_quantised(int kind) { return kind >= kInt4; }

// Where output `j` of a panel's row of 16 elements is: bfloat16 lies in pairs (j, j + 8) up to 8 lanes.
constexpr int bf16_place(int j) { return kLanes == 16 ? j : j < 8 ? 2 * j : 2 * (j - 8) + 1; }

// Where quantised activations are inside the scratch that prepare() fills.
struct Prepared {
  int8_t* values;   // [rows, depth], depth = k rounded up to whole blocks
  float* scales;    // [rows, blocks]
  float* sums;      // [rows, blocks]: scale times the sum of the block's values
  int depth, blocks;

  Prepared(const PackedLinear& l, int rows, void* scratch)
      : depth(round_up(l.k, kBlock)), blocks(depth / kBlock) {
    values = static_cast<int8_t*>(scratch);
    scales = reinterpret_cast<float*>(values + (static_cast<size_t>(rows) * depth + 63) / 64 * 64);
    sums = scales + static_cast<size_t>(rows) * blocks;
  }
};

// y[r][c] = (add ? y[r][c] : 0) + bias[c] + sums[r][c - begin] for c in [begin, end).
inline void finish(const PackedLinear& l, const float* sums, int stride, int rows, int begin, int end, float* y,
                   int64_t ldy, bool add) {
  for (int r = 0; r < rows; r++) {
    float* out = y + r * ldy;
    const float* sum = sums + r * stride - begin;
    if (l.bias && add) {
      for (int c = begin; c < end; c++) out[c] += sum[c] + l.bias[c];
    } else if (l.bias) {
      for (int c = begin; c < end; c++) out[c] = sum[c] + l.bias[c];
    } else if (add) {
      for (int c = begin; c < end; c++) out[c] += sum[c];
    } else {
      std::memcpy(out + begin, sum + begin, sizeof(float) * (end - begin));
    }
  }
}

void float_linear(const PackedLinear& l, const float* x, int64_t ldx, int rows, float* y, int64_t ldy, bool add,
                  int begin, int end);
void quantised_linear(const PackedLinear& l, const Prepared& x, int rows, float* y, int64_t ldy, bool add, int begin,
                      int end);

}  // namespace coldplate
