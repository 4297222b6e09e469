// Vectors of the machine's width, and 16-lane groups whose results do not depend on it.
//
// Weights are interleaved by 16 rows, so that a lane is one output row and no sum ever
// crosses lanes: the order of summation, and with it every bit of the result, is the
// same for 8 lanes (AVX2) and for 16 (AVX-512).
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "AVX2, FMA and F16C are required"
#endif

namespace repartee {

// An E4M3 byte shifted 7 to the left, its sign kept, is a half 2^8 times too small: both
// have the same layout, and their exponents' biases are 7 and 15. This is true of
// subnormals as well.
constexpr float kFp8Factor = 256.0f;
constexpr int16_t kFp8Mask = static_cast<int16_t>(0xbfff);

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__) && defined(__AVX512VNNI__)

#define REPARTEE_LANES 16
constexpr const char* kIsa = "avx512-vnni";
using VF = __m512;
using VI = __m512i;

inline VF vf_load(const float* p) { return _mm512_loadu_ps(p); }
inline void vf_store(float* p, VF a) { _mm512_storeu_ps(p, a); }
inline VF vf_set(float a) { return _mm512_set1_ps(a); }
inline VF vf_zero() { return _mm512_setzero_ps(); }
inline VF vf_fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
inline VF vf_add(VF a, VF b) { return _mm512_add_ps(a, b); }
inline VF vf_sub(VF a, VF b) { return _mm512_sub_ps(a, b); }
inline VF vf_mul(VF a, VF b) { return _mm512_mul_ps(a, b); }
inline VF vf_div(VF a, VF b) { return _mm512_div_ps(a, b); }
inline VF vf_max(VF a, VF b) { return _mm512_max_ps(a, b); }
inline VF vf_min(VF a, VF b) { return _mm512_min_ps(a, b); }
inline VF vf_abs(VF a) { return _mm512_abs_ps(a); }
inline VF vf_round(VF a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline VF vf_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline VF vf_bfloat(const uint16_t* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}
inline VF vf_from_int(VI a) { return _mm512_cvtepi32_ps(a); }
inline VF vf_int8(const uint8_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(raw));
}
inline VF vf_fp8(const uint8_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(raw), 7);
  return _mm512_cvtph_ps(_mm256_and_si256(halves, _mm256_set1_epi16(kFp8Mask)));
}
inline VI vi_round(VF a) { return _mm512_cvtps_epi32(a); }
inline VI vi_load(const void* p) { return _mm512_loadu_si512(p); }
inline VI vi_set(int32_t a) { return _mm512_set1_epi32(a); }
inline VI vi_zero() { return _mm512_setzero_si512(); }
inline VI vi_add(VI a, VI b) { return _mm512_add_epi32(a, b); }
inline VI vi_and(VI a, VI b) { return _mm512_and_si512(a, b); }
template <int kBits>
inline VI vi_shift_right(VI a) { return _mm512_srli_epi32(a, kBits); }
// High byte of each 16-bit word.
inline VI vi_high_bytes(VI a) { return _mm512_srli_epi16(a, 8); }
// a * 2^n for integers n held as floats.
inline VF vf_scale_by_power(VF a, VF n) {
  const VI bits = _mm512_slli_epi32(_mm512_add_epi32(vi_round(n), vi_set(127)), 23);
  return vf_mul(a, _mm512_castsi512_ps(bits));
}
// Each 32-bit lane: c + the dot product of 4 unsigned bytes of a and 4 signed of b.
#define REPARTEE_DOT 1
inline VI vi_dot(VI c, VI a, VI b) { return _mm512_dpbusd_epi32(c, a, b); }
// The same of 2 signed 16-bit words of each.
inline VI vi_dot_words(VI c, VI a, VI b) { return _mm512_dpwssd_epi32(c, a, b); }
// Each four 32-bit values (0, 1, 2, 3) as (0, 2, 1, 3).
inline VI vi_swap_middle(VI a) { return _mm512_shuffle_epi32(a, _MM_PERM_DBCA); }
inline void store_int16(int16_t* p, VI a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(a));
}
inline void store_int8(int8_t* p, VI a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a));
}

#else

#define REPARTEE_LANES 8
using VF = __m256;
using VI = __m256i;

