// From row-major weights to the panels the kernels read. All cut into parts like linear().
#pragma once

#include "linear.h"

namespace coldplate {

// Bytes of the packed weight and of its scales (0 for float kinds), for the kind, n, k, group and wide_scales given.
size_t weight_bytes(const PackedLinear& linear);
size_t scale_bytes(const PackedLinear& linear);

// `source` [n, k] row-major float32, bfloat16 or float16, as the kind says, into linear.weight.
void pack_float(const PackedLinear& linear, const void* source, void* weight, int part, int parts);

// `source` uint8 [n, k / 2] (column 2j in the low half of byte j), scales and zeros float32 [n, k / group].
void pack_int4(const PackedLinear& linear, const uint8_t* source, const float* scales, const float* zeros, void* weight,
               void* packed_scales, int part, int parts);

// `source` int8 [n, k], scales float32 [n, k / group].
void pack_int8(const PackedLinear& linear, const int8_t* source, const float* scales, void* weight,
               void* packed_scales, int part, int parts);

}  // namespace coldplate
