// The inner loops of attention: 16 keys or some rows' values at a time.
#pragma once

#include <limits>

#include "kv_cache.h"
#include "transpose.h"

namespace repartee {

// keys[d][0..15] for the kLanes values from d on, of 16 keys; keys past `count` become
// zeros, their memory unread.
template <KvKind kKind>
void transpose_floats(const uint8_t* const* k, int64_t count, int64_t d, float* keys) {
  for (int first = 0; first < 16; first += kLanes) {
    VF square[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      square[i] = first + i < count ? load_cached<kKind>(k[first + i], d) : vf_zero();
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

// The same for 4 * kLanes 8-bit values, moved in fours.
template <KvKind kKind>
void transpose_bytes(const uint8_t* const* k, int64_t count, int64_t d, float* keys) {
  for (int first = 0; first < 16; first += kLanes) {
    VF square[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      square[i] = first + i < count ? vf_load(reinterpret_cast<const float*>(k[first + i] + d))
                                    : vf_zero();
    }
    transpose(square);
    for (int i = 0; i < kLanes; ++i) {
      const VI bytes = vi_of_bits(square[i]);
      float* to = keys + (d + 4 * i) * 16 + first;
      vf_store(to, vf_cached_bytes<kKind, 0>(bytes));
      vf_store(to + 16, vf_cached_bytes<kKind, 1>(bytes));
      vf_store(to + 32, vf_cached_bytes<kKind, 2>(bytes));
      vf_store(to + 48, vf_cached_bytes<kKind, 3>(bytes));
    }
  }
}

template <KvKind kKind>
void transpose_keys(const uint8_t* const* k, int64_t count, int64_t head_dim, float* keys) {
  int64_t d = 0;
  if constexpr (kKind == kKvBfloat) {
    for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) transpose_bfloats(k, count, d, keys);
  }
  if constexpr (is_quantized(kKind)) {
    for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) transpose_bytes<kKind>(k, count, d, keys);
  }
  for (; d < head_dim; d += kLanes) transpose_floats<kKind>(k, count, d, keys);
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

// x[0 .. count) *= scale[0 .. count), and on to the next 16.
inline void scale_row(float* x, const float* scale, int64_t count) {
  for (int64_t t = 0; t < count; t += kLanes) {
    vf_store(x + t, vf_mul(vf_load(x + t), vf_load(scale + t)));
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
template <KvKind kKind, int kRows, int kVectors>
void add_values(float* const* weights, const uint8_t* const* v, int64_t begin, int64_t end,
                int64_t d, float* const* values) {
  VF total[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int i = 0; i < kVectors; ++i) total[m][i] = vf_load(values[m] + d + i * kLanes);
  }
  for (int64_t t = begin; t < end; ++t) {
    VF value[kVectors];
    for (int i = 0; i < kVectors; ++i) value[i] = load_cached<kKind>(v[t], d + i * kLanes);
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

template <KvKind kKind, int kRows>
void add_all_values(float* const* weights, const uint8_t* const* v, int64_t begin, int64_t end,
                    int64_t head_dim, float* const* values) {
  int64_t d = 0;
  for (; d + kValueVectors * kLanes <= head_dim; d += kValueVectors * kLanes) {
    add_values<kKind, kRows, kValueVectors>(weights, v, begin, end, d, values);
  }
  for (; d < head_dim; d += kLanes) {
    add_values<kKind, kRows, 1>(weights, v, begin, end, d, values);
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

}  // namespace repartee
