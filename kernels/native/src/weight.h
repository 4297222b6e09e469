// A packed weight matrix: 16 rows interleaved, so that one vector lane is one row.
//
// A tile is 16 rows (the last one padded with zeros). Within a tile, columns advance in
// steps of 4: a step is 64 bytes, 4 consecutive columns of each of 16 rows.
//   INT8: one byte a value, q + 128, so that it can be the unsigned side of a dot product.
//   INT4: blocks of 32 columns are 4 steps of 64 bytes; the low nibbles of step j are
//         columns 4j .. 4j + 3 of the block, the high nibbles the same plus 16.
//   dense: [columns][16] values, no steps.
// Scales and minimums: [tile][columns / group][16].
#pragma once

#include "simd.h"

namespace repartee {

enum ActivationKind : int32_t {
  kActivationInt8 = 0,
  kActivationInt16 = 1,
  kActivationFloat = 2,
};
enum Kind : int32_t { kInt4 = 0, kInt8 = 1, kFloat = 2, kBfloat = 3, kHalf = 4 };

constexpr int kTileRows = 16;
constexpr int kBlock = 32;

// Filled in from Python; the field order is part of the interface.
struct Weight {
  int32_t kind;
  int32_t scale_is_half;
  int32_t zero;   // q - zero is the integer value: 8 or 0 for INT4, 128 for INT8
  int32_t activations;  // an ActivationKind; dense weights always take float32
  int64_t rows;
  int64_t columns;
  int64_t group;
  const uint8_t* data;
  const uint8_t* scale;
  const uint8_t* minimum;  // null: none

  int64_t num_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  int64_t num_blocks() const { return columns / kBlock; }
  int64_t num_groups() const { return group == 0 ? 0 : columns / group; }
  // Bytes of a tile's values.
  int64_t tile_bytes() const {
    switch (kind) {
      case kInt4: return columns * kTileRows / 2;
      case kInt8: return columns * kTileRows;
      case kFloat: return columns * kTileRows * 4;
      default: return columns * kTileRows * 2;
    }
  }
  ActivationKind activation_kind() const {
    const bool quantized = kind == kInt4 || kind == kInt8;
    return quantized ? static_cast<ActivationKind>(activations) : kActivationFloat;
  }

  // Scales (or minimums) of one tile's group, from lane `lane` on.
  VF group_values(const uint8_t* values, int64_t tile, int64_t index, int lane) const {
    const int64_t at = (tile * num_groups() + index) * kTileRows + lane;
    if (scale_is_half) return vf_half(reinterpret_cast<const uint16_t*>(values) + at);
    return vf_load(reinterpret_cast<const float*>(values) + at);
  }
  float group_value(const uint8_t* values, int64_t row, int64_t index) const {
    const int64_t at =
        (row / kTileRows * num_groups() + index) * kTileRows + row % kTileRows;
    if (scale_is_half) return half_to_float(reinterpret_cast<const uint16_t*>(values)[at]);
    return reinterpret_cast<const float*>(values)[at];
  }
};

// One row's values, as `Weight.dequantize` of the unpacked matrix gives them.
inline void unpack_row(const Weight& w, int64_t row, float* out) {
  const uint8_t* tile = w.data + row / kTileRows * w.tile_bytes();
  const int64_t lane = row % kTileRows;
  if (w.kind == kFloat) {
    const float* values = reinterpret_cast<const float*>(tile);
    for (int64_t k = 0; k < w.columns; ++k) out[k] = values[k * kTileRows + lane];
    return;
  }
  if (w.kind == kBfloat || w.kind == kHalf) {
    const uint16_t* values = reinterpret_cast<const uint16_t*>(tile);
    for (int64_t k = 0; k < w.columns; ++k) {
      const uint16_t v = values[k * kTileRows + lane];
      out[k] = w.kind == kHalf ? half_to_float(v) : bfloat_to_float(v);
    }
    return;
  }
  for (int64_t g = 0; g < w.num_groups(); ++g) {
    const float scale = w.group_value(w.scale, row, g);
    const float minimum = w.minimum ? w.group_value(w.minimum, row, g) : 0.0f;
    for (int64_t k = g * w.group; k < (g + 1) * w.group; ++k) {
      int q;
      if (w.kind == kInt8) {
        q = tile[k / 4 * 64 + lane * 4 + k % 4];
      } else {
        const int64_t in_block = k % kBlock;
        const uint8_t byte =
            tile[k / kBlock * 256 + in_block % 16 / 4 * 64 + lane * 4 + k % 4];
        q = in_block < 16 ? byte & 15 : byte >> 4;
      }
      out[k] = scale * static_cast<float>(q - w.zero) + minimum;
    }
  }
}

}  // namespace repartee
