// Rotary embedding of q and k, optional per-head RMSNorm, and the write to the paged cache.
#pragma once

#include "kv_cache.h"
#include "quantize.h"

namespace repartee {

// Element i pairs with i + D / 2. `table`: D / 2 cosines, then D / 2 sines.
inline void rotate_head(const float* x, const float* norm, float eps, const float* table,
                        int64_t head_dim, float* out) {
  const int64_t half = head_dim / 2;
  const float* cosine = table;
  const float* sine = table + half;
  static thread_local Scratch<float> normalized;
  if (norm != nullptr) {
    float* y = normalized.get(head_dim);
    normalize_row(x, norm, eps, head_dim, y);
    x = y;
  }
  for (int64_t i = 0; i < half; ++i) {
    const float low = x[i];
    const float high = x[i + half];
    out[i] = low * cosine[i] - high * sine[i];
    out[i + half] = high * cosine[i] + low * sine[i];
  }
}

struct RopeArguments {
  const float* qkv;
  int64_t qkv_stride;
  int64_t num_q_heads;
  const float* table;
  const float* q_norm;
  const float* k_norm;
  float eps;
  float* q;
};

inline void rope_token(const RopeArguments& r, const Cache& cache, int64_t token,
                       int64_t position, int64_t slot) {
  const int64_t d = cache.head_dim;
  const float* q = r.qkv + token * r.qkv_stride;
  const float* k = q + r.num_q_heads * d;
  const float* v = k + cache.num_kv_heads * d;
  const float* table = r.table + position * d;
  for (int64_t h = 0; h < r.num_q_heads; ++h) {
    rotate_head(q + h * d, r.q_norm, r.eps, table, d, r.q + (token * r.num_q_heads + h) * d);
  }
  if (slot < 0) return;
  static thread_local Scratch<float> rotated;
  float* y = rotated.get(d);
  for (int64_t h = 0; h < cache.num_kv_heads; ++h) {
    const int64_t row = cache.row(slot / cache.block_size, h, slot % cache.block_size);
    rotate_head(k + h * d, r.k_norm, r.eps, table, d, y);
    store_vector(cache, y, cache.k, cache.k_scale, row);
    store_vector(cache, v + h * d, cache.v, cache.v_scale, row);
  }
}

// Returns false, with nothing written, if a position or slot is out of range.
template <class Index>
bool rope_kv_write(const RopeArguments& r, const Cache& cache, const Index* positions,
                   const Index* slots, int64_t num_tokens, int64_t num_positions,
                   int64_t num_slots) {
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (positions[t] < 0 || positions[t] >= num_positions || slots[t] >= num_slots) return false;
  }
  for_rows(num_tokens, [&](int64_t t) { rope_token(r, cache, t, positions[t], slots[t]); });
  return true;
}

}  // namespace repartee
