// Paged causal attention: decode tokens and prefill pieces of many sequences at once.
//
// A context is cut into segments of 256 keys by absolute position. Each query row takes
// the softmax of a segment by itself, and segments are merged in order; all sums run over
// keys in order. So a row's bits depend neither on how the prompt was cut into pieces,
// nor on the rows that go along, nor on whether threads share out queries or segments.
#pragma once

#include <algorithm>
#include <vector>

#include "attention_prefix.h"

namespace repartee {

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
                         static_cast<int32_t>(begin + t), static_cast<int32_t>(count), position,
                         (position + count - 1) / kSegment + 1, nullptr});
      }
    }
  }
  std::stable_sort(items.begin(), items.end(), [](const AttentionItem& x, const AttentionItem& y) {
    return x.first_position > y.first_position;
  });
  return items;
}

template <KvKind kKind>
void attend_whole(const AttentionArguments& a, const Cache& cache, const SharedPrefixes& shared,
                  const std::vector<AttentionItem>& items) {
  parallel_for(static_cast<int64_t>(items.size()), [&](int64_t index) {
    static thread_local AttentionScratch scratch;
    const AttentionItem& item = items[index];
    ItemKernel<kKind> kernel(a, cache, item, scratch);
    const int64_t floats = state_floats(kernel.num_rows(), cache.head_dim);
    float* memory = scratch.states.get(2 * floats);
    const RowStates state = row_states(memory, kernel.num_rows());
    const RowStates part = row_states(memory + floats, kernel.num_rows());
    const int64_t num_shared = shared.segments(item.sequence);
    for (int64_t s = 0; s < item.segment_end; ++s) {
      if (s < num_shared) {
        kernel.merge(s, shared.state(item.sequence, item.kv_head, s), state);
        continue;
      }
      kernel.run_segment(s, part, s + 1 < item.segment_end);
      kernel.merge(s, part, state);
    }
    kernel.finish(state);
  });
}

// Few items over long contexts: threads share out the segments, then merge them.
template <KvKind kKind>
void attend_split(const AttentionArguments& a, const Cache& cache, const SharedPrefixes& shared,
                  const std::vector<AttentionItem>& items) {
  static thread_local Scratch<float> parts;
  struct Part {
    int64_t item;
    int64_t begin;
    int64_t end;
    int64_t at;
  };
  std::vector<Part> work;
  const int64_t group = a.num_q_heads / cache.num_kv_heads;
  int64_t num_segments = 0;
  for (const AttentionItem& item : items) {
    num_segments += item.segment_end - shared.segments(item.sequence);
  }
  // Segments that follow each other are one thread's as far as balance allows, so that it
  // can ask for the next one's keys ahead.
  const int64_t at_once = std::max<int64_t>(1, num_segments / (4 * num_threads()));
  int64_t floats = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const int64_t segment_floats = state_floats(items[i].num_tokens * group, cache.head_dim);
    for (int64_t s = shared.segments(items[i].sequence); s < items[i].segment_end;) {
      const int64_t end = std::min(s + at_once, items[i].segment_end);
      work.push_back({static_cast<int64_t>(i), s, end, floats});
      floats += (end - s) * segment_floats;
      s = end;
    }
  }
  float* memory = parts.get(floats);
  parallel_for(static_cast<int64_t>(work.size()), [&](int64_t index) {
    static thread_local AttentionScratch scratch;
    const Part& part = work[index];
    ItemKernel<kKind> kernel(a, cache, items[part.item], scratch);
    const int64_t rows = kernel.num_rows();
    float* at = memory + part.at;
    for (int64_t s = part.begin; s < part.end; ++s) {
      kernel.run_segment(s, row_states(at, rows), s + 1 < part.end);
      at += state_floats(rows, cache.head_dim);
    }
  });
  static thread_local AttentionScratch scratch;
  auto part = work.begin();
  for (size_t i = 0; i < items.size(); ++i) {
    const AttentionItem& item = items[i];
    ItemKernel<kKind> kernel(a, cache, item, scratch);
    const int64_t rows = kernel.num_rows();
    const RowStates state = row_states(scratch.states.get(state_floats(rows, cache.head_dim)), rows);
    for (int64_t s = 0; s < shared.segments(item.sequence); ++s) {
      kernel.merge(s, shared.state(item.sequence, item.kv_head, s), state);
    }
    for (; part != work.end() && part->item == static_cast<int64_t>(i); ++part) {
      float* at = memory + part->at;
      for (int64_t s = part->begin; s < part->end; ++s) {
        kernel.merge(s, row_states(at, rows), state);
        at += state_floats(rows, cache.head_dim);
      }
    }
    kernel.finish(state);
  }
}

template <KvKind kKind>
void paged_attention(const AttentionArguments& a, const Cache& cache) {
  const std::vector<AttentionItem> items = attention_items(a, cache);
  SharedPrefixes shared(a, cache);
  shared.run<kKind>();
  const bool few = static_cast<int64_t>(items.size()) < 4 * num_threads();
  if (few && !items.empty() && items.front().segment_end > 1) {
    attend_split<kKind>(a, cache, shared, items);
  } else {
    attend_whole<kKind>(a, cache, shared, items);
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
