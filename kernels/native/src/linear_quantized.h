// INT4 and INT8 weights times quantised activations, one tile of 16 rows at a time.
//
// For a block of 32 columns the dot product is exact in int32; then
//   out += (scale_w * scale_a) * dot   and, with minimums,   out += minimum * sum_a
// in float32, block after block. Every register-blocking factor does just this for each
// of its activation rows, so a row's bits do not depend on how many rows go along.
#pragma once

#include "dot_int16.h"
#include "dot_int8.h"
#include "quantize.h"

namespace repartee {

#if REPARTEE_LANES == 16
constexpr int kMaxRows = 8;
#else
constexpr int kMaxRows = 4;
#endif

// out[m][lane] for kLanes rows of tile `tile` (from lane `lane` on) and kRows activations.
template <class Q, int kKind, int kSub, bool kMinimum, int kRows>
void tile_quantized(const Weight& w, int64_t tile, int lane, const Activations<Q>& a, int64_t row,
                    VF* out) {
  const uint8_t* step = w.data + tile * w.tile_bytes() + lane * 4;
  const Q* q = a.q + row * a.columns;
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

template <class Q>
using TileQuantized = void (*)(const Weight&, int64_t, int, const Activations<Q>&, int64_t, VF*);

// The kernel for `rows` activation rows at once, by kind, sub-block and minimum.
template <class Q, int kRows>
TileQuantized<Q> tile_quantized_for(const Weight& w) {
  const bool minimum = w.minimum != nullptr;
  if (w.kind == kInt4) {
    return minimum ? tile_quantized<Q, kInt4, 32, true, kRows>
                   : tile_quantized<Q, kInt4, 32, false, kRows>;
  }
  if (w.group == 16) {
    return minimum ? tile_quantized<Q, kInt8, 16, true, kRows>
                   : tile_quantized<Q, kInt8, 16, false, kRows>;
  }
  return minimum ? tile_quantized<Q, kInt8, 32, true, kRows>
                 : tile_quantized<Q, kInt8, 32, false, kRows>;
}

// Computes up to kMaxRows activation rows of a tile: out[m * 16 + lane].
template <class Q>
struct QuantizedProduct {
  const Weight& w;
  const Activations<Q>& a;
  TileQuantized<Q> one = tile_quantized_for<Q, 1>(w);
  TileQuantized<Q> two = tile_quantized_for<Q, 2>(w);
  TileQuantized<Q> three = tile_quantized_for<Q, 3>(w);
  TileQuantized<Q> four = tile_quantized_for<Q, 4>(w);
#if REPARTEE_LANES == 16
  TileQuantized<Q> eight = tile_quantized_for<Q, 8>(w);
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

  TileQuantized<Q> kernel(int step) const {
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
