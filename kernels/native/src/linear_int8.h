// INT4 and INT8 weights times int8 activations, one tile of 16 rows at a time.
//
// For a block of 32 columns the dot product is exact in int32; then
//   out += (scale_w * scale_a) * dot   and, with minimums,   out += minimum * sum_a
// in float32, block after block. Every register-blocking factor does just this for each
// of its activation rows, so a row's bits do not depend on how many rows go along.
#pragma once

#include "quantize.h"

namespace repartee {

#if REPARTEE_LANES == 16
constexpr int kMaxRows = 8;
#else
constexpr int kMaxRows = 4;
#endif

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

// out[m][lane] for kLanes rows of tile `tile` (from lane `lane` on) and kRows activations.
template <int kKind, int kSub, bool kMinimum, int kRows>
void tile_int8(const Weight& w, int64_t tile, int lane, const Activations& a, int64_t row,
               VF* out) {
  const uint8_t* step = w.data + tile * w.tile_bytes() + lane * 4;
  const int8_t* q = a.q + row * a.columns;
  const float* scale = a.scale + row * a.num_blocks;
  const int32_t* offset = a.offset + row * a.num_subs;
  const float* sum = a.sum + row * a.num_subs;
  constexpr int kSubs = kBlock / kSub;
  constexpr int kSubBytes = kKind == kInt4 ? 256 : kSub * kTileRows;
  const int64_t subs_per_group = w.group / kSub;
  VF total[kRows];
  for (int m = 0; m < kRows; ++m) total[m] = vf_zero();
  VF weight_scale = vf_zero();
  VF minimum = vf_zero();
  int64_t group = 0;
  int64_t left_in_group = 0;
  for (int64_t s = 0; s < a.num_subs; ++s) {
    if (left_in_group == 0) {
      weight_scale = w.group_values(w.scale, tile, group, lane);
      if (kMinimum) minimum = w.group_values(w.minimum, tile, group, lane);
      ++group;
      left_in_group = subs_per_group;
    }
    --left_in_group;
    VI dot[kRows];
    if constexpr (kKind == kInt4) {
      dot_int4<kRows>(step, q + s * kSub, a.columns, offset + s, a.num_subs, dot);
    } else {
      dot_int8<kRows, kSub>(step, q + s * kSub, a.columns, offset + s, a.num_subs, dot);
    }
    step += kSubBytes;
    for (int m = 0; m < kRows; ++m) {
      const VF factor = vf_mul(weight_scale, vf_set(scale[m * a.num_blocks + s / kSubs]));
      total[m] = vf_fma(vf_from_int(dot[m]), factor, total[m]);
      if (kMinimum) total[m] = vf_fma(minimum, vf_set(sum[m * a.num_subs + s]), total[m]);
    }
  }
  for (int m = 0; m < kRows; ++m) out[m] = total[m];
}

using TileInt8 = void (*)(const Weight&, int64_t, int, const Activations&, int64_t, VF*);

// The kernel for `rows` activation rows at once, by kind, sub-block and minimum.
template <int kRows>
TileInt8 tile_int8_for(const Weight& w) {
  const bool minimum = w.minimum != nullptr;
  if (w.kind == kInt4) {
    return minimum ? tile_int8<kInt4, 32, true, kRows> : tile_int8<kInt4, 32, false, kRows>;
  }
  if (w.group == 16) {
    return minimum ? tile_int8<kInt8, 16, true, kRows> : tile_int8<kInt8, 16, false, kRows>;
  }
  return minimum ? tile_int8<kInt8, 32, true, kRows> : tile_int8<kInt8, 32, false, kRows>;
}

// Computes up to kMaxRows activation rows of a tile: out[m * 16 + lane].
struct Int8Product {
  const Weight& w;
  const Activations& a;
  TileInt8 one = tile_int8_for<1>(w);
  TileInt8 two = tile_int8_for<2>(w);
  TileInt8 three = tile_int8_for<3>(w);
  TileInt8 four = tile_int8_for<4>(w);
#if REPARTEE_LANES == 16
  TileInt8 eight = tile_int8_for<8>(w);
#endif

  void operator()(int64_t tile, int64_t row, int rows, float* out) const {
    for (int lane = 0; lane < kTileRows; lane += kLanes) {
      for (int m = 0; m < rows;) {
        VF part[kMaxRows];
        const int step = take(rows - m);
        kernel(step)(w, tile, lane, a, row + m, part);
        for (int i = 0; i < step; ++i) vf_store(out + (m + i) * kTileRows + lane, part[i]);
        m += step;
      }
    }
  }

  static int take(int rows) { return rows >= 8 && kMaxRows == 8 ? 8 : rows >= 4 ? 4 : rows; }

  TileInt8 kernel(int step) const {
    switch (step) {
      case 1: return one;
      case 2: return two;
      case 3: return three;
      case 4: return four;
#if REPARTEE_LANES == 16
      default: return eight;
#else
      default: return four;
#endif
    }
  }
};

}  // namespace repartee
