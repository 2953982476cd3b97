// What drawing a token needs of whole rows of logits.
#include <algorithm>
#include <cstdint>

#include "threads.h"
#include "vec8.h"

namespace coldplate {
namespace {

constexpr int64_t kBlock = 256;

// Sum of e^((x - best) / temperature) over one block.
double block_sum(const float* x, int64_t count, float best, float temperature) {
  f32x8 sum = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    sum += exp8((load8(x + i) - splat8(best)) / splat8(temperature));
  }
  double total = 0.0;
  for (int j = 0; j < 8; j++) total += sum[j];
  for (; i < count; i++) {
    total += exp8(splat8((x[i] - best) / temperature))[0];
  }
  return total;
}

struct SumsCall {
  const float* logits;
  int rows;
  int64_t count;
  const float* best;
  const float* temperature;
  double* sums;
};

}  // namespace
}  // namespace coldplate

// Per row of `logits` [rows, count] the sums of e^((x - best) / temperature) over 256 neighbours: [rows, blocks]. No NaN.
extern "C" void coldplate_exp_sums(const float* logits, int32_t rows, int64_t count, const float* best,
                                   const float* temperature, double* sums) {
  using namespace coldplate;
  SumsCall call{logits, rows, count, best, temperature, sums};
  run_region(
      [](void* context, int thread, int threads) {
        const auto& call = *static_cast<const SumsCall*>(context);
        const int64_t blocks = (call.count + kBlock - 1) / kBlock;
        const int64_t all = blocks * call.rows;
        for (int64_t at = all * thread / threads; at < all * (thread + 1) / threads; at++) {
          const int64_t row = at / blocks, start = at % blocks * kBlock;
          call.sums[at] = block_sum(call.logits + row * call.count + start, std::min(kBlock, call.count - start),
                                    call.best[row], call.temperature[row]);
        }
      },
      &call);
}
