// Decode rows of sequences that begin with the same blocks: their segments are computed
// together, so that each key is moved and transposed once for all of them.
//
// A row's softmax of a segment does not depend on the rows that go along, and is merged in
// the same place as ever: the bits are those of the sequence alone.
#pragma once

#include <algorithm>
#include <vector>

#include "attention_item.h"

namespace repartee {

// Query rows (tokens times heads of a KV head) of one item; their scores fit the cache.
constexpr int64_t kItemRows = 24;

// Sequences with a common beginning of whole segments.
struct PrefixGroup {
  int64_t first_member;  // in SharedPrefixes::members
  int64_t count;
  int64_t segments;
  int64_t at;  // where the states of its first head and segment begin
};

class SharedPrefixes {
 public:
  SharedPrefixes(const AttentionArguments& a, const Cache& cache) : a_(a), cache_(cache) {
    group_ = a.num_q_heads / cache.num_kv_heads;
    place_.assign(static_cast<size_t>(a.num_sequences), Place{-1, 0});
    find();
  }

  // Computes the shared segments; before their states are asked for.
  template <KvKind kKind>
  void run() {
    struct Part {
      int64_t group;
      int64_t head;
      int64_t segment;
    };
    std::vector<Part> work;
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (int64_t s = 0; s < groups_[g].segments; ++s) {
        for (int64_t h = 0; h < cache_.num_kv_heads; ++h) {
          work.push_back({static_cast<int64_t>(g), h, s});
        }
      }
    }
    static thread_local Scratch<float> memory;
    memory_ = memory.get(num_floats_);
    parallel_for(static_cast<int64_t>(work.size()), [&](int64_t index) {
      static thread_local AttentionScratch scratch;
      const Part& part = work[index];
      const PrefixGroup& group = groups_[part.group];
      AttentionItem item{};
      item.sequence = members_[group.first_member];
      item.kv_head = static_cast<int32_t>(part.head);
      item.tokens = tokens_.data() + group.first_member;
      item.num_tokens = static_cast<int32_t>(group.count);
      // Every row sees all of these segments.
      item.first_position = group.segments * kSegment;
      ItemKernel<kKind> kernel(a_, cache_, item, scratch);
      kernel.run_segment(part.segment, row_states(memory_of(group, part.head, part.segment),
                                                  rows_of(group)),
                         false);
    });
  }

  // How many segments of a sequence, from the first on, `state` gives.
  int64_t segments(int32_t sequence) const {
    const Place& place = place_[sequence];
    return place.group < 0 ? 0 : groups_[place.group].segments;
  }

  RowStates state(int32_t sequence, int32_t head, int64_t segment) const {
    const Place& place = place_[sequence];
    const PrefixGroup& group = groups_[place.group];
    const RowStates all = row_states(memory_of(group, head, segment), rows_of(group));
    const int64_t row = place.member * group_;
    return {all.largest + row, all.sum + row, all.values + row * cache_.head_dim};
  }

 private:
  struct Place {
    int64_t group;
    int64_t member;
  };

  int64_t rows_of(const PrefixGroup& group) const { return group.count * group_; }

  float* memory_of(const PrefixGroup& group, int64_t head, int64_t segment) const {
    return memory_ + group.at +
           (head * group.segments + segment) * state_floats(rows_of(group), cache_.head_dim);
  }

  const int32_t* table(int32_t sequence) const {
    return a_.block_tables + sequence * a_.max_blocks;
  }

  int64_t blocks_of(int64_t segments) const {
    return (segments * kSegment + cache_.block_size - 1) / cache_.block_size;
  }

  // Whole segments that a sequence's one query row sees; 0 where there are more rows.
  int64_t whole_segments(int32_t sequence) const {
    if (a_.query_starts[sequence + 1] - a_.query_starts[sequence] != 1) return 0;
    return a_.context_lens[sequence] / kSegment;
  }

  int64_t common_segments(int32_t one, int32_t other) const {
    const int64_t most = std::min(whole_segments(one), whole_segments(other));
    const int32_t* begin = table(one);
    const auto ends = std::mismatch(begin, begin + blocks_of(most), table(other));
    return std::min(most, (ends.first - begin) * cache_.block_size / kSegment);
  }

  void find() {
    std::vector<int32_t> order;
    for (int32_t s = 0; s < a_.num_sequences; ++s) {
      if (whole_segments(s) > 0) order.push_back(s);
    }
    // Common beginnings become neighbours.
    std::sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
      return std::lexicographical_compare(
          table(x), table(x) + blocks_of(whole_segments(x)), table(y),
          table(y) + blocks_of(whole_segments(y)));
    });
    const int64_t most = std::max<int64_t>(1, kItemRows / group_);
    const auto size = static_cast<int64_t>(order.size());
    for (int64_t begin = 0; begin < size;) {
      int64_t end = begin + 1;
      int64_t shared = 0;
      for (; end < size && end - begin < most; ++end) {
        const int64_t next = common_segments(order[end - 1], order[end]);
        if (end - begin == 1) {
          shared = next;
        } else if (end - begin == 2 && next > shared) {
          // The second has more in common with the third: they are a group.
          shared = 0;
          --end;
          break;
        } else if (next < shared) {
          break;
        }
        if (shared == 0) break;
      }
      add(order, begin, end, shared);
      begin = end;
    }
  }

  void add(const std::vector<int32_t>& order, int64_t begin, int64_t end, int64_t shared) {
    const int64_t count = end - begin;
    // One segment saved does not pay for the loop more.
    if ((count - 1) * shared < 2) return;
    PrefixGroup group{static_cast<int64_t>(members_.size()), count, shared, num_floats_};
    for (int64_t i = begin; i < end; ++i) {
      place_[order[i]] = {static_cast<int64_t>(groups_.size()), i - begin};
      members_.push_back(order[i]);
      tokens_.push_back(a_.query_starts[order[i]]);
    }
    num_floats_ += cache_.num_kv_heads * shared * state_floats(rows_of(group), cache_.head_dim);
    groups_.push_back(group);
  }

  const AttentionArguments& a_;
  const Cache& cache_;
  int64_t group_;
  std::vector<Place> place_;
  std::vector<int32_t> members_;  // sequences, group by group
  std::vector<int32_t> tokens_;   // their rows of q
  std::vector<PrefixGroup> groups_;
  int64_t num_floats_ = 0;
  float* memory_ = nullptr;
};

}  // namespace repartee
