// The paged KV cache: how a vector of one token and head is stored, and read as floats.
//
// 8-bit vectors have a scale beside them, the largest magnitude over the largest value of
// the type. It is applied to scores and weights, not to values.
#pragma once

#include "simd.h"

namespace repartee {

// Values of kernels/native/library.py.
enum KvKind : int32_t { kKvFloat = 0, kKvBfloat = 1, kKvInt8 = 2, kKvFp8 = 3 };

constexpr bool is_quantized(KvKind kind) { return kind == kKvInt8 || kind == kKvFp8; }
constexpr int64_t value_bytes(KvKind kind) {
  return kind == kKvFloat ? 4 : kind == kKvBfloat ? 2 : 1;
}
// By which floats made of stored values are too small; see vf_fp8.
constexpr float value_factor(KvKind kind) { return kind == kKvFp8 ? kFp8Factor : 1.0f; }

struct Cache {
  uint8_t* k;
  uint8_t* v;
  float* k_scale;  // [blocks][heads][block_size]; null but for 8-bit values
  float* v_scale;
  int64_t num_kv_heads;
  int64_t block_size;
  int64_t head_dim;
  KvKind kind;

  // Number of a token's vector of one head.
  int64_t row(int64_t block, int64_t head, int64_t in_block) const {
    return (block * num_kv_heads + head) * block_size + in_block;
  }
  int64_t vector_bytes() const { return head_dim * value_bytes(kind); }
};

// To the nearest E4M3, ties to even; up to 464 in magnitude, above which it would be NaN.
inline uint8_t float_to_fp8(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  // Below 2^-6 values are multiples of 2^-9.
  if (bits < 0x3c800000u) {
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(std::fabs(f) * 512)));
  }
  const uint32_t rounded = (bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20;
  const uint32_t value = rounded - (120u << 3);
  return static_cast<uint8_t>(sign | (value > 0x7eu ? 0x7eu : value));
}

template <class Convert>
void store_scaled(const float* x, int64_t head_dim, float top, uint8_t* to, float* scale,
                  Convert&& convert) {
  float largest = 0.0f;
  bool is_nan = false;
  for (int64_t i = 0; i < head_dim; ++i) {
    const float magnitude = std::fabs(x[i]);
    is_nan |= magnitude != magnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  *scale = is_nan ? NAN : largest / top;
  const float inverse = largest > 0.0f ? top / largest : 0.0f;
  for (int64_t i = 0; i < head_dim; ++i) to[i] = convert(x[i] * inverse);
}

// Writes a vector to row `row` of `values`, one of the cache's k and v.
inline void store_vector(const Cache& cache, const float* x, uint8_t* values, float* scales,
                         int64_t row) {
  const int64_t d = cache.head_dim;
  uint8_t* to = values + row * cache.vector_bytes();
  switch (cache.kind) {
    case kKvFloat:
      std::memcpy(to, x, static_cast<size_t>(d) * 4);
      return;
    case kKvBfloat:
      for (int64_t i = 0; i < d; ++i) {
        reinterpret_cast<uint16_t*>(to)[i] = float_to_bfloat(x[i]);
      }
      return;
    case kKvInt8:
      store_scaled(x, d, 127.0f, to, scales + row, [](float f) {
        return static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(f)));
      });
      return;
    case kKvFp8:
      store_scaled(x, d, 448.0f, to, scales + row, float_to_fp8);
  }
}

// kLanes stored values from `at` on as floats, `value_factor` too small.
template <KvKind kKind>
inline VF load_cached(const uint8_t* p, int64_t at) {
  if constexpr (kKind == kKvFloat) return vf_load(reinterpret_cast<const float*>(p) + at);
  if constexpr (kKind == kKvBfloat) return vf_bfloat(reinterpret_cast<const uint16_t*>(p) + at);
  if constexpr (kKind == kKvInt8) return vf_int8(p + at);
  if constexpr (kKind == kKvFp8) return vf_fp8(p + at);
}

// The same of byte kByte of each 32-bit lane.
template <KvKind kKind, int kByte>
inline VF vf_cached_bytes(VI a) {
  if constexpr (kKind == kKvInt8) return vf_from_int(vi_byte<kByte>(a));
  if constexpr (kKind == kKvFp8) return vf_fp8_lanes(vi_byte<kByte>(a));
}

}  // namespace repartee
