// One token a row: see kernels/sampling/__init__.py for what is computed, in which order.
//
// Noise lies in a known range, so a token too far below the likeliest cannot win: only
// the rest, the candidates, are ranked and given noise.
#pragma once

#include <algorithm>
#include <cfloat>
#include <limits>
#include <vector>

#include "thread_pool.h"
#include "simd.h"

namespace repartee {

// Filled in from Python; the field order is part of the interface. Ragged lists are
// starts [rows + 1] and concatenated items.
struct SamplingRows {
  int64_t num_rows;
  int64_t vocabulary;
  const float* logits;
  const uint8_t* plain;
  const double* temperature;
  const int64_t* top_k;
  const double* top_p;
  const double* min_p;
  const float* repetition_penalty;
  const float* frequency_penalty;
  const float* presence_penalty;
  const int64_t* seeds;
  const int64_t* positions;
  const int64_t* bias_starts;
  const int64_t* bias_ids;
  const float* bias_values;
  const int64_t* seen_starts;
  const int64_t* seen_ids;
  const float* seen_counts;
  const int64_t* masked_starts;
  const int64_t* masked_ids;
  int64_t* tokens;
  double noise_range;
};

struct Candidate {
  double scaled;  // (logit - largest) / temperature
  int64_t id;
};

// Likelier first; of equally likely ones the lower id.
inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.scaled > b.scaled || (a.scaled == b.scaled && a.id < b.id);
}

constexpr int kDraws = 8;

// High and low words of the 64-bit products of eight words with `factor`.
inline void multiply_wide(__m256i a, __m256i factor, __m256i* high, __m256i* low) {
  const __m256i even = _mm256_mul_epu32(a, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

// Word 0 of Philox4x32-10 for eight tokens: the counters are (token, position, 0, 0).
inline void philox_words(const uint32_t* tokens, uint32_t position, uint64_t seed,
                         uint32_t* words) {
  __m256i c0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tokens));
  __m256i c1 = _mm256_set1_epi32(static_cast<int32_t>(position));
  __m256i c2 = _mm256_setzero_si256();
  __m256i c3 = _mm256_setzero_si256();
  const __m256i first = _mm256_set1_epi32(static_cast<int32_t>(0xD2511F53u));
  const __m256i second = _mm256_set1_epi32(static_cast<int32_t>(0xCD9E8D57u));
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    __m256i high0, low0, high1, low1;
    multiply_wide(c0, first, &high0, &low0);
    multiply_wide(c2, second, &high1, &low1);
    c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32(static_cast<int32_t>(k0)));
    c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32(static_cast<int32_t>(k1)));
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), c0);
}

inline double gumbel(uint32_t word) {
  const double u = (static_cast<double>(word >> 8) + 0.5) * 0x1p-24;
  return -std::log(-std::log(u));
}

// At least gumbel(word), without logarithms: -log(-log u) <= -log(1 - u), and 1 - u has
// so many leading zeros.
inline double gumbel_bound(uint32_t word) {
  const uint32_t rest = 0xffffffu - (word >> 8);
  const int zeros = rest == 0 ? 25 : __builtin_clz(rest) - 8 + 1;
  return zeros * 0.69314718056;
}

class RowSampler {
 public:
  RowSampler(const SamplingRows& rows, int64_t row, Scratch<float>& scratch,
             std::vector<Candidate>& candidates)
      : r_(rows), row_(row), x_(scratch.get(rows.vocabulary + 16)), candidates_(candidates) {}

  int64_t sample() {
    adjust();
    find_largest();
    if (largest_ == -std::numeric_limits<float>::infinity()) return -1;
    temperature_ = r_.temperature[row_];
    if (r_.plain[row_] || temperature_ == 0.0) {
      return std::find(x_, x_ + r_.vocabulary, largest_) - x_;
    }
    find_candidates();
    truncate();
    return draw();
  }

 private:
  double scaled(float x) const {
    return (static_cast<double>(x) - static_cast<double>(largest_)) / temperature_;
  }

