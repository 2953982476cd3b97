// int4 and int8 weights on int8 activations: integer sums over blocks of 32 columns, scaled and added in float32.
//
// Every output is one chain over the blocks in order, so a row's result does not depend on the rows computed with it.
#include <algorithm>

#include "dot.h"
#include "kinds.h"

namespace coldplate {
namespace {

constexpr int kRowsAtOnce = 4;  // their sums, a panel's weights and the constants fill AVX2's 16 registers
constexpr int kRowBlock = 64;
constexpr int kAhead = 2048;  // bytes of weights asked for before they are read

template <bool Wide>
COLDPLATE_INLINE vf load_scale(const void* scales, size_t index) {
  if (Wide) return load<vf>(static_cast<const float*>(scales) + index);
  return load_half(static_cast<const uint16_t*>(scales) + index);
}

COLDPLATE_INLINE void fetch(const void* weight, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(weight) + kAhead + i);
}

// body(0 … N-1). Unrolled where few sums are kept: with many, the compiler would compute all products before it adds
// them, and spill most.
template <bool Unrolled, int N, class Body>
COLDPLATE_INLINE void each(Body body) {
  if constexpr (Unrolled) {
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) body(i);
  } else {
#pragma GCC unroll 1
    for (int i = 0; i < N; i++) body(i);
  }
}

struct Rows {  // activations of the rows a kernel works on, and where it leaves their sums
  const int8_t* values;
  const float *scales, *sums;
  int depth, blocks;
  float* out;  // [R][kPanel]
};

struct Panel {
  const char *weight, *scales;
  int group_blocks, run;  // run: blocks summed as integers before they are scaled (int8)
};

template <int R>
COLDPLATE_INLINE void leave(const Rows& x, vf (*result)[kParts]) {
  for (int r = 0; r < R; r++)
    for (int p = 0; p < kParts; p++) store(x.out + r * kPanel + p * kLanes, result[r][p]);
}

// A block of a panel: 4 times 8 columns. Low halves of a lane's bytes are columns 0 … 3 of the 8, high halves 4 … 7.
struct Int4 {
  template <int R, bool Wide>
  static __attribute__((noinline)) void kernel(const Panel& panel, const Rows& rows) {
    const Rows x = rows;
    const char* w = panel.weight;
    vf result[R][kParts] = {};
    for (int b = 0, group = 0; b < x.blocks; group += 2 * kPanel) {
      vf scale[kParts], offset[kParts];
      for (int p = 0; p < kParts; p++) {
        scale[p] = load_scale<Wide>(panel.scales, group + p * kLanes);
        offset[p] = load_scale<Wide>(panel.scales, group + kPanel + p * kLanes);
      }
      for (const int stop = b + panel.group_blocks; b < stop; b++, w += 256) {
        NibbleSum sum[R][kParts];
        fetch(w, 256);
        const int8_t* block = x.values + b * kBlock;
        each<R == 1, 4>([&](int s) COLDPLATE_LAMBDA {
          const int8_t* values = block + s * 8;
          vi weight[kParts];
          for (int p = 0; p < kParts; p++) weight[p] = load<vi>(w + s * 64 + p * 4 * kLanes) & 0x0f0f0f0f;
          for (int r = 0; r < R; r++) {
            const vi value = splat_bytes(values + r * x.depth);
            for (int p = 0; p < kParts; p++) sum[r][p].add(weight[p], value);
          }
          for (int p = 0; p < kParts; p++) weight[p] = (load<vi>(w + s * 64 + p * 4 * kLanes) >> 4) & 0x0f0f0f0f;
          for (int r = 0; r < R; r++) {
            const vi value = splat_bytes(values + r * x.depth + 4);
            for (int p = 0; p < kParts; p++) sum[r][p].add(weight[p], value);
          }
        });
        for (int r = 0; r < R; r++) {
          const vf step = splat(x.scales[r * x.blocks + b]), total = splat(x.sums[r * x.blocks + b]);
          for (int p = 0; p < kParts; p++) {
            result[r][p] = fma(scale[p] * step, to_float(sum[r][p].total()), result[r][p]);
            result[r][p] = fma(-offset[p], total, result[r][p]);
          }
        }
      }
    }
    leave<R>(x, result);
  }
};

struct Int8 {
  template <int R, bool Wide>
  static __attribute__((noinline)) void kernel(const Panel& panel, const Rows& rows) {
    const Rows x = rows;
    const char* w = panel.weight;
    vf result[R][kParts] = {};
    for (int b = 0; b < x.blocks; b += panel.run) {
      ByteSum sum[R][kParts];
      for (int i = 0; i < panel.run; i++, w += 512) {
        fetch(w, 512);
        const int8_t* block = x.values + (b + i) * kBlock;
        each<R == 1, 8>([&](int s) COLDPLATE_LAMBDA {
          for (int p = 0; p < kParts; p++) {
            const ByteWeight weight(load<vi>(w + s * 64 + p * 4 * kLanes));
            for (int r = 0; r < R; r++) sum[r][p].add(weight, splat_bytes(block + r * x.depth + s * 4));
          }
        });
      }
      const size_t group = static_cast<size_t>(b / panel.group_blocks) * kPanel;
      for (int p = 0; p < kParts; p++) {
        const vf scale = load_scale<Wide>(panel.scales, group + p * kLanes);
        for (int r = 0; r < R; r++)
          result[r][p] = fma(scale * x.scales[r * x.blocks + b], to_float(sum[r][p].total()), result[r][p]);
      }
    }
    leave<R>(x, result);
  }
};

template <class Kind, bool Wide>
void some_rows(int rows, const Panel& panel, const Rows& x) {
  switch (rows) {
    case 1: return Kind::template kernel<1, Wide>(panel, x);
    case 2: return Kind::template kernel<2, Wide>(panel, x);
    case 3: return Kind::template kernel<3, Wide>(panel, x);
    default: return Kind::template kernel<4, Wide>(panel, x);
  }
}

template <class Kind, bool Wide>
void run(const PackedLinear& l, const Prepared& x, int rows, float* y, int64_t ldy, bool add, int begin, int end) {
  const int nibbles = l.kind == kInt4 ? 2 : 1;  // to a byte; and numbers to a group
  const size_t panel_bytes = static_cast<size_t>(x.depth) * kPanel / nibbles;
  const size_t panel_scales = static_cast<size_t>((l.k + l.group - 1) / l.group) * kPanel * nibbles * (Wide ? 4 : 2);
  Panel panel{};
  panel.group_blocks = l.group == l.k ? x.blocks : l.group / kBlock;
  panel.run = l.kind == kInt8PerToken ? panel.group_blocks : 1;
  alignas(64) float sums[kRowsAtOnce * kPanel];
  for (int row = 0; row < rows; row += kRowBlock) {
    const int block = std::min(kRowBlock, rows - row);
    const int pieces = (block + kRowsAtOnce - 1) / kRowsAtOnce;
    for (int column = begin; column < end; column += kPanel) {
      panel.weight = static_cast<const char*>(l.weight) + column / kPanel * panel_bytes;
      panel.scales = static_cast<const char*>(l.scales) + column / kPanel * panel_scales;
      for (int piece = 0; piece < pieces; piece++) {
        const size_t first = row + block * piece / pieces, after = row + block * (piece + 1) / pieces;
        const Rows some{x.values + first * x.depth, x.scales + first * x.blocks, x.sums + first * x.blocks,
                        x.depth, x.blocks, sums};
        some_rows<Kind, Wide>(after - first, panel, some);
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
