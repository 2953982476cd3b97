#include "pack.h"

#include <algorithm>

#include "kinds.h"

namespace coldplate {
namespace {

size_t panels_of(int n) { return (n + kPanel - 1) / kPanel; }

struct Panels {
  size_t begin, end;
};

Panels panel_range(int n, int part, int parts) {
  const size_t panels = panels_of(n);
  return {panels * part / parts, panels * (part + 1) / parts};
}

// Rows of the last panel beyond n are zero. Blocks of columns keep the 16 rows read and the panel written in cache.
template <class Element, class Place>
void pack_elements(const PackedLinear& l, const Element* source, Element* weight, Panels panels, Place place) {
  constexpr int kColumns = 64;
  for (size_t panel = panels.begin; panel < panels.end; panel++) {
    Element* to = weight + panel * kPanel * l.k;
    for (int start = 0; start < l.k; start += kColumns) {
      const int stop = std::min(l.k, start + kColumns);
      for (int j = 0; j < kPanel; j++) {
        const size_t row = panel * kPanel + j;
        Element* lane = to + place(j);
        if (row < static_cast<size_t>(l.n)) {
          const Element* from = source + row * l.k;
          for (int i = start; i < stop; i++) lane[static_cast<size_t>(i) * kPanel] = from[i];
        } else {
          for (int i = start; i < stop; i++) lane[static_cast<size_t>(i) * kPanel] = Element{};
        }
      }
    }
  }
}

void put_scale(const PackedLinear& l, void* scales, size_t at, float value) {
  if (l.wide_scales) {
    static_cast<float*>(scales)[at] = value;
  } else {
    static_cast<uint16_t*>(scales)[at] = float_to_half(value);
  }
}

}  // namespace

size_t weight_bytes(const PackedLinear& l) {
  const size_t elements = panels_of(l.n) * kPanel * static_cast<size_t>(is_quantised(l.kind) ? round_up(l.k, kBlock) : l.k);
  switch (l.kind) {
    case kFloat32: return elements * 4;
    case kBfloat16: case kFloat16: return elements * 2;
    case kInt4: return elements / 2;
    default: return elements;
  }
}

size_t scale_bytes(const PackedLinear& l) {
  if (!is_quantised(l.kind)) return 0;
  const size_t groups = (l.k + l.group - 1) / l.group;
  return panels_of(l.n) * groups * kPanel * (l.kind == kInt4 ? 2 : 1) * (l.wide_scales ? 4 : 2);
}

void pack_float(const PackedLinear& l, const void* source, void* weight, int part, int parts) {
  const Panels panels = panel_range(l.n, part, parts);
  if (l.kind == kFloat32) {
    pack_elements(l, static_cast<const float*>(source), static_cast<float*>(weight), panels, [](int j) { return j; });
  } else if (l.kind == kBfloat16) {
    pack_elements(l, static_cast<const uint16_t*>(source), static_cast<uint16_t*>(weight), panels, bf16_place);
  } else {
    pack_elements(l, static_cast<const uint16_t*>(source), static_cast<uint16_t*>(weight), panels,
                  [](int j) { return j; });
  }
}

void pack_int4(const PackedLinear& l, const uint8_t* source, const float* scales, const float* zeros, void* weight,
               void* packed_scales, int part, int parts) {
  const Panels panels = panel_range(l.n, part, parts);
  const size_t groups = l.k / l.group, row_bytes = l.k / 2;
  for (size_t panel = panels.begin; panel < panels.end; panel++) {
    uint8_t* to = static_cast<uint8_t*>(weight) + panel * kPanel * row_bytes;
    for (int j = 0; j < kPanel; j++) {
      const size_t row = panel * kPanel + j;
      const bool real = row < static_cast<size_t>(l.n);
      const uint8_t* from = source + row * row_bytes;
      for (size_t eight = 0; eight < row_bytes / 4; eight++) {  // 4 bytes hold 8 columns: pair c with c + 4
        uint8_t* four = to + eight * 64 + j * 4;
        uint32_t bits = 0;
        if (real) std::memcpy(&bits, from + eight * 4, 4);
        for (int t = 0; t < 4; t++) four[t] = (bits >> 4 * t & 15) | (bits >> (16 + 4 * t) & 15) << 4;
      }
      for (size_t g = 0; g < groups; g++) {
        const float scale = real ? scales[row * groups + g] : 0.0f;
        const size_t at = (panel * groups + g) * 2 * kPanel + j;
        put_scale(l, packed_scales, at, scale);
        put_scale(l, packed_scales, at + kPanel, real ? scale * zeros[row * groups + g] : 0.0f);
      }
    }
  }
}

void pack_int8(const PackedLinear& l, const int8_t* source, const float* scales, void* weight, void* packed_scales,
               int part, int parts) {
  const Panels panels = panel_range(l.n, part, parts);
  const size_t groups = (l.k + l.group - 1) / l.group, depth = round_up(l.k, kBlock);
  for (size_t panel = panels.begin; panel < panels.end; panel++) {
    int8_t* to = static_cast<int8_t*>(weight) + panel * kPanel * depth;
    for (int j = 0; j < kPanel; j++) {
      const size_t row = panel * kPanel + j;
      const bool real = row < static_cast<size_t>(l.n);
      const int8_t* from = source + row * l.k;
      for (size_t four = 0; four < depth / 4; four++) {
        const int count = real ? std::clamp<int64_t>(static_cast<int64_t>(l.k) - four * 4, 0, 4) : 0;
        for (int t = 0; t < 4; t++) to[four * 64 + j * 4 + t] = t < count ? from[four * 4 + t] : 0;
      }
      for (size_t g = 0; g < groups; g++)
        put_scale(l, packed_scales, (panel * groups + g) * kPanel + j, real ? scales[row * groups + g] : 0.0f);
    }
  }
}

}  // namespace coldplate
