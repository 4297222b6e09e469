// Paged causal attention: decode tokens and prefill pieces of many sequences at once.
//
// A context is cut into segments of 256 keys by absolute position. Each query row takes
// the softmax of a segment by itself, and segments are merged in order; all sums run over
// keys in order. So a row's bits depend neither on how the prompt was cut into pieces,
// nor on the rows that go along, nor on whether threads share out queries or segments.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "rope.h"
#include "transpose.h"

namespace repartee {

constexpr int64_t kSegment = 256;
// Query rows (tokens times heads of a KV head) of one item; their scores fit the cache.
constexpr int64_t kItemRows = 24;

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

// Some query tokens of one sequence and one KV head, over some segments.
struct AttentionItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_token;     // row of q
  int32_t num_tokens;
  int64_t first_position;  // of the first token
  int64_t segment_begin;
  int64_t segment_end;
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

template <bool kBfloat>
inline VF load_cached(const uint8_t* p, int64_t at) {
  if constexpr (kBfloat) return vf_bfloat(reinterpret_cast<const uint16_t*>(p) + at);
  return vf_load(reinterpret_cast<const float*>(p) + at);
}

// keys[d][0..15] for the kLanes values from d on, of 16 keys; keys past `count` become
// zeros, their memory unread.
template <bool kBfloat>
void transpose_floats(const uint8_t* const* k, int64_t count, int64_t d, float* keys) {
  for (int first = 0; first < 16; first += kLanes) {
    VF square[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      square[i] = first + i < count ? load_cached<kBfloat>(k[first + i], d) : vf_zero();
    }
    transpose(square);
    for (int i = 0; i < kLanes; ++i) vf_store(keys + (d + i) * 16 + first, square[i]);
  }
}

// The same for 2 * kLanes values of bfloat16: moved in pairs, widened afterwards, for half
// the shuffles.
inline void transpose_bfloats(const uint8_t* const* k, int64_t count, int64_t d, float* keys) {
  for (int first = 0; first < 16; first += kLanes) {
    VF square[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      square[i] = first + i < count
                      ? vf_load(reinterpret_cast<const float*>(k[first + i]) + d / 2)
                      : vf_zero();
    }
    transpose(square);
    for (int i = 0; i < kLanes; ++i) {
      float* to = keys + (d + 2 * i) * 16 + first;
      vf_store(to, vf_low_bfloats(square[i]));
      vf_store(to + 16, vf_high_bfloats(square[i]));
    }
  }
}

template <bool kBfloat>
void transpose_keys(const uint8_t* const* k, int64_t count, int64_t head_dim, float* keys) {
  int64_t d = 0;
  if constexpr (kBfloat) {
    for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) transpose_bfloats(k, count, d, keys);
  }
  for (; d < head_dim; d += kLanes) transpose_floats<kBfloat>(k, count, d, keys);
}

