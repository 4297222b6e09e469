// Any weight times float32 activations: the exact mode, and dense weights.
//
// out[lane] = fma(x[k], w[k][lane], out[lane]) for k ascending (within a block of INT4 in
// a fixed order), one chain a lane whatever the number of rows.
#pragma once

#include "weight.h"

namespace repartee {

constexpr int kMaxExactRows = 8;

template <int kKind, int kRows>
inline void multiply(VF w, const float* x, int64_t stride, VF* total) {
  for (int m = 0; m < kRows; ++m) total[m] = vf_fma(vf_set(x[m * stride]), w, total[m]);
}

template <int kKind>
inline VF dense_values(const uint8_t* tile, int64_t at) {
  if constexpr (kKind == kFloat) return vf_load(reinterpret_cast<const float*>(tile) + at);
  if constexpr (kKind == kHalf) return vf_half(reinterpret_cast<const uint16_t*>(tile) + at);
  return vf_bfloat(reinterpret_cast<const uint16_t*>(tile) + at);
}

template <int kKind, int kRows>
void tile_dense(const Weight& w, int64_t tile, int lane, const float* x, int64_t stride, VF* out) {
  const uint8_t* data = w.data + tile * w.tile_bytes();
  VF total[kRows];
  for (int m = 0; m < kRows; ++m) total[m] = vf_zero();
  for (int64_t k = 0; k < w.columns; ++k) {
    const VF values = dense_values<kKind>(data, k * kTileRows + lane);
    multiply<kKind, kRows>(values, x + k, stride, total);
  }
  for (int m = 0; m < kRows; ++m) out[m] = total[m];
}

// Four columns out of one step: the bytes of each 32-bit lane, scaled.
template <int kRows>
inline void multiply_step(VI bytes, VF zero, VF scale, VF minimum, const float* x, int64_t stride,
                          VF* total) {
  const VI mask = vi_set(0xff);
  const VI q[4] = {vi_and(bytes, mask), vi_and(vi_shift_right<8>(bytes), mask),
                   vi_and(vi_shift_right<16>(bytes), mask), vi_shift_right<24>(bytes)};
  for (int i = 0; i < 4; ++i) {
    const VF values = vf_fma(vf_sub(vf_from_int(q[i]), zero), scale, minimum);
    multiply<kInt8, kRows>(values, x + i, stride, total);
  }
}

template <int kKind, int kRows>
void tile_dequantized(const Weight& w, int64_t tile, int lane, const float* x, int64_t stride,
                      VF* out) {
  const uint8_t* step = w.data + tile * w.tile_bytes() + lane * 4;
  const VF zero = vf_set(static_cast<float>(w.zero));
  const VI nibble = vi_set(0x0f0f0f0f);
  VF total[kRows];
  for (int m = 0; m < kRows; ++m) total[m] = vf_zero();
  for (int64_t g = 0; g < w.num_groups(); ++g) {
    const VF scale = w.group_values(w.scale, tile, g, lane);
    const VF minimum = w.minimum ? w.group_values(w.minimum, tile, g, lane) : vf_zero();
    for (int64_t k = g * w.group; k < (g + 1) * w.group; k += kKind == kInt4 ? 32 : 16) {
      for (int j = 0; j < 4; ++j, step += 64) {
        const VI raw = vi_load(step);
        const float* at = x + k + j * 4;
        if constexpr (kKind == kInt4) {
          const VI high = vi_and(vi_shift_right<4>(raw), nibble);
          multiply_step<kRows>(vi_and(raw, nibble), zero, scale, minimum, at, stride, total);
          multiply_step<kRows>(high, zero, scale, minimum, at + 16, stride, total);
        } else {
          multiply_step<kRows>(raw, zero, scale, minimum, at, stride, total);
        }
      }
    }
  }
  for (int m = 0; m < kRows; ++m) out[m] = total[m];
}

using TileExact = void (*)(const Weight&, int64_t, int, const float*, int64_t, VF*);

template <int kRows>
TileExact tile_exact_for(const Weight& w) {
  switch (w.kind) {
    case kInt4: return tile_dequantized<kInt4, kRows>;
    case kInt8: return tile_dequantized<kInt8, kRows>;
    case kFloat: return tile_dense<kFloat, kRows>;
    case kBfloat: return tile_dense<kBfloat, kRows>;
    default: return tile_dense<kHalf, kRows>;
  }
}

// Computes up to kMaxExactRows activation rows of a tile: out[m * 16 + lane].
struct ExactProduct {
  const Weight& w;
  const float* x;
  int64_t stride;
  TileExact one = tile_exact_for<1>(w);
  TileExact two = tile_exact_for<2>(w);
  TileExact four = tile_exact_for<4>(w);
  TileExact eight = tile_exact_for<8>(w);

  void operator()(int64_t tile, int64_t row, int rows, float* out) const {
    for (int lane = 0; lane < kTileRows; lane += kLanes) {
      for (int m = 0; m < rows;) {
        VF part[kMaxExactRows];
        const int left = rows - m;
        const int step = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        const TileExact kernel = step == 8 ? eight : step == 4 ? four : step == 2 ? two : one;
        kernel(w, tile, lane, x + (row + m) * stride, stride, part);
        for (int i = 0; i < step; ++i) vf_store(out + (m + i) * kTileRows + lane, part[i]);
        m += step;
      }
    }
  }
};

}  // namespace repartee
