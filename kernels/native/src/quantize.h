// RMSNorm, and activations quantised to int8 or int16 by row and block of 32 columns.
//
// A block's largest magnitude becomes 127 or 32767. Dot products of a block stay exact in
// int32: at most 32 * 255 * 32767 with INT8 weights, an eighth of the range.
#pragma once

#include "thread_pool.h"
#include "weight.h"

namespace repartee {

// 1 / sqrt(mean(x²) + eps). The sum runs over 16 lanes, then a fixed tree.
inline float inverse_rms(const float* x, int64_t columns, float eps) {
  float lanes[16];
  VF sums[kHalves];
  for (auto& sum : sums) sum = vf_zero();
  int64_t k = 0;
  for (; k + 16 <= columns; k += 16) {
    for (int h = 0; h < kHalves; ++h) {
      const VF v = vf_load(x + k + h * kLanes);
      sums[h] = vf_fma(v, v, sums[h]);
    }
  }
  for (int h = 0; h < kHalves; ++h) vf_store(lanes + h * kLanes, sums[h]);
  for (int i = 0; k < columns; ++k, ++i) lanes[i] = std::fma(x[k], x[k], lanes[i]);
  return 1.0f / std::sqrt(sum16(lanes) / static_cast<float>(columns) + eps);
}

inline void normalize_row(const float* x, const float* norm, float eps, int64_t columns,
                          float* out) {
  const float r = inverse_rms(x, columns, eps);
  for (int64_t k = 0; k < columns; ++k) out[k] = x[k] * r * norm[k];
}

// Rows of quantised activations, Q int8 or int16. Of int16, each four columns (0, 1, 2, 3)
// lie as (0, 2, 1, 3), the order in which dot_int16.h unpacks weights. `sub` columns share
// an entry of `offset` and `sum`: a block, or half of one where the weight's group is 16.
template <class Q>
struct Activations {
  Q* q;             // [rows][columns]
  float* scale;     // [rows][blocks]
  int32_t* offset;  // [rows][columns / sub]: -zero * sum of q
  float* sum;       // [rows][columns / sub]: scale * sum of q
  int64_t columns;
  int64_t num_blocks;
  int64_t num_subs;
};

inline void store_activations(int8_t* p, VI a) { store_int8(p, a); }
inline void store_activations(int16_t* p, VI a) { store_int16(p, vi_swap_middle(a)); }

template <class Q>
int32_t sum_activations(const Q* q, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += q[i];
  return sum;
}

// Blocks below are zeros: the inverse of their scale would be infinite.
constexpr float kSmallest = 1e-30f;

template <class Q, int kSub>
void quantize_row(const float* x, const float* norm, float eps, int32_t zero,
                  const Activations<Q>& a, int64_t row) {
  constexpr float kTop = sizeof(Q) == 1 ? 127.0f : 32767.0f;
  const float r = norm == nullptr ? 1.0f : inverse_rms(x, a.columns, eps);
  constexpr int kVectors = kBlock / kLanes;
  for (int64_t b = 0; b < a.num_blocks; ++b) {
    VF y[kVectors];
    VF largest = vf_zero();
    for (int i = 0; i < kVectors; ++i) {
      const int64_t k = b * kBlock + i * kLanes;
      y[i] = vf_load(x + k);
      if (norm != nullptr) y[i] = vf_mul(vf_mul(y[i], vf_set(r)), vf_load(norm + k));
      largest = vf_max(largest, vf_abs(y[i]));
    }
    const float limit = max_lane(largest);
    const float scale = limit * (1.0f / kTop);
    const VF inverse = vf_set(limit > kSmallest ? kTop / limit : 0.0f);
    Q* q = a.q + row * a.columns + b * kBlock;
    for (int i = 0; i < kVectors; ++i) {
      store_activations(q + i * kLanes, vi_round(vf_mul(y[i], inverse)));
    }
    a.scale[row * a.num_blocks + b] = scale;
    for (int s = 0; s < kBlock / kSub; ++s) {
      const int32_t sum = sum_activations(q + s * kSub, kSub);
      const int64_t at = row * a.num_subs + b * (kBlock / kSub) + s;
      a.offset[at] = -zero * sum;
      a.sum[at] = scale * static_cast<float>(sum);
    }
  }
}

// Rows below this many are quantised by the caller: waking a worker would cost more.
constexpr int64_t kParallelRows = 16;

template <class F>
void for_rows(int64_t num_rows, F&& body) {
  if (num_rows < kParallelRows) {
    for (int64_t row = 0; row < num_rows; ++row) body(row);
    return;
  }
  constexpr int64_t kChunk = 8;
  parallel_for((num_rows + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t end = std::min((chunk + 1) * kChunk, num_rows);
    for (int64_t row = chunk * kChunk; row < end; ++row) body(row);
  });
}

}  // namespace repartee
