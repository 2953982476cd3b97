// What Python calls, over the pool of threads. Addresses come from tensors whose shapes Python has checked.
#include <cstdlib>
#include <memory>

#include "kinds.h"
#include "pack.h"
#include "threads.h"

namespace {

using namespace coldplate;

struct LinearCall {
  const PackedLinear* linear;
  const float* x;
  void* prepared;
  int rows;
  float* y;
  Barrier prepared_by_all;
};

void linear_region(void* context, int thread, int threads) {
  LinearCall& call = *static_cast<LinearCall*>(context);
  const PackedLinear& l = *call.linear;
  if (call.prepared) {
    prepare(l, call.x, l.k, call.rows, call.prepared, thread, threads);
    call.prepared_by_all.wait(threads);
  }
  linear(l, call.x, l.k, call.prepared, call.rows, call.y, l.n, false, thread, threads);
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Scratch of the calling thread; grows to the largest call.
void* scratch(size_t bytes) {
  thread_local std::unique_ptr<void, Free> memory;
  thread_local size_t size = 0;
  if (bytes > size) {
    size = (bytes + 4095) / 4096 * 4096;
    memory.reset(std::aligned_alloc(64, size));
  }
  return memory.get();
}

template <class Body>
void in_parallel(const Body& body) {
  run_region([](void* context, int thread, int threads) { (*static_cast<const Body*>(context))(thread, threads); },
             const_cast<Body*>(&body));
}

}  // namespace

extern "C" {

int coldplate_lanes() { return kLanes; }
void coldplate_set_threads(int threads) { set_threads(threads); }
int coldplate_get_threads() { return get_threads(); }

size_t coldplate_weight_bytes(const PackedLinear* l) { return weight_bytes(*l); }
size_t coldplate_scale_bytes(const PackedLinear* l) { return scale_bytes(*l); }

void coldplate_pack_float(const PackedLinear* l, const void* source, void* weight) {
  in_parallel([=](int thread, int threads) { pack_float(*l, source, weight, thread, threads); });
}

void coldplate_pack_int4(const PackedLinear* l, const uint8_t* source, const float* scales, const float* zeros,
                         void* weight, void* packed_scales) {
  in_parallel([=](int thread, int threads) {
    pack_int4(*l, source, scales, zeros, weight, packed_scales, thread, threads);
  });
}

void coldplate_pack_int8(const PackedLinear* l, const int8_t* source, const float* scales, void* weight,
                         void* packed_scales) {
  in_parallel(
      [=](int thread, int threads) { pack_int8(*l, source, scales, weight, packed_scales, thread, threads); });
}

// y [rows, n] = x [rows, k] W^T + bias, both contiguous.
void coldplate_linear(const PackedLinear* l, const float* x, int rows, float* y) {
  LinearCall call{};
  call.linear = l, call.x = x, call.rows = rows, call.y = y;
  const size_t bytes = prepared_bytes(*l, rows);
  if (bytes) call.prepared = scratch(bytes);
  if (static_cast<int64_t>(l->n) * l->k * rows < 100000) return linear_region(&call, 0, 1);  // dearer to share
  run_region(linear_region, &call);
}

// out [count, k] = rows of W.
void coldplate_weight_rows(const PackedLinear* l, const int64_t* ids, int count, float* out) {
  weight_rows(*l, ids, count, out, l->k, 0, 1);
}

}  // extern "C"
