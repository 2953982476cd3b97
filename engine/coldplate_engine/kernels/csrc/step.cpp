#include "step.h"

#include <algorithm>
#include <chrono>

#include "vec8.h"

namespace coldplate {
namespace {

// Up to so many rows every thread norms and quantises all of them for itself: cheaper than meeting once more.
constexpr int kFewRows = 4;

// Parts of a linear for each thread: one that is held up, by another process say, leaves its share to the others.
constexpr int kPartsPerThread = 4;

enum Linear : int { kQkvLinear, kOutLinear, kGateUpLinear, kDownLinear, kLinears };

int share(int count, int part, int parts) { return int(int64_t(count) * part / parts); }

template <class T>
void widen_row(const void* table, int64_t row, int width, float* out) {
  const T* from = static_cast<const T*>(table) + row * width;
  for (int i = 0; i < width; i++) out[i] = widen(from[i]);
}

void* aligned(char* p) { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t(63)); }

template <class T>
void grow(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
}

}  // namespace

Step::Step(const StepModel& model)
    : model_(model),
      layers_(model.layers, model.layers + model.layer_count),
      attention_({model.pool, CacheType(model.cache_type), model.layer_count, model.kv_heads, model.head_dim,
                  model.block_size},
                 model.heads, model.scale, model.rotation, model.rotated),
      claims_(model.layer_count * kLinears + 1) {}

// One thread's view of a run.
struct Step::Worker {
  Step& step;
  const int thread, threads, rows;
  const bool few;
  const bool timed;
  std::chrono::steady_clock::time_point mark = std::chrono::steady_clock::now();

  void meet() { step.barrier_.wait(threads); }

  void account(StepPart part) {
    if (!timed) return;
    const auto now = std::chrono::steady_clock::now();
    step.seconds[part] += std::chrono::duration<double>(now - mark).count();
    mark = now;
  }

  // The rows this thread works on by itself, and where its own copy of few rows begins.
  int first(int count) const { return few ? 0 : share(count, thread, threads); }
  int last(int count) const { return few ? count : share(count, thread + 1, threads); }
  float* own(std::vector<float>& buffer, int64_t width) const {
    return buffer.data() + (few ? thread * kFewRows * width : 0);
  }
  void* prepared() const { return aligned(step.prepared_.data() + (few ? thread * step.prepared_stride_ : 0)); }

  // What the linear reads besides x: quantised activations, for the kinds that take them.
  const void* prepare(const PackedLinear& linear, const float* x, int count) {
    if (prepared_bytes(linear, count) == 0) return nullptr;
    if (few) {
      coldplate::prepare(linear, x, linear.k, count, prepared(), 0, 1);
    } else {
      coldplate::prepare(linear, x, linear.k, count, prepared(), thread, threads);
      meet();
    }
    return prepared();
  }

  // The normed copy of `count` rows of x.
  const float* norm(const float* weight, const float* x, int count) {
    const int width = step.model_.width;
    float* out = own(step.normed_, width);
    for (int row = first(count); row < last(count); row++) {
      rms_norm(x + int64_t(row) * width, weight, step.model_.epsilon, width, out + int64_t(row) * width);
    }
    if (!few) meet();
    return out;
  }

  // Calls body(part, parts) for the parts that fall to this thread.
  template <class Body>
  void parts(int claim, const Body& body) {
    const int count = threads == 1 ? 1 : threads * kPartsPerThread;
    while (true) {
      const int part = step.claims_[claim].fetch_add(1, std::memory_order_relaxed);
      if (part >= count) return;
      body(part, count);
    }
  }

  void multiply(int claim, const PackedLinear& linear, const float* x, int count, float* y, bool add) {
    const void* ready = prepare(linear, x, count);
    parts(claim, [&](int part, int parts) {
      coldplate::linear(linear, x, linear.k, ready, count, y, linear.n, add, part, parts);
    });
  }

  void embed() {
    const StepModel& model = step.model_;
    const int begin = share(rows, thread, threads), end = share(rows, thread + 1, threads);
    float* x = step.x_.data();
    if (model.embedding == nullptr) {
      weight_rows(*model.head, step.run_.tokens, rows, x, model.width, thread, threads);
    }
    for (int row = begin; row < end && model.embedding != nullptr; row++) {
      float* out = x + int64_t(row) * model.width;
      const int64_t token = step.run_.tokens[row];
      switch (CacheType(model.embedding_type)) {
        case CacheType::f32: widen_row<float>(model.embedding, token, model.width, out); break;
        case CacheType::bf16: widen_row<Bf16>(model.embedding, token, model.width, out); break;
        case CacheType::f16: widen_row<F16>(model.embedding, token, model.width, out); break;
      }
    }
    meet();
    account(kEmbed);
  }

  void layer(int index) {
    const StepModel& model = step.model_;
    const StepLayer& at = step.layers_[index];
    const int claim = index * kLinears;
    float* qkv = step.qkv_.data();
    const float* normed = norm(at.attention_norm, step.x_.data(), rows);
    account(kNorm);
    multiply(claim + kQkvLinear, *at.qkv, normed, rows, qkv, false);
    meet();
    account(kQkv);

    const int64_t attended_width = int64_t(model.heads) * model.head_dim;
    step.attention_.run({index, at.window, qkv, at.qkv->n, qkv + attended_width, at.qkv->n, at.q_norm, at.k_norm,
                         model.epsilon, step.attended_.data(), attended_width},
                        thread, [this] { meet(); });
    meet();
    account(kAttention);
    if (index + 1 < model.layer_count) {
      rest_of_layer(at, claim, rows, step.attended_.data(), step.x_.data());
    } else if (step.run_.logit_count > 0) {
      last_rows(attended_width);
      rest_of_layer(at, claim, step.run_.logit_count, qkv, step.last_x_.data());
    }
  }

