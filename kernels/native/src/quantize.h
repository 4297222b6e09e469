// RMSNorm, and activations quantised to int8 by row and block of 32 columns.
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

// Rows of int8 activations. `sub` columns share an entry of `offset` and `sum`: a block,
// or half of one where the weight's group is 16.
struct Activations {
  int8_t* q;        // [rows][columns]
  float* scale;     // [rows][blocks]
  int32_t* offset;  // [rows][columns / sub]: -zero * sum of q
  float* sum;       // [rows][columns / sub]: scale * sum of q
  int64_t columns;
  int64_t num_blocks;
  int64_t num_subs;
};

inline int32_t sum_int8(const int8_t* q, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += q[i];
  return sum;
}

template <int kSub>
void quantize_row(const float* x, const float* norm, float eps, int32_t zero,
                  const Activations& a, int64_t row) {
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
    const float scale = limit * (1.0f / 127.0f);
    const VF inverse = vf_set(limit > 0.0f ? 127.0f / limit : 0.0f);
    int8_t* q = a.q + row * a.columns + b * kBlock;
    for (int i = 0; i < kVectors; ++i) {
      store_int8(q + i * kLanes, vi_round(vf_mul(y[i], inverse)));
    }
    a.scale[row * a.num_blocks + b] = scale;
    for (int s = 0; s < kBlock / kSub; ++s) {
      const int32_t sum = sum_int8(q + s * kSub, kSub);
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
