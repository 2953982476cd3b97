// Attention of one step straight from the paged cache.
//
// The cache is [num_blocks, layers, kv_heads, 2, head_dim * block_size]: of one head of one block, the keys transposed
// ([head_dim, block_size]), then the values ([block_size, head_dim]). Both products of attention then read rows of
// neighbours, and a block of all layers is one run of memory. Kernels load 16 elements at a time and may read up to 15
// beyond the last block: the pool has that much slack.
//
// A row's keys are taken in tiles of ``key_tile`` counted from position 0, each with its own maximum, and the tiles are
// merged in order; a row's result is therefore the same bits alone, in any batch, in any chunk and for any number of
// threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace coldplate {

enum class CacheType : int { f32 = 0, bf16 = 1, f16 = 2 };

struct CacheShape {
  void* pool;
  CacheType type;
  int layers, kv_heads, head_dim, block_size;
};

// ``rows`` tokens of one stream from row ``first_row`` of the step on, at positions ``start`` and up.
struct Slice {
  int first_row, rows, start;
  const int32_t* blocks;  // of all positions below start + rows
};

// Slices from Python: first_row, rows, start and the offset of its first block in ``blocks``, for each.
std::vector<Slice> unpack_slices(const int32_t* packed, int count, const int32_t* blocks);

// What differs from layer to layer. A row's query heads lie side by side, and its key heads, with the value heads behind.
struct AttentionLayer {
  int layer;
  int window;  // key j is seen from position i when i - j < window; 0: all
  const float* queries;
  int64_t query_stride;
  const float* keys_values;
  int64_t key_stride;
  const float* q_norm;  // [head_dim] or null: RMS norm of each head before the rotation
  const float* k_norm;
  float norm_epsilon;
  float* out;  // [rows, heads * head_dim]
  int64_t out_stride;
};

class Attention {
 public:
  // ``rotation`` [positions, rotated / 2, 2]: cosine and sine of each pair of neighbours; ``rotated`` 0: none.
  Attention(CacheShape cache, int heads, float scale, const float* rotation, int rotated);

  // Divide a step's work. Allocates only when a step is larger than any before it.
  void plan(std::vector<Slice> slices, int threads);

  // One layer, called by every thread between two barriers of its own; ``barrier`` is waited for inside where needed.
  template <class Barrier>
  void run(const AttentionLayer& at, int thread, Barrier&& barrier) {
    if (!write_in_item_) {
      write_rows(at, thread);
      barrier();
    }
    items(at, thread);
    if (split_) {
      barrier();
      merge(at, thread);
    }
  }

 private:
  struct Item {
    int slice, head;
    int first_query, queries;
    int first_tile, tiles;  // tiles < 0: all; else the partial results go to ``partial``
    int64_t partial;
  };

  void write_rows(const AttentionLayer& at, int thread);
  void items(const AttentionLayer& at, int thread);
  void merge(const AttentionLayer& at, int thread);
  template <class T>
  void attend(const AttentionLayer& at, const Item& item, float* scratch);
  template <class T>
  void write(const AttentionLayer& at, const Slice& slice, int first, int count, int head, float* scratch) const;
  void load_head(const float* from, const float* norm, float epsilon, int position, float scale, float* to) const;
  template <class T>
  T* head_of(const AttentionLayer& at, int block, int head) const;
  int first_tile(const AttentionLayer& at, int position) const;

  CacheShape cache_;
  int heads_, group_, rotated_, key_tile_, row_stride_, query_tile_;
  float scale_;
  const float* rotation_;
  std::vector<Slice> slices_;
  std::vector<Item> items_;
  std::vector<float> scratch_, partials_;
  int64_t scratch_per_thread_ = 0;
  int threads_ = 1;
  bool split_ = false, write_in_item_ = false;
  std::vector<std::atomic<int>> next_;  // by layer: the next item to take
};

}  // namespace coldplate
