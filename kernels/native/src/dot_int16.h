// INT4 and INT8 weights times int16 activations: the dot products of one block, in int32.
//
// Weights are widened to 16-bit words, columns 0 and 2 of a step's four in one vector and
// 1 and 3 in the next, which takes a mask and a shift each; activations lie in that order.
#pragma once

#include "simd.h"

namespace repartee {

inline VI broadcast2(const int16_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return vi_set(v);
}

// dot[m] = sum over one block of (q - zero) * activations of row m, for kLanes weight rows.
template <int kRows>
inline void dot_int4(const uint8_t* step, const int16_t* q, int64_t stride,
                     const int32_t* offset, int64_t offset_stride, VI* dot) {
  const VI mask = vi_set(0x000f000f);
  for (int m = 0; m < kRows; ++m) dot[m] = vi_set(offset[m * offset_stride]);
  for (int j = 0; j < 4; ++j) {
    const VI raw = vi_load(step + j * 64);
    const VI low_even = vi_and(raw, mask);
    const VI low_odd = vi_and(vi_shift_right<8>(raw), mask);
    const VI high_even = vi_and(vi_shift_right<4>(raw), mask);
    const VI high_odd = vi_and(vi_shift_right<12>(raw), mask);
    for (int m = 0; m < kRows; ++m) {
      const int16_t* a = q + m * stride + j * 4;
      dot[m] = vi_dot_words(dot[m], low_even, broadcast2(a));
      dot[m] = vi_dot_words(dot[m], low_odd, broadcast2(a + 2));
      dot[m] = vi_dot_words(dot[m], high_even, broadcast2(a + 16));
      dot[m] = vi_dot_words(dot[m], high_odd, broadcast2(a + 18));
    }
  }
}

// The same for kSub columns of INT8.
template <int kRows, int kSub>
inline void dot_int8(const uint8_t* step, const int16_t* q, int64_t stride,
                     const int32_t* offset, int64_t offset_stride, VI* dot) {
  const VI mask = vi_set(0x00ff00ff);
  for (int m = 0; m < kRows; ++m) dot[m] = vi_set(offset[m * offset_stride]);
  for (int j = 0; j < kSub / 4; ++j) {
    const VI raw = vi_load(step + j * 64);
    const VI even = vi_and(raw, mask);
    const VI odd = vi_high_bytes(raw);
    for (int m = 0; m < kRows; ++m) {
      const int16_t* a = q + m * stride + j * 4;
      dot[m] = vi_dot_words(dot[m], even, broadcast2(a));
      dot[m] = vi_dot_words(dot[m], odd, broadcast2(a + 2));
    }
  }
}

}  // namespace repartee
