// Attention of some query rows of one sequence and KV head over segments of its context.
#pragma once

#include <algorithm>

#include "attention_tile.h"
#include "rope.h"

namespace repartee {

constexpr int64_t kSegment = 256;
// Keys whose values are added between two calls for the keys to come.
constexpr int64_t kKeysAtOnce = 32;

struct AttentionArguments {
  const float* q;  // [tokens][q heads][D]
  float* out;      // the same
  const int32_t* query_starts;
  const int32_t* context_lens;
  const int32_t* block_tables;
  int64_t num_sequences;
  int64_t max_blocks;
  int64_t num_q_heads;
  float scale;
};

// Some query tokens and one KV head, over the segments before `segment_end` of a sequence.
struct AttentionItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_token;     // row of q
  int32_t num_tokens;
  int64_t first_position;  // of the first token
  int64_t segment_end;
  // Rows of q of tokens that do not follow each other; null for those that do.
  const int32_t* tokens;
};

// The softmax state of an item's rows: largest score, sum of exponentials, weighted values.
struct RowStates {
  float* largest;  // [rows]
  float* sum;      // [rows]
  float* values;   // [rows][D]
};

struct AttentionScratch {
  Scratch<float> keys;    // one tile of 16 keys, transposed: [D][16]
  Scratch<float> scores;  // [rows][256]
  Scratch<float> states;
};

inline RowStates row_states(float* memory, int64_t rows) {
  return {memory, memory + rows, memory + 2 * rows};
}
inline int64_t state_floats(int64_t rows, int64_t head_dim) { return rows * (2 + head_dim); }

template <KvKind kKind>
class ItemKernel {
 public:
  ItemKernel(const AttentionArguments& a, const Cache& cache, const AttentionItem& item,
             AttentionScratch& scratch)
      : a_(a), cache_(cache), item_(item), scratch_(scratch) {
    group_ = a.num_q_heads / cache.num_kv_heads;
    num_rows_ = static_cast<int>(item.num_tokens * group_);
    for (int row = 0; row < num_rows_; ++row) {
      const int64_t place = row / group_;
      const int64_t token = item.tokens == nullptr ? item.first_token + place : item.tokens[place];
      q_[row] = a.q + (token * a.num_q_heads + item.kv_head * group_ + row % group_) *
                          cache.head_dim;
    }
  }

  // Largest score, sum and weighted values of one segment alone; rows that do not reach
  // it are left out. With `goes_on`, the next segment is this kernel's as well.
  void run_segment(int64_t segment, const RowStates& to, bool goes_on) {
    const int64_t first_key = segment * kSegment;
    const int64_t num_keys = visible(num_rows_ - 1, first_key);
    find_keys(first_key, num_keys);
    const int64_t num_next = goes_on ? visible(num_rows_ - 1, first_key + kSegment) : 0;
    if (num_next > 0) find_next_keys(first_key + kSegment, num_next);
    float* keys = scratch_.keys.get(cache_.head_dim * 16);
    float* scores = scratch_.scores.get(num_rows_ * kSegment);
    int first_row = 0;
    while (visible(first_row, first_key) <= 0) ++first_row;
    for (int64_t t = 0; t < num_keys; t += 16) {
      prefetch_tile(t, num_keys, segment != fetched_);
      transpose_keys<kKind>(k_ + t, num_keys - t, cache_.head_dim, keys);
      float* at[kItemRowsMax];
      for (int row = first_row; row < num_rows_; ++row) at[row] = scores + row * kSegment + t;
      score_rows(num_rows_ - first_row, q_ + first_row, keys, cache_.head_dim, at + first_row);
    }
    float* weights[kItemRowsMax];
    float* values[kItemRowsMax];
    for (int row = first_row; row < num_rows_; ++row) {
      weights[row] = scores + row * kSegment;
      values[row] = to.values + row * cache_.head_dim;
      std::memset(values[row], 0, static_cast<size_t>(cache_.head_dim) * 4);
      const int64_t count = visible(row, first_key);
      if constexpr (is_quantized(kKind)) scale_row(weights[row], k_scale_, count);
      softmax_row(weights[row], count, a_.scale, to.largest + row, to.sum + row);
      if constexpr (is_quantized(kKind)) scale_row(weights[row], v_scale_, count);
    }
    for (int row = first_row; row < num_rows_;) {
      const int rows = num_rows_ - row >= kValueRows ? kValueRows : num_rows_ - row;
      weigh_values(row, rows, first_key, weights, values, row == first_row ? num_next : 0);
      row += rows;
    }
    fetched_ = num_next > 0 ? segment + 1 : -1;
  }

  // Folds a segment's states into the running ones.
  void merge(int64_t segment, const RowStates& part, const RowStates& state) const {
    for (int row = 0; row < num_rows_; ++row) {
      if (visible(row, segment * kSegment) <= 0) continue;
      float* values = state.values + row * cache_.head_dim;
      const float* more = part.values + row * cache_.head_dim;
      if (segment == 0) {
        std::memcpy(values, more, static_cast<size_t>(cache_.head_dim) * 4);
        state.largest[row] = part.largest[row];
        state.sum[row] = part.sum[row];
        continue;
      }
      const float largest = std::max(state.largest[row], part.largest[row]);
      const float keep = scalar_exp(state.largest[row] - largest);
      const float take = scalar_exp(part.largest[row] - largest);
      for (int64_t d = 0; d < cache_.head_dim; ++d) values[d] = values[d] * keep + more[d] * take;
      state.largest[row] = largest;
      state.sum[row] = state.sum[row] * keep + part.sum[row] * take;
    }
  }

