// Linear layers: activations prepared once, then tiles of outputs shared among threads.
#pragma once

#include <algorithm>

#include "linear_fp32.h"
#include "linear_quantized.h"

namespace repartee {

enum Epilogue : int32_t { kStore = 0, kAdd = 1, kSwiglu = 2 };

struct Output {
  const float* bias;  // null: none
  float* data;
  int64_t stride;
  int32_t epilogue;
};

constexpr int kRowsAtOnce = 8;
// Activation rows that stay in the second-level cache while all tiles pass by.
constexpr int64_t kRowChunk = 128;

inline VF swiglu(VF gate, VF up) {
  const VF one = vf_set(1.0f);
  return vf_mul(vf_div(gate, vf_add(one, vf_exp(vf_sub(vf_zero(), gate)))), up);
}

// Writes 16 (fewer in the last tile) results a row to columns `tile` * 16 on.
inline void store_tile(const float* values, int64_t tile, int64_t row, int rows, int64_t width,
                       const Output& out) {
  const int64_t column = tile * kTileRows;
  const int64_t count = std::min<int64_t>(kTileRows, width - column);
  for (int m = 0; m < rows; ++m) {
    float* to = out.data + (row + m) * out.stride + column;
    const float* from = values + m * kTileRows;
    for (int64_t i = 0; i < count; ++i) {
      const float y = out.bias == nullptr ? from[i] : from[i] + out.bias[column + i];
      to[i] = out.epilogue == kAdd ? to[i] + y : y;
    }
  }
}

// All tiles of all rows, in items small enough to balance and large enough to stream.
template <class Product>
void multiply_tiles(const Weight& w, int64_t num_rows, const Product& product,
                    const Output& out) {
  const bool gated = out.epilogue == kSwiglu;
  const int64_t width = gated ? w.rows / 2 : w.rows;
  const int64_t num_tiles = (width + kTileRows - 1) / kTileRows;
  const int64_t row_chunks = (num_rows + kRowChunk - 1) / kRowChunk;
  const int64_t wanted = std::max<int64_t>(1, 4 * num_threads() / row_chunks);
  const int64_t tiles_at_once = std::max<int64_t>(1, std::min<int64_t>(64, num_tiles / wanted));
  const int64_t tile_chunks = (num_tiles + tiles_at_once - 1) / tiles_at_once;
  parallel_for(row_chunks * tile_chunks, [&](int64_t item) {
    const int64_t row_begin = item / tile_chunks * kRowChunk;
    const int64_t row_end = std::min(row_begin + kRowChunk, num_rows);
    const int64_t tile_begin = item % tile_chunks * tiles_at_once;
    const int64_t tile_end = std::min(tile_begin + tiles_at_once, num_tiles);
    alignas(64) float values[kRowsAtOnce * kTileRows];
    alignas(64) float up[kRowsAtOnce * kTileRows];
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      for (int64_t row = row_begin; row < row_end; row += kRowsAtOnce) {
        const int rows = static_cast<int>(std::min<int64_t>(kRowsAtOnce, row_end - row));
        product(tile, row, rows, values);
        if (gated) {
          product(tile + num_tiles, row, rows, up);
          for (int i = 0; i < rows * kTileRows; i += kLanes) {
            vf_store(values + i, swiglu(vf_load(values + i), vf_load(up + i)));
          }
        }
        store_tile(values, tile, row, rows, width, out);
      }
    }
  });
}

template <class Q>
Activations<Q> prepare_activations(const Weight& w, int64_t num_rows) {
  static thread_local Scratch<Q> q;
  static thread_local Scratch<float> scale;
  static thread_local Scratch<int32_t> offset;
  static thread_local Scratch<float> sum;
  const int64_t blocks = w.columns / kBlock;
  const int64_t subs = w.group == 16 ? blocks * 2 : blocks;
  return {q.get(num_rows * w.columns), scale.get(num_rows * blocks), offset.get(num_rows * subs),
          sum.get(num_rows * subs),    w.columns,                    blocks,
          subs};
}

template <class Q>
void linear_quantized(const Weight& w, const float* x, int64_t x_stride, int64_t num_rows,
                      const float* norm, float eps, const Output& out) {
  const Activations<Q> a = prepare_activations<Q>(w, num_rows);
  for_rows(num_rows, [&](int64_t row) {
    if (w.group == 16) {
      quantize_row<Q, 16>(x + row * x_stride, norm, eps, w.zero, a, row);
    } else {
      quantize_row<Q, 32>(x + row * x_stride, norm, eps, w.zero, a, row);
    }
  });
  multiply_tiles(w, num_rows, QuantizedProduct<Q>{w, a}, out);
}

inline void linear_exact(const Weight& w, const float* x, int64_t x_stride, int64_t num_rows,
                         const float* norm, float eps, const Output& out) {
  if (norm != nullptr) {
    static thread_local Scratch<float> normalized;
    float* y = normalized.get(num_rows * w.columns);
    for_rows(num_rows, [&](int64_t row) {
      normalize_row(x + row * x_stride, norm, eps, w.columns, y + row * w.columns);
    });
    x = y;
    x_stride = w.columns;
  }
  multiply_tiles(w, num_rows, ExactProduct{w, x, x_stride}, out);
}

// out = epilogue(norm(x) @ Wᵀ). With kSwiglu, w.rows / 2 must be a multiple of 16.
inline void linear(const Weight& w, const float* x, int64_t x_stride, int64_t num_rows,
                   const float* norm, float eps, const Output& out) {
  switch (w.activation_kind()) {
    case kActivationInt8:
      return linear_quantized<int8_t>(w, x, x_stride, num_rows, norm, eps, out);
    case kActivationInt16:
      return linear_quantized<int16_t>(w, x, x_stride, num_rows, norm, eps, out);
    default:
      return linear_exact(w, x, x_stride, num_rows, norm, eps, out);
  }
}

}  // namespace repartee
