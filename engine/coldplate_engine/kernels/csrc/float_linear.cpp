// float32, bfloat16 and float16 weights: one register-blocked kernel that widens the weight as it reads it.
//
// Every output is one chain of fused multiply-adds over the input features in order, whatever the blocking.
#include <algorithm>

#include "kinds.h"
#include "simd.h"

namespace coldplate {
namespace {

struct Float32 {
  using Element = float;
  COLDPLATE_INLINE static void load_panel(const float* w, vf* out) {
    for (int p = 0; p < kParts; p++) out[p] = load<vf>(w + p * kLanes);
  }
};

struct Bfloat16 {
  using Element = uint16_t;
  COLDPLATE_INLINE static void load_panel(const uint16_t* w, vf* out) {
#if defined(COLDPLATE_X86) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
    out[0] = (vf)(__m512)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load<__m256i>(w)), 16));
#else
    // Pairs (j, j + 8): both halves of a 32-bit lane become floats with one operation each.
    for (int p = 0; p < kParts / 2; p++) {
      const vu pair = load<vu>(w + 2 * p * kLanes);
      out[p] = (vf)(pair << 16);
      out[p + kParts / 2] = (vf)(pair & 0xffff0000u);
    }
#endif
  }
};

struct Float16 {
  using Element = uint16_t;
  COLDPLATE_INLINE static void load_panel(const uint16_t* w, vf* out) {
    for (int p = 0; p < kParts; p++) out[p] = load_half(w + p * kLanes);
  }
};

constexpr int kMaxRows = 6;   // rows of one kernel: 12 accumulators of 8 lanes
constexpr int kGroup = 4;     // panels computed together
constexpr int kRowBlock = 48;
constexpr int kStride = kGroup * kPanel;  // of the partial sums

constexpr int kAheadBytes = 2048;  // of weights asked for before they are read; one row keeps the prefetcher busy by itself

// sums[r][16 P] += x[r][0..depth) W[0..depth)[16 P], the P panels being `panel_stride` elements apart.
template <class Kind, int R, int P>
void kernel(const typename Kind::Element* w, size_t panel_stride, const float* x, int64_t ldx, int depth, float* sums) {
  vf sum[R][P * kParts];
  for (int r = 0; r < R; r++)
    for (int p = 0; p < P * kParts; p++) sum[r][p] = load<vf>(sums + r * kStride + p * kLanes);
  for (int i = 0; i < depth; i++) {
    vf weight[P * kParts];
    for (int p = 0; p < P; p++) {
      const typename Kind::Element* row = w + p * panel_stride + i * kPanel;
      if (R > 1) __builtin_prefetch(reinterpret_cast<const char*>(row) + kAheadBytes);
      Kind::load_panel(row, weight + p * kParts);
    }
    for (int r = 0; r < R; r++) {
      const vf value = splat(x[r * ldx + i]);
      for (int p = 0; p < P * kParts; p++) sum[r][p] = fma(value, weight[p], sum[r][p]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < P * kParts; p++) store(sums + r * kStride + p * kLanes, sum[r][p]);
}

// As many panels at once as keep at least eight accumulators going, so that no addition waits for the one before it.
template <class Kind, int R, int P>
void panels(const typename Kind::Element* w, size_t panel_stride, int count, const float* x, int64_t ldx, int depth,
            float* sums) {
  int p = 0;
  for (; p + P <= count; p += P)
    kernel<Kind, R, P>(w + p * panel_stride, panel_stride, x, ldx, depth, sums + p * kPanel);
  for (; p < count; p++) kernel<Kind, R, 1>(w + p * panel_stride, panel_stride, x, ldx, depth, sums + p * kPanel);
}

template <class Kind>
void some_rows(int rows, const typename Kind::Element* w, size_t panel_stride, int count, const float* x, int64_t ldx,
               int depth, float* sums) {
  switch (rows) {
    case 1: return panels<Kind, 1, 4>(w, panel_stride, count, x, ldx, depth, sums);
    case 2: return panels<Kind, 2, 2>(w, panel_stride, count, x, ldx, depth, sums);
    case 3: return panels<Kind, 3, 2>(w, panel_stride, count, x, ldx, depth, sums);
    case 4: return panels<Kind, 4, 1>(w, panel_stride, count, x, ldx, depth, sums);
    case 5: return panels<Kind, 5, 1>(w, panel_stride, count, x, ldx, depth, sums);
    default: return panels<Kind, 6, 1>(w, panel_stride, count, x, ldx, depth, sums);
  }
}

template <class Kind>
void run(const PackedLinear& l, const float* x, int64_t ldx, int rows, float* y, int64_t ldy, bool add, int begin,
         int end) {
  using Element = typename Kind::Element;
  const Element* weight = static_cast<const Element*>(l.weight);
  const size_t panel_stride = static_cast<size_t>(l.k) * kPanel;
  // Blocks of the depth keep a panel's slice in the first-level cache while all rows of a block pass over it.
  const int depth_block = rows <= kMaxRows ? l.k : static_cast<int>(16384 / (kPanel * sizeof(Element)));
  alignas(64) float sums[kRowBlock * kStride];
  for (int row = 0; row < rows; row += kRowBlock) {
    const int block = std::min(kRowBlock, rows - row);
    const int pieces = (block + kMaxRows - 1) / kMaxRows;
    for (int column = begin; column < end; column += kStride) {
      const int count = (std::min(end - column, kStride) + kPanel - 1) / kPanel;
      const Element* group = weight + column / kPanel * panel_stride;
      std::memset(sums, 0, sizeof(float) * block * kStride);
      for (int i = 0; i < l.k; i += depth_block) {
        const int depth = std::min(depth_block, l.k - i);
        for (int panel = 0; panel < count; panel += rows <= kMaxRows ? count : 1) {
          const int together = rows <= kMaxRows ? count : 1;
          for (int piece = 0; piece < pieces; piece++) {  // of nearly equal size: no thin rest
            const int first = block * piece / pieces, after = block * (piece + 1) / pieces;
            some_rows<Kind>(after - first, group + panel * panel_stride + i * kPanel, panel_stride, together,
                            x + (row + first) * ldx + i, ldx, depth, sums + first * kStride + panel * kPanel);
          }
        }
      }
      finish(l, sums, kStride, block, column, std::min(end, column + kStride), y + row * ldy, ldy, add);
    }
  }
}

}  // namespace

void float_linear(const PackedLinear& l, const float* x, int64_t ldx, int rows, float* y, int64_t ldy, bool add,
                  int begin, int end) {
  switch (l.kind) {
    case kFloat32: return run<Float32>(l, x, ldx, rows, y, ldy, add, begin, end);
    case kBfloat16: return run<Bfloat16>(l, x, ldx, rows, y, ldy, add, begin, end);
    default: return run<Float16>(l, x, ldx, rows, y, ldy, add, begin, end);
  }
}

}  // namespace coldplate