  void finish(const RowStates& state) const {
    for (int row = 0; row < num_rows_; ++row) {
      float* out = a_.out + (q_[row] - a_.q);
      const float inverse = 1.0f / state.sum[row];
      const float* values = state.values + row * cache_.head_dim;
      for (int64_t d = 0; d < cache_.head_dim; ++d) out[d] = values[d] * inverse;
    }
  }

  int num_rows() const { return num_rows_; }

 private:
  static constexpr int kItemRowsMax = 256;

  // Keys of the segment beginning at `first_key` that `row` sees.
  int64_t visible(int row, int64_t first_key) const {
    return std::min<int64_t>(kSegment, item_.first_position + row / group_ + 1 - first_key);
  }

  // Calls take(t, row of the cache) for each of `num_keys` keys.
  template <class Take>
  void for_keys(int64_t first_key, int64_t num_keys, Take&& take) const {
    const int32_t* table = a_.block_tables + item_.sequence * a_.max_blocks;
    int64_t block = first_key / cache_.block_size;
    int64_t in_block = first_key % cache_.block_size;
    for (int64_t t = 0; t < num_keys; ++block, in_block = 0) {
      int64_t row = cache_.row(table[block], item_.kv_head, in_block);
      const int64_t end = std::min(num_keys, t + cache_.block_size - in_block);
      for (; t < end; ++row, ++t) take(t, row);
    }
  }

  void find_keys(int64_t first_key, int64_t num_keys) {
    const int64_t stride = cache_.head_dim * value_bytes(kKind);
    for_keys(first_key, num_keys, [&](int64_t t, int64_t row) {
      k_[t] = cache_.k + row * stride;
      v_[t] = cache_.v + row * stride;
      if constexpr (is_quantized(kKind)) {
        k_scale_[t] = cache_.k_scale[row] * value_factor(kKind);
        v_scale_[t] = cache_.v_scale[row] * value_factor(kKind);
      }
    });
    if constexpr (is_quantized(kKind)) {
      for (int64_t t = num_keys; t % 16 != 0; ++t) k_scale_[t] = v_scale_[t] = 0.0f;
    }
  }

  void find_next_keys(int64_t first_key, int64_t num_keys) {
    const int64_t stride = cache_.head_dim * value_bytes(kKind);
    for_keys(first_key, num_keys,
             [&](int64_t t, int64_t row) { next_k_[t] = cache_.k + row * stride; });
  }

  // Blocks lie scattered, each a page half or less, so the processor's own prefetching
  // never gets going. Memory is to be busy all the time: while keys are worked on, values
  // come in, and the other way round the next segment's keys. Only a first segment's keys
  // must be asked for with their values, two tiles ahead.
  void prefetch_tile(int64_t t, int64_t num_keys, bool keys_too) const {
    if (keys_too) prefetch(k_, t + 32, std::min(num_keys, t + 48));
    prefetch(v_, t, std::min(num_keys, t + 16));
  }

  void prefetch(const uint8_t* const* vectors, int64_t begin, int64_t end) const {
    const int64_t bytes = cache_.head_dim * value_bytes(kKind);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t at = 0; at < bytes; at += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(vectors[i] + at), _MM_HINT_T1);
      }
    }
  }

  // Rows of one call may see different numbers of keys: the common part goes together.
  // Meanwhile the first `num_next` keys of the next segment are asked for.
  void weigh_values(int row, int rows, int64_t first_key, float* const* weights,
                    float* const* values, int64_t num_next) const {
    const int64_t common = visible(row, first_key);
    const int64_t at_once = num_next > 0 ? kKeysAtOnce : kSegment;
    for (int64_t t = 0; t < common; t += at_once) {
      prefetch(next_k_, std::min(num_next, t), std::min(num_next, t + at_once));
      add_rows(rows, weights + row, t, std::min(common, t + at_once), values + row);
    }
    for (int i = row; i < row + rows; ++i) {
      const int64_t count = visible(i, first_key);
      if (count > common) add_rows(1, weights + i, common, count, values + i);
    }
  }

  void add_rows(int rows, float* const* weights, int64_t begin, int64_t end,
                float* const* values) const {
    const int64_t d = cache_.head_dim;
    switch (rows) {
      case 1: return add_all_values<kKind, 1>(weights, v_, begin, end, d, values);
      case 2: return add_all_values<kKind, 2>(weights, v_, begin, end, d, values);
      case 3: return add_all_values<kKind, 3>(weights, v_, begin, end, d, values);
      default: return add_all_values<kKind, 4>(weights, v_, begin, end, d, values);
    }
  }

  const AttentionArguments& a_;
  const Cache& cache_;
  const AttentionItem& item_;
  AttentionScratch& scratch_;
  int64_t group_;
  int num_rows_;
  const float* q_[kItemRowsMax];
  const uint8_t* k_[kSegment];
  const uint8_t* v_[kSegment];
  const uint8_t* next_k_[kSegment];
  // Segment whose keys were asked for already.
  int64_t fetched_ = -1;
  float k_scale_[kSegment];
  float v_scale_[kSegment];
};

}  // namespace repartee
