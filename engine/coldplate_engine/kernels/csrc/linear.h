// Linear layers y = x W^T + bias on packed weights, to be called from inside a parallel region.
//
// Activations are float32. The work of a call is cut by output columns into `parts`; part i of a call touches nothing
// that another part writes, so parts may run on any threads at once, in any order, and may outnumber the threads.
// A row's result depends on that row alone: not on the other rows, their number, or `parts`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coldplate {

enum LinearKind : int32_t {
  kFloat32 = 0,
  kBfloat16 = 1,
  kFloat16 = 2,
  kInt4 = 3,           // activations become int8 with a scale for every 32 columns
  kInt8 = 4,           // the same
  kInt8PerToken = 5,   // activations become int8 with one scale for the row (W8A8)
};

// Packed by pack() in pack.cpp; plain data, so that Python can hold it in a ctypes structure.
struct PackedLinear {
  int32_t kind;        // LinearKind
  int32_t n;           // output features
  int32_t k;           // input features
  int32_t group;       // input columns that share a scale; a multiple of 32, or k
  int32_t wide_scales; // scales are float32 rather than float16
  int32_t reserved;
  const void* weight;  // panels of kPanel output columns, 64-byte aligned
  const void* scales;  // for every panel and group: kPanel scales, and for int4 kPanel times scale * zero
  const float* bias;   // [n], or null
};

constexpr int kPanel = 16;  // output columns are packed, and cut into parts, by panels of so many

// The output columns [begin, end) of one part. The same for every linear of the same n.
void column_range(int n, int part, int parts, int* begin, int* end);

// Bytes of scratch that prepare() fills for `rows` rows; 0: the kind reads x itself and prepare() does nothing.
// 64-byte aligned scratch, never kept between calls. One prepared x serves every linear of the same kind and k.
size_t prepared_bytes(const PackedLinear& linear, int rows);

// Quantises this part's rows of x [rows, k] (row stride ldx, in floats) into `prepared`. All parts of prepare() must be
// done (a barrier) before any part of linear() reads it. With few rows the parts are groups of columns, not rows.
void prepare(const PackedLinear& linear, const float* x, int64_t ldx, int rows, void* prepared, int part, int parts);

// y[r][c] = (add ? y[r][c] : 0) + bias[c] + sum over i of W[c][i] x[r][i], for this part's columns c and all rows r.
// `prepared` is what prepare() made of x, or null for kinds that take none (then x is read). y has row stride ldy.
void linear(const PackedLinear& linear, const float* x, int64_t ldx, const void* prepared, int rows, float* y,
            int64_t ldy, bool add, int part, int parts);

// out[i] [k] = row ids[i] of W in float32, for i in this part's share of the ids: the embedding of a tied head.
void weight_rows(const PackedLinear& linear, const int64_t* ids, int count, float* out, int64_t ldout, int part,
                 int parts);

}  // namespace coldplate
