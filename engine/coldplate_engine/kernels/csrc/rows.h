// Row-wise operations between the linears. Rows are float32; each row's result depends on that row alone.
#pragma once

#include <cstdint>

namespace coldplate {

enum class Activation : int { silu = 0, gelu_tanh = 1, gelu = 2, relu = 3 };

// out = x / sqrt(mean(x^2) + epsilon) * weight
void rms_norm(const float* x, const float* weight, float epsilon, int width, float* out);

// gate = activation(gate) * up over `count` neighbours
void activate(Activation activation, float* gate, const float* up, int count);

// Index of the first greatest value and the value; a NaN wins over every number.
int64_t argmax(const float* row, int64_t count, float* best);

}  // namespace coldplate