// scores[m][0..15] = q[m] . key, for kRows rows.
template <int kRows>
void score_tile(const float* const* q, const float* keys, int64_t head_dim, float* const* scores) {
  VF total[kRows][kHalves];
  for (int m = 0; m < kRows; ++m) {
    for (int h = 0; h < kHalves; ++h) total[m][h] = vf_zero();
  }
  for (int64_t d = 0; d < head_dim; ++d) {
    VF key[kHalves];
    for (int h = 0; h < kHalves; ++h) key[h] = vf_load(keys + d * 16 + h * kLanes);
    for (int m = 0; m < kRows; ++m) {
      const VF value = vf_set(q[m][d]);
      for (int h = 0; h < kHalves; ++h) total[m][h] = vf_fma(value, key[h], total[m][h]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int h = 0; h < kHalves; ++h) vf_store(scores[m] + h * kLanes, total[m][h]);
  }
}

// Scores to exponentials of (score - largest) * scale, zeros from `count` to the next 16.
inline void softmax_row(float* scores, int64_t count, float scale, float* largest, float* sum) {
  const int64_t padded = (count + 15) / 16 * 16;
  for (int64_t t = count; t < padded; ++t) scores[t] = -std::numeric_limits<float>::infinity();
  VF top = vf_load(scores);
  for (int64_t t = kLanes; t < padded; t += kLanes) top = vf_max(top, vf_load(scores + t));
  const float limit = max_lane(top);
  VF sums[kHalves];
  for (auto& s : sums) s = vf_zero();
  for (int64_t t = 0; t < padded; t += 16) {
    for (int h = 0; h < kHalves; ++h) {
      float* at = scores + t + h * kLanes;
      VF e = vf_exp(vf_mul(vf_sub(vf_load(at), vf_set(limit)), vf_set(scale)));
      vf_store(at, e);
      if (t + 16 > count) {
        for (int i = 0; i < kLanes; ++i) {
          if (t + h * kLanes + i >= count) at[i] = 0.0f;
        }
        e = vf_load(at);
      }
      sums[h] = vf_add(sums[h], e);
    }
  }
  float lanes[16];
  for (int h = 0; h < kHalves; ++h) vf_store(lanes + h * kLanes, sums[h]);
  *largest = limit * scale;
  *sum = sum16(lanes);
}

// values[m][d ..] += weight[m][t] * v[t][d ..] for t in [begin, end), in order.
template <bool kBfloat, int kRows, int kVectors>
void add_values(float* const* weights, const uint8_t* const* v, int64_t begin, int64_t end,
                int64_t d, float* const* values) {
  VF total[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int i = 0; i < kVectors; ++i) total[m][i] = vf_load(values[m] + d + i * kLanes);
  }
  for (int64_t t = begin; t < end; ++t) {
    VF value[kVectors];
    for (int i = 0; i < kVectors; ++i) value[i] = load_cached<kBfloat>(v[t], d + i * kLanes);
    for (int m = 0; m < kRows; ++m) {
      const VF weight = vf_set(weights[m][t]);
      for (int i = 0; i < kVectors; ++i) total[m][i] = vf_fma(weight, value[i], total[m][i]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int i = 0; i < kVectors; ++i) vf_store(values[m] + d + i * kLanes, total[m][i]);
  }
}

constexpr int kValueVectors = kLanes == 16 ? 4 : 2;

template <bool kBfloat, int kRows>
void add_all_values(float* const* weights, const uint8_t* const* v, int64_t begin, int64_t end,
                    int64_t head_dim, float* const* values) {
  int64_t d = 0;
  for (; d + kValueVectors * kLanes <= head_dim; d += kValueVectors * kLanes) {
    add_values<kBfloat, kRows, kValueVectors>(weights, v, begin, end, d, values);
  }
  for (; d < head_dim; d += kLanes) {
    add_values<kBfloat, kRows, 1>(weights, v, begin, end, d, values);
  }
}

constexpr int kScoreRows = kLanes == 16 ? 8 : 4;
constexpr int kValueRows = 4;

inline void score_rows(int rows, const float* const* q, const float* keys, int64_t head_dim,
                       float* const* scores) {
  int m = 0;
  for (; m + kScoreRows <= rows; m += kScoreRows) {
    score_tile<kScoreRows>(q + m, keys, head_dim, scores + m);
  }
  for (; m + 3 <= rows; m += 3) score_tile<3>(q + m, keys, head_dim, scores + m);
  for (; m < rows; ++m) score_tile<1>(q + m, keys, head_dim, scores + m);
}

template <bool kBfloat>
class ItemKernel {
 public:
  ItemKernel(const AttentionArguments& a, const Cache& cache, const AttentionItem& item,
             AttentionScratch& scratch)
      : a_(a), cache_(cache), item_(item), scratch_(scratch) {
    group_ = a.num_q_heads / cache.num_kv_heads;
    num_rows_ = static_cast<int>(item.num_tokens * group_);
    for (int row = 0; row < num_rows_; ++row) {
      const int64_t token = item.first_token + row / group_;
      q_[row] = a.q + (token * a.num_q_heads + item.kv_head * group_ + row % group_) *
                          cache.head_dim;
    }
  }

  // Largest score, sum and weighted values of one segment alone; rows that do not reach
  // it are left out.
  void run_segment(int64_t segment, const RowStates& to) {
    const int64_t first_key = segment * kSegment;
    const int64_t num_keys = visible(num_rows_ - 1, first_key);
    find_keys(first_key, num_keys);
    float* keys = scratch_.keys.get(cache_.head_dim * 16);
    float* scores = scratch_.scores.get(num_rows_ * kSegment);
    int first_row = 0;
    while (visible(first_row, first_key) <= 0) ++first_row;
    for (int64_t t = 0; t < num_keys; t += 16) {
      prefetch_tile(t, num_keys);
      transpose_keys<kBfloat>(k_ + t, num_keys - t, cache_.head_dim, keys);
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
      softmax_row(weights[row], visible(row, first_key), a_.scale, to.largest + row, to.sum + row);
    }
    for (int row = first_row; row < num_rows_;) {
      const int rows = num_rows_ - row >= kValueRows ? kValueRows : num_rows_ - row;
      weigh_values(row, rows, first_key, weights, values);
      row += rows;
    }
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

  void find_keys(int64_t first_key, int64_t num_keys) {
    const int32_t* table = a_.block_tables + item_.sequence * a_.max_blocks;
    const int64_t stride = cache_.head_dim * cache_.value_bytes();
    int64_t block = first_key / cache_.block_size;
    int64_t in_block = first_key % cache_.block_size;
    for (int64_t t = 0; t < num_keys; ++block, in_block = 0) {
      const int64_t at = cache_.offset(table[block], item_.kv_head, in_block);
      const int64_t end = std::min(num_keys, t + cache_.block_size - in_block);
      for (int64_t i = 0; t < end; ++i, ++t) {
        k_[t] = cache_.k + at + i * stride;
        v_[t] = cache_.v + at + i * stride;
      }
    }
  }

  // Blocks lie scattered, each a page half or less, so the processor's own prefetching
  // never gets going: ask for the keys two tiles ahead, and for the values that follow.
  void prefetch_tile(int64_t t, int64_t num_keys) const {
    const int64_t bytes = cache_.head_dim * cache_.value_bytes();
    const int64_t keys_end = std::min(num_keys, t + 48);
    for (int64_t i = t + 32; i < keys_end; ++i) prefetch(k_[i], bytes);
    const int64_t values_end = std::min(num_keys, t + 16);
    for (int64_t i = t; i < values_end; ++i) prefetch(v_[i], bytes);
  }

  static void prefetch(const uint8_t* p, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(p + at), _MM_HINT_T0);
    }
  }

  // Rows of one call may see different numbers of keys: the common part goes together.
  void weigh_values(int row, int rows, int64_t first_key, float* const* weights,
                    float* const* values) const {
    const int64_t common = visible(row, first_key);
    const int64_t d = cache_.head_dim;
    switch (rows) {
      case 1: add_all_values<kBfloat, 1>(weights + row, v_, 0, common, d, values + row); return;
      case 2: add_all_values<kBfloat, 2>(weights + row, v_, 0, common, d, values + row); break;
      case 3: add_all_values<kBfloat, 3>(weights + row, v_, 0, common, d, values + row); break;
      default: add_all_values<kBfloat, 4>(weights + row, v_, 0, common, d, values + row);
    }
    for (int i = row; i < row + rows; ++i) {
      const int64_t count = visible(i, first_key);
      if (count > common) add_all_values<kBfloat, 1>(weights + i, v_, common, count, d, values + i);
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
};

// Query blocks of all sequences, longest contexts first so that the last item is short.
inline std::vector<AttentionItem> attention_items(const AttentionArguments& a, const Cache& cache) {
  const int64_t group = a.num_q_heads / cache.num_kv_heads;
  const int64_t tokens_at_once = std::max<int64_t>(1, kItemRows / group);
  std::vector<AttentionItem> items;
  for (int64_t s = 0; s < a.num_sequences; ++s) {
    const int64_t begin = a.query_starts[s];
    const int64_t num_tokens = a.query_starts[s + 1] - begin;
    for (int64_t t = 0; t < num_tokens; t += tokens_at_once) {
      const int64_t count = std::min(tokens_at_once, num_tokens - t);
      const int64_t position = a.context_lens[s] - num_tokens + t;
      for (int64_t h = 0; h < cache.num_kv_heads; ++h) {
        items.push_back({static_cast<int32_t>(s), static_cast<int32_t>(h),
                         static_cast<int32_t>(begin + t), static_cast<int32_t>(count), position, 0,
                         (position + count - 1) / kSegment + 1});
      }
    }
  }
  std::stable_sort(items.begin(), items.end(), [](const AttentionItem& x, const AttentionItem& y) {
    return x.first_position > y.first_position;
  });
  return items;
}

template <bool kBfloat>
void attend_whole(const AttentionArguments& a, const Cache& cache,
                  const std::vector<AttentionItem>& items) {
  parallel_for(static_cast<int64_t>(items.size()), [&](int64_t index) {
    static thread_local AttentionScratch scratch;
    ItemKernel<kBfloat> kernel(a, cache, items[index], scratch);
    const int64_t floats = state_floats(kernel.num_rows(), cache.head_dim);
    float* memory = scratch.states.get(2 * floats);
    const RowStates state = row_states(memory, kernel.num_rows());
    const RowStates part = row_states(memory + floats, kernel.num_rows());
    for (int64_t s = 0; s < items[index].segment_end; ++s) {
      kernel.run_segment(s, part);
      kernel.merge(s, part, state);
    }
    kernel.finish(state);
  });
}

// Few items over long contexts: threads share out the segments, then merge them.
template <bool kBfloat>
void attend_split(const AttentionArguments& a, const Cache& cache,
                  const std::vector<AttentionItem>& items) {
  static thread_local Scratch<float> parts;
  struct Part {
    int64_t item;
    int64_t segment;
    int64_t at;
  };
  std::vector<Part> work;
  const int64_t group = a.num_q_heads / cache.num_kv_heads;
  int64_t floats = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    for (int64_t s = 0; s < items[i].segment_end; ++s) {
      work.push_back({static_cast<int64_t>(i), s, floats});
      floats += state_floats(items[i].num_tokens * group, cache.head_dim);
    }
  }
  float* memory = parts.get(floats);
  parallel_for(static_cast<int64_t>(work.size()), [&](int64_t index) {
    static thread_local AttentionScratch scratch;
    const Part& part = work[index];
    ItemKernel<kBfloat> kernel(a, cache, items[part.item], scratch);
    kernel.run_segment(part.segment, row_states(memory + part.at, kernel.num_rows()));
  });
  static thread_local AttentionScratch scratch;
  for (const Part& part : work) {
    ItemKernel<kBfloat> kernel(a, cache, items[part.item], scratch);
    const int64_t rows = kernel.num_rows();
    const RowStates state = row_states(scratch.states.get(state_floats(rows, cache.head_dim)), rows);
    kernel.merge(part.segment, row_states(memory + part.at, rows), state);
    if (part.segment + 1 == items[part.item].segment_end) kernel.finish(state);
  }
}

template <bool kBfloat>
void paged_attention(const AttentionArguments& a, const Cache& cache) {
  const std::vector<AttentionItem> items = attention_items(a, cache);
  const bool few = static_cast<int64_t>(items.size()) < 4 * num_threads();
  if (few && !items.empty() && items.front().segment_end > 1) {
    attend_split<kBfloat>(a, cache, items);
  } else {
    attend_whole<kBfloat>(a, cache, items);
  }
}

// Whether every length, offset and block that will be followed is in range.
inline bool attention_arguments_fit(const AttentionArguments& a, const Cache& cache,
                                    int64_t num_tokens, int64_t num_blocks) {
  if (a.query_starts[0] != 0 || a.query_starts[a.num_sequences] > num_tokens) return false;
  for (int64_t s = 0; s < a.num_sequences; ++s) {
    const int64_t queries = a.query_starts[s + 1] - a.query_starts[s];
    const int64_t context = a.context_lens[s];
    const int64_t blocks = (context + cache.block_size - 1) / cache.block_size;
    if (queries < 0 || context < queries || blocks > a.max_blocks) return false;
    if (queries == 0) continue;
    const int32_t* table = a.block_tables + s * a.max_blocks;
    for (int64_t b = 0; b < blocks; ++b) {
      if (table[b] < 0 || table[b] >= num_blocks) return false;
    }
  }
  return true;
}

}  // namespace repartee