  // Bias, penalties and mask, on logits that are finite or -inf.
  void adjust() {
    const float* logits = r_.logits + row_ * r_.vocabulary;
    const VF lowest = vf_set(-std::numeric_limits<float>::infinity());
    int64_t i = 0;
    for (; i + kLanes <= r_.vocabulary; i += kLanes) {
      // The second operand is the result where the first is NaN.
      vf_store(x_ + i, vf_min(vf_max(vf_load(logits + i), lowest), vf_set(FLT_MAX)));
    }
    for (; i < r_.vocabulary; ++i) {
      x_[i] = logits[i] != logits[i] ? -std::numeric_limits<float>::infinity()
                                     : std::min(logits[i], FLT_MAX);
    }
    for (int64_t b = r_.bias_starts[row_]; b < r_.bias_starts[row_ + 1]; ++b) {
      x_[r_.bias_ids[b]] += r_.bias_values[b];
    }
    const float repetition = r_.repetition_penalty[row_];
    for (int64_t s = r_.seen_starts[row_]; s < r_.seen_starts[row_ + 1]; ++s) {
      float& x = x_[r_.seen_ids[s]];
      const float count = r_.seen_counts[s];
      x = x > 0.0f ? x / repetition : x * repetition;
      x -= r_.frequency_penalty[row_] * count;
      x -= count > 0.0f ? r_.presence_penalty[row_] : 0.0f;
    }
    for (int64_t m = r_.masked_starts[row_]; m < r_.masked_starts[row_ + 1]; ++m) {
      x_[r_.masked_ids[m]] = -std::numeric_limits<float>::infinity();
    }
    // So that loops may run over whole vectors.
    for (int64_t p = 0; p < 16; ++p) x_[r_.vocabulary + p] = -std::numeric_limits<float>::infinity();
  }

  void find_largest() {
    VF top = vf_load(x_);
    for (int64_t i = kLanes; i < r_.vocabulary; i += kLanes) top = vf_max(top, vf_load(x_ + i));
    largest_ = max_lane(top);
  }

  void find_candidates() {
    candidates_.clear();
    const double limit = static_cast<double>(largest_) - r_.noise_range * temperature_;
    // Rounded down, or nearer candidates could be missed.
    const float below = std::nextafter(static_cast<float>(limit), -FLT_MAX);
    for (int64_t i = 0; i < r_.vocabulary; i += kLanes) {
      uint32_t hits = vf_at_least(vf_load(x_ + i), vf_set(below));
      for (; hits != 0; hits &= hits - 1) {
        const int64_t id = i + __builtin_ctz(hits);
        if (static_cast<double>(x_[id]) >= limit) candidates_.push_back({scaled(x_[id]), id});
      }
    }
  }

