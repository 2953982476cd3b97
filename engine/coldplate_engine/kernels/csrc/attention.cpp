#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "threads.h"
#include "vec8.h"

namespace coldplate {
namespace {

constexpr int kTile = 128;       // keys, rounded to whole blocks
constexpr int kRows = 48;        // query rows (queries times heads that share keys) attended together
constexpr int kItemsPerThread = 4;  // fewer than this and long contexts are cut into tiles

constexpr int kWaitingRows = 4;  // up to so many rows wait for memory, not for arithmetic

constexpr float kNothing = -std::numeric_limits<float>::infinity();

int padded(int count) { return (count + 15) / 16 * 16; }

// acc[r][2 * b], acc[r][2 * b + 1] += sum over k of a[r * lda + k] * the 16 values at b[b] + k * ldb.
// With few rows memory is the limit: what lies `ahead` of them, which is wanted next, is asked for meanwhile.
template <class T, int R, int B>
inline void multiply(const float* a, int64_t lda, const T* const* b, int64_t ldb, int depth, int64_t ahead,
                     f32x8 (&acc)[R][2 * B]) {
  for (int k = 0; k < depth; k++) {
    f32x8 right[2 * B];
    for (int j = 0; j < B; j++) {
      load16(b[j] + k * ldb, right[2 * j], right[2 * j + 1]);
      if (R <= kWaitingRows) __builtin_prefetch(b[j] + k * ldb + ahead, 0, 2);
    }
    for (int r = 0; r < R; r++) {
      const f32x8 left = splat8(a[r * lda + k]);
      for (int j = 0; j < 2 * B; j++) acc[r][j] += left * right[j];
    }
  }
}

// Scores of R rows against `groups` runs of 16 keys; run g goes to columns[g] and up.
template <class T, int R, int B>
void score_rows(const float* q, int head_dim, const T* const* keys, const int* columns, int groups, int block_size,
                float* scores, int stride) {
  for (int g = 0; g < groups; g += B) {
    const T* runs[B];
    for (int j = 0; j < B; j++) runs[j] = keys[std::min(g + j, groups - 1)];
    f32x8 acc[R][2 * B] = {};
    multiply<T, R, B>(q, head_dim, runs, block_size, head_dim, int64_t(head_dim) * block_size, acc);
    for (int j = 0; j < B && g + j < groups; j++) {
      for (int r = 0; r < R; r++) {
        in_order<T>(acc[r][2 * j], acc[r][2 * j + 1]);
        store8(scores + r * stride + columns[g + j], acc[r][2 * j]);
        store8(scores + r * stride + columns[g + j] + 8, acc[r][2 * j + 1]);
      }
    }
  }
}

// out [R, padded head_dim] = weights [R, keys] times the values of `keys` keys, block by block.
template <class T, int R, int B>
void weigh_rows(const float* weights, int stride, const T* const* values, const T* const* next_keys, int first, int keys,
                int block_size, int head_dim, float* out, int out_stride) {
  for (int column = 0; column < head_dim; column += 16 * B) {
    f32x8 acc[R][2 * B] = {};
    for (int key = first; key < keys; key += block_size) {
      const T* runs[B];
      for (int j = 0; j < B; j++) runs[j] = values[key / block_size] + std::min(column + 16 * j, head_dim - 1);
      const int64_t ahead = next_keys[key / block_size] - values[key / block_size];
      multiply<T, R, B>(weights + key, stride, runs, head_dim, std::min(block_size, keys - key), ahead, acc);
    }
    for (int j = 0; j < B && column + 16 * j < head_dim; j++) {
      for (int r = 0; r < R; r++) {
        in_order<T>(acc[r][2 * j], acc[r][2 * j + 1]);
        store8(out + r * out_stride + column + 16 * j, acc[r][2 * j]);
        store8(out + r * out_stride + column + 16 * j + 8, acc[r][2 * j + 1]);
      }
    }
  }
}

// Calls f with a compile-time number of rows, at most 6 at a time and evenly.
template <class F>
void by_rows(int rows, F f) {
  const int parts = (rows + 5) / 6;
  int row = 0;
  for (int part = 0; part < parts; part++) {
    const int count = (rows - row + parts - part - 1) / (parts - part);
    switch (count) {
      case 1: f.template operator()<1, 4>(row); break;
      case 2: f.template operator()<2, 2>(row); break;
      case 3: f.template operator()<3, 2>(row); break;
      case 4: f.template operator()<4, 1>(row); break;
      case 5: f.template operator()<5, 1>(row); break;
      default: f.template operator()<6, 1>(row); break;
    }
    row += count;
  }
}

// exp(scores - maximum) over the columns [low, high) and 0 elsewhere up to padded(keys). Returns their sum.
float exponentials(float* scores, int low, int high, int keys, float* maximum) {
  const int end = padded(keys);
  for (int i = 0; i < low; i++) scores[i] = kNothing;
  for (int i = std::max(low, high); i < end; i++) scores[i] = kNothing;
  f32x8 best = splat8(kNothing);
  for (int i = 0; i < end; i += 8) best = max8(best, load8(scores + i));
  float top = kNothing;
  for (int i = 0; i < 8; i++) top = std::max(top, best[i]);
  *maximum = top;
  if (top == kNothing) top = 0;  // nothing is seen (or nothing but NaN, which exp keeps)
  f32x8 sum = {};
  for (int i = 0; i < end; i += 8) {
    const f32x8 weight = exp8(load8(scores + i) - splat8(top));
    store8(scores + i, weight);
    sum += weight;
  }
  return sum8(sum);
}

// A row's state so far, and one tile's: both [maximum, sum, weighted values].
void merge_row(float* maximum, float* sum, float* values, float tile_maximum, float tile_sum, const float* tile_values,
               int width) {
  if (tile_sum == 0) return;
  const float top = std::max(*maximum, tile_maximum);
  const float keep = *maximum == kNothing ? 0.0f : std::exp(*maximum - top);
  const float take = tile_maximum == kNothing ? 1.0f : std::exp(tile_maximum - top);
  *maximum = top;
  *sum = *sum * keep + tile_sum * take;
  for (int i = 0; i < width; i += 8) {
    store8(values + i, load8(values + i) * splat8(keep) + load8(tile_values + i) * splat8(take));
  }
}

}  // namespace

Attention::Attention(CacheShape cache, int heads, float scale, const float* rotation, int rotated)
    : cache_(cache),
      heads_(heads),
      group_(heads / cache.kv_heads),
      rotated_(rotated),
      key_tile_(std::max(1, kTile / cache.block_size) * cache.block_size),
      row_stride_(padded(cache.head_dim)),
      query_tile_(std::max(1, kRows / group_)),
      scale_(scale),
      rotation_(rotation),
      next_(cache.layers) {}

std::vector<Slice> unpack_slices(const int32_t* packed, int count, const int32_t* blocks) {
  std::vector<Slice> slices(count);
  for (int i = 0; i < count; i++, packed += 4) slices[i] = {packed[0], packed[1], packed[2], blocks + packed[3]};
  return slices;
}

void Attention::plan(std::vector<Slice> slices, int threads) {
  const int count = int(slices.size());
  threads_ = threads;
  slices_ = std::move(slices);
  items_.clear();
  bool single = true, one_row = true, long_context = false;
  for (const Slice& slice : slices_) {
    single &= slice.rows <= query_tile_;
    one_row &= slice.rows == 1;
    long_context |= slice.start + slice.rows > 2 * key_tile_;
  }
  split_ = threads > 1 && single && long_context && count * cache_.kv_heads < kItemsPerThread * threads;
  write_in_item_ = single && (one_row || !split_);
  int64_t partial = 0;
  for (int s = 0; s < count; s++) {
    const Slice& slice = slices_[s];
    const int tiles = (slice.start + slice.rows + key_tile_ - 1) / key_tile_;
    const int queries = (slice.rows + query_tile_ - 1) / query_tile_;
    for (int tile = queries - 1; tile >= 0; tile--) {  // the longest first: threads end together
      const int first = tile * query_tile_;
      const int here = std::min(query_tile_, slice.rows - first);
      for (int head = 0; head < cache_.kv_heads; head++) {
        for (int cut = 0; cut < (split_ ? tiles : 1); cut++) {
          items_.push_back({s, head, first, here, cut, split_ ? 1 : -1, partial});
          if (split_) partial += int64_t(here) * group_ * (row_stride_ + 2);
        }
      }
    }
  }
  if (int64_t(partials_.size()) < partial) partials_.resize(partial);
  const int64_t rows = int64_t(query_tile_) * group_;
  // queries, scores, one tile's values, the state
  const int64_t needed = padded(int(rows * (3 * row_stride_ + key_tile_ + 16 + 4))) + 16;
  scratch_per_thread_ = needed;
  if (int64_t(scratch_.size()) < needed * threads) scratch_.resize(needed * threads);
  for (auto& next : next_) next.store(0, std::memory_order_relaxed);
}

template <class T>
T* Attention::head_of(const AttentionLayer& at, int block, int head) const {
  const int64_t size = int64_t(2) * cache_.head_dim * cache_.block_size;
  return static_cast<T*>(cache_.pool) + ((int64_t(block) * cache_.layers + at.layer) * cache_.kv_heads + head) * size;
}

int Attention::first_tile(const AttentionLayer& at, int position) const {
  return at.window > 0 ? std::max(0, position - at.window + 1) / key_tile_ : 0;
}

// A head normed, rotated and scaled.
void Attention::load_head(const float* from, const float* norm, float epsilon, int position, float scale,
                          float* to) const {
  const int size = cache_.head_dim;
  float factor = scale;
  if (norm != nullptr) {
    float squares = 0;
    for (int i = 0; i < size; i++) squares += from[i] * from[i];
    factor *= 1.0f / std::sqrt(squares / float(size) + epsilon);
    for (int i = 0; i < size; i++) to[i] = from[i] * factor * norm[i];
  } else {
    for (int i = 0; i < size; i++) to[i] = from[i] * factor;
  }
  const float* turn = rotation_ + int64_t(position) * rotated_;
  for (int i = 0; i < rotated_; i += 2) {
    const float x = to[i], y = to[i + 1];
    to[i] = x * turn[i] - y * turn[i + 1];
    to[i + 1] = x * turn[i + 1] + y * turn[i];
  }
}

template <class T>
void Attention::write(const AttentionLayer& at, const Slice& slice, int first, int count, int head,
                      float* scratch) const {
  const int size = cache_.head_dim, block_size = cache_.block_size;
  for (int row = first; row < first + count; row++) {
    const int position = slice.start + row;
    const float* key = at.keys_values + (slice.first_row + row) * at.key_stride + int64_t(head) * size;
    const float* value = key + int64_t(cache_.kv_heads) * size;
    load_head(key, at.k_norm, at.norm_epsilon, position, 1.0f, scratch);
    const int offset = position % block_size;
    T* keys = head_of<T>(at, slice.blocks[position / block_size], head);
    T* values = keys + int64_t(size) * block_size + int64_t(offset) * size;
    for (int i = 0; i < size; i++) narrow(scratch[i], keys + int64_t(i) * block_size + offset);
    for (int i = 0; i < size; i++) narrow(value[i], values + i);
  }
}

template <class T>
void Attention::attend(const AttentionLayer& at, const Item& item, float* scratch) {
  const Slice& slice = slices_[item.slice];
  const int size = cache_.head_dim, block_size = cache_.block_size, stride = key_tile_ + 16;
  const int rows = item.queries * group_;
  float* q = scratch;
  float* scores = q + rows * size;
  float* tile_values = scores + rows * stride;
  float* values = tile_values + rows * row_stride_;
  float* sums = values + rows * row_stride_;
  float* maxima = sums + rows;
  float* tile_sums = maxima + rows;
  float* tile_maxima = tile_sums + rows;

  if (write_in_item_ && (item.tiles < 0 || item.first_tile == (slice.start + slice.rows - 1) / key_tile_)) {
    write<T>(at, slice, 0, slice.rows, item.head, q);
  }
  const int first_position = slice.start + item.first_query;
  const int last_position = first_position + item.queries - 1;
  for (int i = 0; i < item.queries; i++) {
    const float* from = at.queries + (slice.first_row + item.first_query + i) * at.query_stride;
    for (int h = 0; h < group_; h++) {
      load_head(from + int64_t(item.head * group_ + h) * size, at.q_norm, at.norm_epsilon, first_position + i, scale_,
                q + (i * group_ + h) * size);
    }
  }
  std::fill(values, values + rows * row_stride_, 0.0f);
  std::fill(sums, sums + rows, 0.0f);
  std::fill(maxima, maxima + rows, kNothing);

  const int first_seen = first_tile(at, first_position), last_tile = last_position / key_tile_;
  const int from = item.tiles < 0 ? first_seen : item.first_tile;
  const int to = item.tiles < 0 ? last_tile : std::min(last_tile, item.first_tile);
  constexpr int kMostRuns = 64;
  const int blocks = item.tiles < 0 ? last_position / block_size + 1 : 0;  // beyond those no tile of this item follows
  for (int tile = std::max(from, first_seen); tile <= to; tile++) {
    const int base = tile * key_tile_;
    const int keys = std::min(key_tile_, last_position + 1 - base);
    // The part of the tile before the window of its first query holds nothing for any row.
    const int low = at.window > 0 ? std::max(0, first_position - at.window + 1 - base) / block_size * block_size : 0;
    const T *value_blocks[kTile], *next_keys[kTile];
    for (int b = 0; b * block_size < keys; b++) {
      value_blocks[b] = head_of<T>(at, slice.blocks[base / block_size + b], item.head) + int64_t(size) * block_size;
      const int next = base / block_size + b + key_tile_ / block_size;
      next_keys[b] = next < blocks ? head_of<T>(at, slice.blocks[next], item.head) : value_blocks[b];
    }
    const T* runs[kMostRuns];
    int columns[kMostRuns];
    int count = 0;
    const auto score = [&] {
      by_rows(rows, [&]<int R, int B>(int row) {
        score_rows<T, R, B>(q + row * size, size, runs, columns, count, block_size, scores + row * stride, stride);
      });
      count = 0;
    };
    for (int key = low; key < keys; key += block_size) {
      const T* block = value_blocks[key / block_size] - int64_t(size) * block_size;
      for (int inside = 0; inside < std::min(block_size, keys - key); inside += 16) {
        runs[count] = block + inside;
        columns[count++] = key + inside;
        if (count == kMostRuns) score();
      }
    }
    if (count > 0) score();
    for (int row = 0; row < rows; row++) {
      const int position = first_position + row / group_;
      const int seen_from = at.window > 0 ? std::clamp(position - at.window + 1 - base, 0, keys) : 0;
      const int seen_to = std::clamp(position + 1 - base, 0, keys);
      tile_sums[row] = exponentials(scores + row * stride, seen_from, seen_to, keys, tile_maxima + row);
    }
    by_rows(rows, [&]<int R, int B>(int row) {
      weigh_rows<T, R, B>(scores + row * stride, stride, value_blocks, next_keys, low, keys, block_size, size,
                          tile_values + row * row_stride_, row_stride_);
    });
    for (int row = 0; row < rows; row++) {
      merge_row(maxima + row, sums + row, values + row * row_stride_, tile_maxima[row], tile_sums[row],
                tile_values + row * row_stride_, row_stride_);
    }
  }
  if (item.tiles >= 0) {
    float* to_partial = partials_.data() + item.partial;
    std::copy(values, values + rows * row_stride_, to_partial);
    std::copy(sums, sums + rows, to_partial + rows * row_stride_);
    std::copy(maxima, maxima + rows, to_partial + rows * row_stride_ + rows);
    return;
  }
  for (int row = 0; row < rows; row++) {
    float* out = at.out + (slice.first_row + item.first_query + row / group_) * at.out_stride +
                 int64_t(item.head * group_ + row % group_) * size;
    const float inverse = 1.0f / sums[row];
    for (int i = 0; i < size; i++) out[i] = values[row * row_stride_ + i] * inverse;
  }
}

void Attention::write_rows(const AttentionLayer& at, int thread) {
  float* scratch = scratch_.data() + scratch_per_thread_ * thread;
  for (const Slice& slice : slices_) {
    const int first = int(int64_t(slice.rows) * thread / threads_);
    const int count = int(int64_t(slice.rows) * (thread + 1) / threads_) - first;
    for (int head = 0; head < cache_.kv_heads; head++) {
      switch (cache_.type) {
        case CacheType::f32: write<float>(at, slice, first, count, head, scratch); break;
        case CacheType::bf16: write<Bf16>(at, slice, first, count, head, scratch); break;
        case CacheType::f16: write<F16>(at, slice, first, count, head, scratch); break;
      }
    }
  }
}

void Attention::items(const AttentionLayer& at, int thread) {
  float* scratch = scratch_.data() + scratch_per_thread_ * thread;
  const int count = int(items_.size());
  while (true) {
    const int next = next_[at.layer].fetch_add(1, std::memory_order_relaxed);
    if (next >= count) return;
    switch (cache_.type) {
      case CacheType::f32: attend<float>(at, items_[next], scratch); break;
      case CacheType::bf16: attend<Bf16>(at, items_[next], scratch); break;
      case CacheType::f16: attend<F16>(at, items_[next], scratch); break;
    }
  }
}

// The items of one head of one slice lie side by side, its tiles in order; whole slices go round the threads.
void Attention::merge(const AttentionLayer& at, int thread) {
  const int size = cache_.head_dim, count = int(items_.size());
  float* values = scratch_.data() + scratch_per_thread_ * thread;
  int turn = 0;
  for (int first = 0, end; first < count; first = end, turn++) {
    const Item& item = items_[first];
    for (end = first + 1; end < count && items_[end].slice == item.slice && items_[end].head == item.head;) end++;
    if (turn % threads_ != thread) continue;
    const Slice& slice = slices_[item.slice];
    const int rows = item.queries * group_;
    for (int row = 0; row < rows; row++) {
      float maximum = kNothing, sum = 0;
      std::fill(values, values + row_stride_, 0.0f);
      for (int i = first; i < end; i++) {
        const float* partial = partials_.data() + items_[i].partial;
        merge_row(&maximum, &sum, values, partial[rows * row_stride_ + rows + row], partial[rows * row_stride_ + row],
                  partial + row * row_stride_, row_stride_);
      }
      float* out = at.out + (slice.first_row + row / group_) * at.out_stride +
                   int64_t(item.head * group_ + row % group_) * size;
      const float inverse = 1.0f / sum;
      for (int i = 0; i < size; i++) out[i] = values[i] * inverse;
    }
  }
}

}  // namespace coldplate

