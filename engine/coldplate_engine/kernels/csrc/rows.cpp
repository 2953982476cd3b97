#include "rows.h"

#include <algorithm>
#include <cmath>

#include "threads.h"
#include "vec8.h"

namespace coldplate {
namespace {

f32x8 activated(Activation activation, f32x8 x) {
  switch (activation) {
    case Activation::silu: return x / (splat8(1.0f) + exp8(-x));
    case Activation::relu: return max8(splat8(0.0f), x);
    case Activation::gelu_tanh: {  // 0.5 x (1 + tanh(z)) = x / (1 + e^(-2z))
      const f32x8 z = splat8(0.7978845608028654f) * (x + splat8(0.044715f) * x * x * x);
      return x / (splat8(1.0f) + exp8(z * splat8(-2.0f)));
    }
    case Activation::gelu: {
      f32x8 out;
      for (int i = 0; i < 8; i++) out[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678118654752f));
      return out;
    }
  }
  return x;
}

}  // namespace

void rms_norm(const float* x, const float* weight, float epsilon, int width, float* out) {
  f32x8 sums[4] = {};
  int i = 0;
  for (; i + 32 <= width; i += 32) {
    for (int j = 0; j < 4; j++) {
      const f32x8 v = load8(x + i + 8 * j);
      sums[j] += v * v;
    }
  }
  float total = sum8((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < width; i++) total += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(total / float(width) + epsilon);
  for (int j = 0; j < width; j++) out[j] = x[j] * factor * weight[j];
}

void activate(Activation activation, float* gate, const float* up, int count) {
  int i = 0;
  for (; i + 8 <= count; i += 8) store8(gate + i, activated(activation, load8(gate + i)) * load8(up + i));
  for (; i < count; i++) gate[i] = activated(activation, splat8(gate[i]))[0] * up[i];
}

int64_t argmax(const float* row, int64_t count, float* best) {
  constexpr int64_t kRun = 1024;
  float top = -INFINITY;
  int64_t run = 0;
  for (int64_t start = 0; start < count; start += kRun) {
    const int64_t end = std::min(count, start + kRun);
    f32x8 most = splat8(row[start]), unequal = {};
    int64_t i = start;
    for (; i + 8 <= end; i += 8) {
      const f32x8 v = load8(row + i);
      most = max8(v, most);
      unequal += v - v;  // NaN where v is NaN or infinite
    }
    float here = row[start];
    bool odd = sum8(unequal) != 0;
    for (int j = 0; j < 8; j++) here = std::max(here, most[j]);
    for (; i < end; i++) {
      odd |= row[i] != row[i];
      here = std::max(here, row[i]);
    }
    if (odd) {
      for (i = start; i < end; i++) {
        if (row[i] != row[i]) {
          *best = row[i];
          return i;
        }
      }
      here = *std::max_element(row + start, row + end);
    }
    if (here > top || start == 0) {
      top = here;
      run = start;
    }
  }
  const int64_t end = std::min(count, run + kRun);
  *best = top;
  return std::find(row + run, row + end, top) - row;
}

}  // namespace coldplate

namespace {

struct ArgmaxCall {
  const float* logits;
  int rows;
  int64_t count;
  int64_t* ids;
  float* best;
};

}  // namespace

// The first greatest of each row of `logits` [rows, count], and its value.
extern "C" void coldplate_argmax(const float* logits, int32_t rows, int64_t count, int64_t* ids, float* best) {
  ArgmaxCall call{logits, rows, count, ids, best};
  if (rows == 1) {
    ids[0] = coldplate::argmax(logits, count, best);
    return;
  }
  coldplate::run_region(
      [](void* context, int thread, int threads) {
        const auto& call = *static_cast<const ArgmaxCall*>(context);
        for (int row = thread; row < call.rows; row += threads) {
          call.ids[row] = coldplate::argmax(call.logits + row * call.count, call.count, call.best + row);
        }
      },
      &call);
}
