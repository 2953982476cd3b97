// All layers of a dense Llama-like decoder in one parallel region.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "rows.h"
#include "threads.h"

namespace coldplate {

// Plain data filled by Python (kernels/step.py has the same fields); what it points to outlives the step.
struct StepLayer {
  const PackedLinear* qkv;
  const PackedLinear* out;
  const PackedLinear* gate;
  const PackedLinear* up;
  const PackedLinear* down;
  const float* attention_norm;
  const float* mlp_norm;
  const float* q_norm;
  const float* k_norm;
  int32_t window;
  int32_t reserved;
};

struct StepModel {
  const StepLayer* layers;
  const PackedLinear* head;
  const void* embedding;  // null: rows of `head`
  const float* norm;
  const float* rotation;
  void* pool;
  int32_t layer_count, width, inner, heads, kv_heads, head_dim, rotated, vocabulary;
  int32_t embedding_type, cache_type;  // CacheType
  int32_t block_size, activation;
  float epsilon, scale;
};

// Where the calling thread's time went, in seconds, added up over runs.
enum StepPart : int { kEmbed, kNorm, kQkv, kAttention, kOut, kGateUp, kDown, kHead, kStepParts };

class Step {
 public:
  explicit Step(const StepModel& model);

  // Logits [logit_count, vocabulary] behind the rows `logit_rows`. Tokens of a slice are neighbours in `tokens`.
  void run(const int64_t* tokens, int rows, std::vector<Slice> slices, const int32_t* logit_rows, int logit_count,
           float* logits);

  double seconds[kStepParts] = {};

 private:
  struct Run {
    const int64_t* tokens;
    int rows;
    const int32_t* logit_rows;
    int logit_count;
    float* logits;
  };
  struct Worker;

  void region(int thread, int threads);

  StepModel model_;
  std::vector<StepLayer> layers_;
  Attention attention_;
  Barrier barrier_;
  Run run_{};
  std::vector<std::atomic<int>> claims_;  // by linear: the next part to take
  // By row: the residual stream, its normed copy, queries/keys/values, what attention gives, gate and up; then the
  // residual stream of the rows whose logits are wanted.
  std::vector<float> x_, normed_, qkv_, attended_, gate_, up_, last_x_;
  std::vector<char> prepared_;
  size_t prepared_stride_ = 0;
};

}  // namespace coldplate