namespace {

struct AttentionCall {
  coldplate::Attention* attention;
  coldplate::AttentionLayer at;
  coldplate::Barrier barrier;
};

}  // namespace

extern "C" {

void* coldplate_attention_new(void* pool, int32_t type, int32_t layers, int32_t kv_heads, int32_t head_dim,
                              int32_t block_size, int32_t heads, float scale) {
  const coldplate::CacheShape cache{pool, coldplate::CacheType(type), layers, kv_heads, head_dim, block_size};
  return new coldplate::Attention(cache, heads, scale, nullptr, 0);
}

void coldplate_attention_delete(void* attention) { delete static_cast<coldplate::Attention*>(attention); }

// Before the layers of a step. ``slices`` holds first_row, rows, start and the offset of its blocks in ``blocks``.
void coldplate_attention_plan(void* attention, const int32_t* slices, int32_t count, const int32_t* blocks) {
  static_cast<coldplate::Attention*>(attention)->plan(coldplate::unpack_slices(slices, count, blocks),
                                                      coldplate::get_threads());
}

// One layer in a parallel region of its own.
void coldplate_attention_run(void* attention, int32_t layer, int32_t window, const float* queries, int64_t query_stride,
                             const float* keys_values, int64_t key_stride, float* out, int64_t out_stride) {
  AttentionCall call{static_cast<coldplate::Attention*>(attention),
                     {layer, window, queries, query_stride, keys_values, key_stride, nullptr, nullptr, 0, out,
                      out_stride},
                     {}};
  coldplate::run_region(
      [](void* context, int thread, int threads) {
        auto& call = *static_cast<AttentionCall*>(context);
        call.attention->run(call.at, thread, [&call, threads] { call.barrier.wait(threads); });
      },
      &call);
}

}
