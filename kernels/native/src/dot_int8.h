// INT4 and INT8 weights times int8 activations: the dot products of one block, in int32.
#pragma once

#include "simd.h"

namespace repartee {

inline VI broadcast4(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return vi_set(v);
}

#if !REPARTEE_DOT
inline VI dot_words(VI a, VI b) { return _mm256_maddubs_epi16(a, b); }
inline VI add_words(VI a, VI b) { return _mm256_add_epi16(a, b); }
inline VI widen_words(VI a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
#endif

// dot[m] = sum over one block of (q - zero) * activations of row m, for kLanes weight rows.
template <int kRows>
inline void dot_int4(const uint8_t* step, const int8_t* q, int64_t stride,
                     const int32_t* offset, int64_t offset_stride, VI* dot) {
  const VI mask = vi_set(0x0f0f0f0f);
#if REPARTEE_DOT
  for (int m = 0; m < kRows; ++m) dot[m] = vi_set(offset[m * offset_stride]);
#else
  // Eight sums of two products, each at most 15 * 127: they fit into 16 bits.
  VI words[kRows];
  for (int m = 0; m < kRows; ++m) words[m] = vi_zero();
#endif
  for (int j = 0; j < 4; ++j) {
    const VI raw = vi_load(step + j * 64);
    const VI low = vi_and(raw, mask);
    const VI high = vi_and(vi_shift_right<4>(raw), mask);
    for (int m = 0; m < kRows; ++m) {
      const VI a = broadcast4(q + m * stride + j * 4);
      const VI b = broadcast4(q + m * stride + 16 + j * 4);
#if REPARTEE_DOT
      dot[m] = vi_dot(dot[m], low, a);
      dot[m] = vi_dot(dot[m], high, b);
#else
      words[m] = add_words(words[m], add_words(dot_words(low, a), dot_words(high, b)));
#endif
    }
  }
#if !REPARTEE_DOT
  for (int m = 0; m < kRows; ++m) {
    dot[m] = vi_add(widen_words(words[m]), vi_set(offset[m * offset_stride]));
  }
#endif
}

// The same for kSub columns of INT8.
template <int kRows, int kSub>
inline void dot_int8(const uint8_t* step, const int8_t* q, int64_t stride,
                     const int32_t* offset, int64_t offset_stride, VI* dot) {
#if REPARTEE_DOT
  for (int m = 0; m < kRows; ++m) dot[m] = vi_set(offset[m * offset_stride]);
  for (int j = 0; j < kSub / 4; ++j) {
    const VI w = vi_load(step + j * 64);
    for (int m = 0; m < kRows; ++m) dot[m] = vi_dot(dot[m], w, broadcast4(q + m * stride + j * 4));
  }
#else
  // 255 * 127 * 2 would overflow 16 bits: |w| takes the unsigned side and its sign moves
  // to the activation. The values are signed again, so there is no offset to add.
  (void)offset;
  (void)offset_stride;
  const VI flip = _mm256_set1_epi8(static_cast<char>(0x80));
  for (int m = 0; m < kRows; ++m) dot[m] = vi_zero();
  for (int j = 0; j < kSub / 4; ++j) {
    const VI w = _mm256_xor_si256(vi_load(step + j * 64), flip);
    const VI magnitude = _mm256_abs_epi8(w);
    for (int m = 0; m < kRows; ++m) {
      const VI a = _mm256_sign_epi8(broadcast4(q + m * stride + j * 4), w);
      dot[m] = vi_add(dot[m], widen_words(dot_words(magnitude, a)));
    }
  }
#endif
}

}  // namespace repartee
