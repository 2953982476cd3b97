// int4 and int8 weights on int8 activations: integer sums over blocks of 32 columns, scaled and added in float32.
//
// Every output is one chain over the blocks in order, so a row's result does not depend on the rows computed with it.
#include <algorithm>

#include "dot.h"
#include "kinds.h"

namespace coldplate {
namespace {

constexpr int kRowsAtOnce = 4;  // int16 sums of 4 rows and 16 outputs fill 8 of AVX2's 16 registers
constexpr int kRowBlock = 64;

template <bool Wide>
COLDPLATE_INLINE vf load_scale(const void* scales, size_t index) {
  if (Wide) return load<vf>(static_cast<const float*>(scales) + index);
  return load_half(static_cast<const uint16_t*>(scales) + index);
}

struct Rows {  // activations of the rows a kernel works on, and where it leaves their sums
  const int8_t* values;
  const float *scales, *sums;
  int depth, blocks;
  float* out;  // [R][kPanel]
};

// Block: 4 times 8 columns; low halves of a lane's bytes are columns 0 … 3 of the 8, high halves columns 4 … 7.
template <int R, bool Wide>
void int4_kernel(const uint8_t* w, const void* scales, int group_blocks, const Rows& x) {
  vf result[R][kParts] = {};
  for (int b = 0; b < x.blocks; b++) {
    NibbleSum sum[R][kParts];
    for (int s = 0; s < 4; s++) {
      for (int p = 0; p < kParts; p++) {
        const vu packed = load<vu>(w + (b * 4 + s) * 64 + p * 4 * kLanes);
        const vi low = (vi)(packed & 0x0f0f0f0fu), high = (vi)((packed >> 4) & 0x0f0f0f0fu);
        for (int r = 0; r < R; r++) {
          const int8_t* values = x.values + r * x.depth + b * kBlock + s * 8;
          sum[r][p].add(low, splat_bytes(values));
          sum[r][p].add(high, splat_bytes(values + 4));
        }
      }
    }
    const size_t group = static_cast<size_t>(b / group_blocks) * 2 * kPanel;
    for (int p = 0; p < kParts; p++) {
      const vf scale = load_scale<Wide>(scales, group + p * kLanes);
      const vf offset = load_scale<Wide>(scales, group + kPanel + p * kLanes);
      for (int r = 0; r < R; r++) {
        result[r][p] = fma(scale * x.scales[r * x.blocks + b], to_float(sum[r][p].total()), result[r][p]);
        result[r][p] = fma(-offset, splat(x.sums[r * x.blocks + b]), result[r][p]);
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < kParts; p++) store(x.out + r * kPanel + p * kLanes, result[r][p]);
}

// `run`: blocks summed as integers before they are scaled: 1, or all that share a scale where the row has but one.
template <int R, bool Wide>
void int8_kernel(const int8_t* w, const void* scales, int group_blocks, int run, const Rows& x) {
  vf result[R][kParts] = {};
  for (int b = 0; b < x.blocks; b += run) {
    ByteSum sum[R][kParts];
    const int8_t* weight = w + static_cast<size_t>(b) * kBlock * kPanel;
    for (int s = 0; s < run * (kBlock / 4); s++) {
      for (int p = 0; p < kParts; p++) {
        const ByteWeight bytes(load<vi>(weight + s * 64 + p * 4 * kLanes));
        for (int r = 0; r < R; r++)
          sum[r][p].add(bytes, splat_bytes(x.values + r * x.depth + b * kBlock + s * 4));
      }
    }
    for (int p = 0; p < kParts; p++) {
      const vf scale = load_scale<Wide>(scales, static_cast<size_t>(b / group_blocks) * kPanel + p * kLanes);
      for (int r = 0; r < R; r++)
        result[r][p] = fma(scale * x.scales[r * x.blocks + b], to_float(sum[r][p].total()), result[r][p]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < kParts; p++) store(x.out + r * kPanel + p * kLanes, result[r][p]);
}

struct Int4 {
  template <int R, bool Wide>
  static void kernel(const PackedLinear& l, const void* weight, const void* scales, const Rows& x) {
    int4_kernel<R, Wide>(static_cast<const uint8_t*>(weight), scales, l.group / kBlock, x);
  }
};

struct Int8 {
  template <int R, bool Wide>
  static void kernel(const PackedLinear& l, const void* weight, const void* scales, const Rows& x) {
    const int group = l.group == l.k ? x.blocks : l.group / kBlock;
    int8_kernel<R, Wide>(static_cast<const int8_t*>(weight), scales, group, l.kind == kInt8PerToken ? group : 1, x);
  }
};

template <class Kind, bool Wide>
void some_rows(int rows, const PackedLinear& l, const void* weight, const void* scales, const Rows& x) {
  switch (rows) {
    case 1: return Kind::template kernel<1, Wide>(l, weight, scales, x);
    case 2: return Kind::template kernel<2, Wide>(l, weight, scales, x);
    case 3: return Kind::template kernel<3, Wide>(l, weight, scales, x);
    default: return Kind::template kernel<4, Wide>(l, weight, scales, x);
  }
}

template <class Kind, bool Wide>
void run(const PackedLinear& l, const Prepared& x, int rows, float* y, int64_t ldy, bool add, int begin, int end) {
  const size_t panel_bytes = static_cast<size_t>(x.depth) * kPanel / (l.kind == kInt4 ? 2 : 1);
  const size_t groups = (l.k + l.group - 1) / l.group;
  const size_t panel_scales = groups * kPanel * (l.kind == kInt4 ? 2 : 1) * (Wide ? 4 : 2);
  alignas(64) float sums[kRowsAtOnce * kPanel];
  for (int row = 0; row < rows; row += kRowBlock) {
    const int block = std::min(kRowBlock, rows - row);
    const int pieces = (block + kRowsAtOnce - 1) / kRowsAtOnce;
    for (int column = begin; column < end; column += kPanel) {
      const char* weight = static_cast<const char*>(l.weight) + column / kPanel * panel_bytes;
      const char* scales = static_cast<const char*>(l.scales) + column / kPanel * panel_scales;
      for (int piece = 0; piece < pieces; piece++) {
        const size_t first = row + block * piece / pieces, after = row + block * (piece + 1) / pieces;
        const Rows some{x.values + first * x.depth, x.scales + first * x.blocks, x.sums + first * x.blocks,
                        x.depth, x.blocks, sums};
        some_rows<Kind, Wide>(after - first, l, weight, scales, some);
        finish(l, sums, kPanel, after - first, column, std::min(end, column + kPanel), y + first * ldy, ldy, add);
      }
    }
  }
}

}  // namespace

void quantised_linear(const PackedLinear& l, const Prepared& x, int rows, float* y, int64_t ldy, bool add, int begin,
                      int end) {
  if (l.kind == kInt4) {
    return l.wide_scales ? run<Int4, true>(l, x, rows, y, ldy, add, begin, end)
                         : run<Int4, false>(l, x, rows, y, ldy, add, begin, end);
  }
  return l.wide_scales ? run<Int8, true>(l, x, rows, y, ldy, add, begin, end)
                       : run<Int8, false>(l, x, rows, y, ldy, add, begin, end);
}

}  // namespace coldplate