  // What the last layer still needs: the wanted rows of the residual stream, and of attention in the place of qkv.
  void last_rows(int64_t attended_width) {
    const int count = step.run_.logit_count, width = step.model_.width;
    for (int row = share(count, thread, threads); row < share(count, thread + 1, threads); row++) {
      const int64_t from = step.run_.logit_rows[row];
      std::copy_n(step.x_.data() + from * width, width, step.last_x_.data() + int64_t(row) * width);
      std::copy_n(step.attended_.data() + from * attended_width, attended_width,
                  step.qkv_.data() + row * attended_width);
    }
    meet();
  }

  void rest_of_layer(const StepLayer& at, int claim, int count, const float* attended, float* x) {
    multiply(claim + kOutLinear, *at.out, attended, count, x, true);
    meet();
    account(kOut);
    const float* normed = norm(at.mlp_norm, x, count);
    account(kNorm);
    const void* ready = prepare(*at.gate, normed, count);
    float *gate = step.gate_.data(), *up = step.up_.data();
    parts(claim + kGateUpLinear, [&](int part, int parts) {
      coldplate::linear(*at.gate, normed, at.gate->k, ready, count, gate, at.gate->n, false, part, parts);
      coldplate::linear(*at.up, normed, at.up->k, ready, count, up, at.up->n, false, part, parts);
      int begin, end;  // of the columns just made in both
      column_range(at.gate->n, part, parts, &begin, &end);
      for (int64_t row = 0; row < count; row++) {
        const int64_t offset = row * at.gate->n + begin;
        activate(Activation(step.model_.activation), gate + offset, up + offset, end - begin);
      }
    });
    meet();
    account(kGateUp);
    multiply(claim + kDownLinear, *at.down, gate, count, x, true);
    meet();
    account(kDown);
  }

  void logits() {
    const int count = step.run_.logit_count;
    const float* normed = norm(step.model_.norm, step.last_x_.data(), count);
    multiply(step.model_.layer_count * kLinears, *step.model_.head, normed, count, step.run_.logits, false);
    account(kHead);
  }
};

void Step::run(const int64_t* tokens, int rows, std::vector<Slice> slices, const int32_t* logit_rows, int logit_count,
               float* logits) {
  run_ = {tokens, rows, logit_rows, logit_count, logits};
  const int threads = get_threads();
  const int64_t most_rows = std::max({rows, logit_count, kFewRows * threads});
  grow(x_, most_rows * model_.width);
  grow(last_x_, int64_t(logit_count) * model_.width);
  grow(normed_, most_rows * model_.width);
  grow(qkv_, int64_t(rows) * (model_.heads + 2 * model_.kv_heads) * model_.head_dim);
  grow(attended_, int64_t(rows) * model_.heads * model_.head_dim);
  grow(gate_, int64_t(rows) * model_.inner);
  grow(up_, int64_t(rows) * model_.inner);
  size_t bytes = logit_count > 0 ? prepared_bytes(*model_.head, logit_count) : 0;
  for (const StepLayer& layer : layers_) {
    for (const PackedLinear* linear : {layer.qkv, layer.out, layer.gate, layer.down}) {
      bytes = std::max(bytes, prepared_bytes(*linear, rows));
    }
  }
  prepared_stride_ = (bytes + 127) / 64 * 64;
  grow(prepared_, prepared_stride_ * threads + 64);
  for (auto& claim : claims_) claim.store(0, std::memory_order_relaxed);
  attention_.plan(std::move(slices), threads);
  run_region([](void* step, int thread, int threads) { static_cast<Step*>(step)->region(thread, threads); }, this);
}

void Step::region(int thread, int threads) {
  Worker worker{*this, thread, threads, run_.rows, run_.rows <= kFewRows && run_.logit_count <= kFewRows, thread == 0};
  worker.embed();
  for (int layer = 0; layer < model_.layer_count; layer++) worker.layer(layer);
  if (run_.logit_count > 0) worker.logits();
}

}  // namespace coldplate

extern "C" {

void* coldplate_step_new(const coldplate::StepModel* model) { return new coldplate::Step(*model); }

void coldplate_step_delete(void* step) { delete static_cast<coldplate::Step*>(step); }

// `slices` holds first_row, rows, start and the offset of its first block in `blocks`, for each.
void coldplate_step_run(void* step, const int64_t* tokens, int32_t rows, const int32_t* slices, int32_t slice_count,
                        const int32_t* blocks, const int32_t* logit_rows, int32_t logit_count, float* logits) {
  static_cast<coldplate::Step*>(step)->run(tokens, rows, coldplate::unpack_slices(slices, slice_count, blocks),
                                           logit_rows, logit_count, logits);
}

// Seconds by StepPart since the step was made, of the calling thread.
void coldplate_step_seconds(const void* step, double* out) {
  const auto* from = static_cast<const coldplate::Step*>(step)->seconds;
  std::copy(from, from + coldplate::kStepParts, out);
}

}