inline VF vf_load(const float* p) { return _mm256_loadu_ps(p); }
inline void vf_store(float* p, VF a) { _mm256_storeu_ps(p, a); }
inline VF vf_set(float a) { return _mm256_set1_ps(a); }
inline VF vf_zero() { return _mm256_setzero_ps(); }
inline VF vf_fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
inline VF vf_add(VF a, VF b) { return _mm256_add_ps(a, b); }
inline VF vf_sub(VF a, VF b) { return _mm256_sub_ps(a, b); }
inline VF vf_mul(VF a, VF b) { return _mm256_mul_ps(a, b); }
inline VF vf_div(VF a, VF b) { return _mm256_div_ps(a, b); }
inline VF vf_max(VF a, VF b) { return _mm256_max_ps(a, b); }
inline VF vf_min(VF a, VF b) { return _mm256_min_ps(a, b); }
inline VF vf_abs(VF a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline VF vf_round(VF a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline VF vf_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline VF vf_bfloat(const uint16_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
inline VF vf_from_int(VI a) { return _mm256_cvtepi32_ps(a); }
inline VF vf_int8(const uint8_t* p) {
  const __m128i raw = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(raw));
}
inline VF vf_fp8(const uint8_t* p) {
  const __m128i raw = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i halves = _mm_slli_epi16(_mm_cvtepi8_epi16(raw), 7);
  return _mm256_cvtph_ps(_mm_and_si128(halves, _mm_set1_epi16(kFp8Mask)));
}
inline VI vi_round(VF a) { return _mm256_cvtps_epi32(a); }
inline VI vi_load(const void* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline VI vi_set(int32_t a) { return _mm256_set1_epi32(a); }
inline VI vi_zero() { return _mm256_setzero_si256(); }
inline VI vi_add(VI a, VI b) { return _mm256_add_epi32(a, b); }
inline VI vi_and(VI a, VI b) { return _mm256_and_si256(a, b); }
template <int kBits>
inline VI vi_shift_right(VI a) { return _mm256_srli_epi32(a, kBits); }
inline VI vi_high_bytes(VI a) { return _mm256_srli_epi16(a, 8); }
inline VF vf_scale_by_power(VF a, VF n) {
  const VI bits = _mm256_slli_epi32(_mm256_add_epi32(vi_round(n), vi_set(127)), 23);
  return vf_mul(a, _mm256_castsi256_ps(bits));
}
#if defined(__AVXVNNI__)
constexpr const char* kIsa = "avx-vnni";
#define REPARTEE_DOT 1
inline VI vi_dot(VI c, VI a, VI b) { return _mm256_dpbusd_avx_epi32(c, a, b); }
inline VI vi_dot_words(VI c, VI a, VI b) { return _mm256_dpwssd_avx_epi32(c, a, b); }
#else
constexpr const char* kIsa = "avx2";
#define REPARTEE_DOT 0
inline VI vi_dot_words(VI c, VI a, VI b) {
  return _mm256_add_epi32(c, _mm256_madd_epi16(a, b));
}
#endif
inline VI vi_swap_middle(VI a) { return _mm256_shuffle_epi32(a, 0xd8); }
inline void store_int16(int16_t* p, VI a) {
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), words);
}
inline void store_int8(int8_t* p, VI a) {
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

#endif

// Of pairs of bfloat16 in 32-bit lanes: the first, and the second, as floats.
#if REPARTEE_LANES == 16
inline VI vi_of_bits(VF a) { return _mm512_castps_si512(a); }
inline VF vf_low_bfloats(VF a) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 16));
}
inline VF vf_high_bfloats(VF a) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), vi_set(-65536)));
}
// Byte kByte of each 32-bit lane, sign-extended.
template <int kByte>
inline VI vi_byte(VI a) {
  return _mm512_srai_epi32(_mm512_slli_epi32(a, 24 - 8 * kByte), 24);
}
// Of E4M3 bytes, sign-extended to 32-bit lanes: as vf_fp8.
inline VF vf_fp8_lanes(VI a) {
  const VI halves = _mm512_and_si512(_mm512_slli_epi32(a, 7), vi_set(kFp8Mask & 0xffff));
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(halves));
}
// A bit a lane: a >= b.
inline uint32_t vf_at_least(VF a, VF b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
#else
inline VI vi_of_bits(VF a) { return _mm256_castps_si256(a); }
inline VF vf_low_bfloats(VF a) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 16));
}
inline VF vf_high_bfloats(VF a) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(a), vi_set(-65536)));
}
template <int kByte>
inline VI vi_byte(VI a) {
  return _mm256_srai_epi32(_mm256_slli_epi32(a, 24 - 8 * kByte), 24);
}
inline VF vf_fp8_lanes(VI a) {
  const VI halves = _mm256_and_si256(_mm256_slli_epi32(a, 7), vi_set(kFp8Mask & 0xffff));
  const VI packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0x08);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}
inline uint32_t vf_at_least(VF a, VF b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}
#endif

constexpr int kLanes = REPARTEE_LANES;
// Vectors in a group of 16 lanes.
constexpr int kHalves = 16 / kLanes;

// Sums 16 lanes in a fixed tree.
inline float sum16(const float* a) {
  float s[8];
  for (int i = 0; i < 8; ++i) s[i] = a[i] + a[i + 8];
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

inline float max_lane(VF a) {
  float lanes[kLanes];
  vf_store(lanes, a);
  float m = lanes[0];
  for (int i = 1; i < kLanes; ++i) m = lanes[i] > m ? lanes[i] : m;
  return m;
}

// e^x to within 2 ulp; x is held to the range of normal numbers.
inline VF vf_exp(VF x) {
  x = vf_min(vf_max(x, vf_set(-87.0f)), vf_set(88.0f));
  const VF n = vf_round(vf_mul(x, vf_set(1.44269504f)));
  VF r = vf_fma(n, vf_set(-0.693359375f), x);
  r = vf_fma(n, vf_set(2.12194440e-4f), r);
  VF p = vf_set(1.9875691500e-4f);
  p = vf_fma(p, r, vf_set(1.3981999507e-3f));
  p = vf_fma(p, r, vf_set(8.3334519073e-3f));
  p = vf_fma(p, r, vf_set(4.1665795894e-2f));
  p = vf_fma(p, r, vf_set(1.6666665459e-1f));
  p = vf_fma(p, r, vf_set(5.0000001201e-1f));
  p = vf_fma(p, vf_mul(r, r), vf_add(r, vf_set(1.0f)));
  return vf_scale_by_power(p, n);
}

inline float scalar_exp(float x) {
  float lanes[kLanes];
  vf_store(lanes, vf_exp(vf_set(x)));
  return lanes[0];
}

inline float half_to_float(uint16_t h) { return _cvtsh_ss(h); }

inline float bfloat_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Rounds to nearest even; a NaN stays one.
inline uint16_t float_to_bfloat(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace repartee
