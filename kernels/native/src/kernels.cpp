// The C interface that ctypes calls: addresses and numbers in, 0 or an error number out.

#include <cstdlib>

#include "attention.h"
#include "linear.h"
#include "sampling.h"

using namespace repartee;

namespace {

constexpr int kOk = 0;
constexpr int kOutOfRange = 1;

Cache cache_of(void* k, void* v, float* k_scale, float* v_scale, int64_t num_kv_heads,
               int64_t block_size, int64_t head_dim, int kind) {
  return {static_cast<uint8_t*>(k), static_cast<uint8_t*>(v), k_scale, v_scale, num_kv_heads,
          block_size, head_dim, static_cast<KvKind>(kind)};
}

}  // namespace

extern "C" {

const char* repartee_isa() { return kIsa; }

void repartee_set_num_threads(int count) { set_num_threads(count); }

int repartee_num_threads() { return num_threads(); }

void repartee_linear(const Weight* w, const float* x, int64_t x_stride, int64_t num_rows,
                     const float* norm, float eps, const float* bias, float* out,
                     int64_t out_stride, int epilogue) {
  linear(*w, x, x_stride, num_rows, norm, eps, {bias, out, out_stride, epilogue});
}

// out = silu(gate) * up, `both` holding [gate, up] a row.
void repartee_swiglu(const float* both, int64_t width, int64_t num_rows, float* out) {
  for_rows(num_rows, [&](int64_t row) {
    const float* gate = both + row * 2 * width;
    for (int64_t i = 0; i < width; ++i) {
      out[row * width + i] = gate[i] / (1.0f + scalar_exp(-gate[i])) * gate[width + i];
    }
  });
}

void repartee_rms_norm(const float* x, int64_t x_stride, int64_t num_rows, int64_t columns,
                       const float* norm, float eps, float* out) {
  for_rows(num_rows, [&](int64_t row) {
    normalize_row(x + row * x_stride, norm, eps, columns, out + row * columns);
  });
}

// Rows `ids - first_row` of w; ids of other parts of the table are left alone.
void repartee_embedding(const Weight* w, const int64_t* ids, int64_t count, int64_t first_row,
                        float* out) {
  for_rows(count, [&](int64_t i) {
    const int64_t row = ids[i] - first_row;
    if (row >= 0 && row < w->rows) unpack_row(*w, row, out + i * w->columns);
  });
}

int repartee_rope_kv_write(const float* qkv, int64_t qkv_stride, int64_t num_tokens,
                           int64_t num_q_heads, const void* positions, const void* slots,
                           int wide_index, const float* table, int64_t num_positions,
                           const float* q_norm, const float* k_norm, float eps, void* k, void* v,
                           float* k_scale, float* v_scale, int64_t num_blocks,
                           int64_t num_kv_heads, int64_t block_size, int64_t head_dim, int kind,
                           float* q) {
  const Cache cache =
      cache_of(k, v, k_scale, v_scale, num_kv_heads, block_size, head_dim, kind);
  const RopeArguments r = {qkv, qkv_stride, num_q_heads, table, q_norm, k_norm, eps, q};
  const int64_t num_slots = num_blocks * block_size;
  const bool fits =
      wide_index ? rope_kv_write(r, cache, static_cast<const int64_t*>(positions),
                                 static_cast<const int64_t*>(slots), num_tokens, num_positions,
                                 num_slots)
                 : rope_kv_write(r, cache, static_cast<const int32_t*>(positions),
                                 static_cast<const int32_t*>(slots), num_tokens, num_positions,
                                 num_slots);
  return fits ? kOk : kOutOfRange;
}

int repartee_paged_attention(const float* q, int64_t num_tokens, int64_t num_q_heads,
                             const int32_t* query_starts, const int32_t* context_lens,
                             const int32_t* block_tables, int64_t num_sequences,
                             int64_t max_blocks, void* k, void* v, float* k_scale,
                             float* v_scale, int64_t num_blocks, int64_t num_kv_heads,
                             int64_t block_size, int64_t head_dim, int kind, float scale,
                             float* out) {
  const Cache cache =
      cache_of(k, v, k_scale, v_scale, num_kv_heads, block_size, head_dim, kind);
  const AttentionArguments a = {q,             out,        query_starts, context_lens, block_tables,
                                num_sequences, max_blocks, num_q_heads,  scale};
  if (!attention_arguments_fit(a, cache, num_tokens, num_blocks)) return kOutOfRange;
  switch (cache.kind) {
    case kKvFloat: paged_attention<kKvFloat>(a, cache); break;
    case kKvBfloat: paged_attention<kKvBfloat>(a, cache); break;
    case kKvInt8: paged_attention<kKvInt8>(a, cache); break;
    case kKvFp8: paged_attention<kKvFp8>(a, cache); break;
  }
  return kOk;
}

int repartee_sample(const SamplingRows* rows) { return sample_rows(*rows) ? kOk : kOutOfRange; }

}  // extern "C"