  // top_k, then top_p, then min_p.
  void truncate() {
    const int64_t all = r_.vocabulary;
    const int64_t top_k = r_.top_k[row_] > 0 ? std::min(r_.top_k[row_], all) : all;
    const double top_p = r_.top_p[row_];
    const double min_p = r_.min_p[row_];
    const int64_t outside = top_k - static_cast<int64_t>(candidates_.size());
    if (outside < 0) {
      std::nth_element(candidates_.begin(), candidates_.begin() + top_k, candidates_.end(),
                       ranks_before);
      candidates_.resize(static_cast<size_t>(top_k));
    }
    if (top_p < 1.0) {
      double total = outside > 0 ? weight_outside(outside) : 0.0;
      for (const Candidate& c : candidates_) total += std::exp(c.scaled);
      keep_likeliest(top_p * total);
    }
    if (min_p > 0.0) {
      const auto unlikely = [&](const Candidate& c) { return !(std::exp(c.scaled) >= min_p); };
      candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), unlikely),
                        candidates_.end());
    }
  }

  // The fewest candidates whose weights reach `weight`, moved to the front one by one.
  void keep_likeliest(double weight) {
    const auto after = [](const Candidate& a, const Candidate& b) { return ranks_before(b, a); };
    const auto begin = candidates_.begin();
    auto end = candidates_.end();
    std::make_heap(begin, end, after);
    double before = 0.0;
    while (end != begin && before < weight) {
      before += std::exp(begin->scaled);
      std::pop_heap(begin, end, after);
      --end;
    }
    candidates_.erase(begin, end);
  }

  // Sum of the weights of the `count` likeliest tokens that are not candidates. Each is
  // below 2e-9 of the likeliest, so float32 exponentials are precise enough.
  double weight_outside(int64_t count) {
    const double limit = static_cast<double>(largest_) - r_.noise_range * temperature_;
    std::vector<float> rest;
    rest.reserve(static_cast<size_t>(r_.vocabulary) + 16);
    for (int64_t i = 0; i < r_.vocabulary; ++i) {
      if (!(static_cast<double>(x_[i]) >= limit) && x_[i] >= -FLT_MAX) {
        rest.push_back(static_cast<float>(scaled(x_[i])));
      }
    }
    if (count < static_cast<int64_t>(rest.size())) {
      std::nth_element(rest.begin(), rest.begin() + count, rest.end(), std::greater<float>());
      rest.resize(static_cast<size_t>(count));
    }
    const size_t size = rest.size();
    rest.resize((size + 15) / 16 * 16, -std::numeric_limits<float>::infinity());
    double sums[kLanes] = {};
    for (size_t i = 0; i < rest.size(); i += kLanes) {
      float lanes[kLanes];
      vf_store(lanes, vf_exp(vf_load(rest.data() + i)));
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] += lanes[lane];
    }
    double total = 0.0;
    for (const double sum : sums) total += sum;
    return total;
  }

  // The largest scaled logit plus noise; of equal ones the lower id.
  int64_t draw() const {
    const uint64_t seed = static_cast<uint64_t>(r_.seeds[row_]);
    const uint32_t position = static_cast<uint32_t>(r_.positions[row_]);
    double best = -std::numeric_limits<double>::infinity();
    int64_t chosen = -1;
    const int64_t count = static_cast<int64_t>(candidates_.size());
    for (int64_t first = 0; first < count; first += kDraws) {
      const int here = static_cast<int>(std::min<int64_t>(kDraws, count - first));
      const Candidate* part = candidates_.data() + first;
      uint32_t tokens[kDraws] = {};
      uint32_t words[kDraws];
      for (int i = 0; i < here; ++i) tokens[i] = static_cast<uint32_t>(part[i].id);
      philox_words(tokens, position, seed, words);
      for (int i = 0; i < here; ++i) {
        if (part[i].scaled + gumbel_bound(words[i]) < best) continue;
        const double score = part[i].scaled + gumbel(words[i]);
        if (score > best || (score == best && part[i].id < chosen)) {
          best = score;
          chosen = part[i].id;
        }
      }
    }
    return chosen;
  }

  const SamplingRows& r_;
  int64_t row_;
  float* x_;
  std::vector<Candidate>& candidates_;
  float largest_ = 0.0f;
  double temperature_ = 0.0;
};

inline bool ids_fit(const int64_t* starts, const int64_t* ids, int64_t num_rows, int64_t end) {
  for (int64_t i = starts[0]; i < starts[num_rows]; ++i) {
    if (ids[i] < 0 || ids[i] >= end) return false;
  }
  return true;
}

// Returns false, with nothing written, if a token id is out of range.
inline bool sample_rows(const SamplingRows& r) {
  if (!ids_fit(r.bias_starts, r.bias_ids, r.num_rows, r.vocabulary) ||
      !ids_fit(r.seen_starts, r.seen_ids, r.num_rows, r.vocabulary) ||
      !ids_fit(r.masked_starts, r.masked_ids, r.num_rows, r.vocabulary)) {
    return false;
  }
  parallel_for(r.num_rows, [&](int64_t row) {
    static thread_local Scratch<float> scratch;
    static thread_local std::vector<Candidate> candidates;
    r.tokens[row] = RowSampler(r, row, scratch, candidates).sample();
  });
  return true;
}

}  // namespace repartee
