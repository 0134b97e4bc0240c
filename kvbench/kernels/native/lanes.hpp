// Vectors of floats as wide as the processor's, in the compilers' own words for them.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "codes.hpp"

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace kvbench {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Vectors that sums are kept in while others are at work: half of the registers there are.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kSums = 16;
#else
constexpr int kSums = 8;
#endif

typedef float Lanes __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef std::uint32_t Bits32 __attribute__((vector_size(4 * kLanes)));
typedef std::uint16_t Bits16 __attribute__((vector_size(2 * kLanes)));

using Each = std::make_integer_sequence<int, kLanes>;

inline Lanes load(const float* at) {
  Lanes x;
  std::memcpy(&x, at, sizeof x);
  return x;
}

inline void store(float* at, Lanes x) { std::memcpy(at, &x, sizeof x); }

inline Lanes all(float x) { return Lanes{} + x; }

// The same in a register: a compiler may else load it anew for each use, and loads are what runs
// out first.
inline Lanes in_register(Lanes x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#elif defined(__SSE2__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}

inline Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }

// The elements of a row from an address on, as floats.
template <typename Format>
Lanes load_as_floats(const char* at);

template <>
inline Lanes load_as_floats<Fp32>(const char* at) {
  Lanes x;
  std::memcpy(&x, at, sizeof x);
  return x;
}

template <>
inline Lanes load_as_floats<Bf16>(const char* at) {
#if defined(__AVX512F__)
  __m256i bits;
  std::memcpy(&bits, at, sizeof bits);
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, bits);
  return reinterpret_cast<Lanes>(reinterpret_cast<Bits32>(wide) << 16);
#else
  Bits16 bits;
  std::memcpy(&bits, at, sizeof bits);
  return reinterpret_cast<Lanes>(__builtin_convertvector(bits, Bits32) << 16);
#endif
}

template <>
inline Lanes load_as_floats<Fp16>(const char* at) {
#if defined(__AVX512F__)
  __m256i bits;
  std::memcpy(&bits, at, sizeof bits);
  return reinterpret_cast<Lanes>(_mm512_maskz_cvtph_ps(0xffff, bits));
#elif defined(__F16C__)
  __m128i bits;
  std::memcpy(&bits, at, sizeof bits);
  return reinterpret_cast<Lanes>(_mm256_cvtph_ps(bits));
#elif defined(__aarch64__)
  typedef __fp16 Halves __attribute__((vector_size(2 * kLanes)));
  Halves bits;
  std::memcpy(&bits, at, sizeof bits);
  return __builtin_convertvector(bits, Lanes);
#else
  std::uint16_t bits[kLanes];
  std::memcpy(bits, at, sizeof bits);
  float numbers[kLanes];
  for (int i = 0; i < kLanes; ++i) numbers[i] = Fp16::load(bits[i]);
  return load(numbers);
#endif
}

// Lanes of a and b by number, those of b following those of a.
template <int... kNumbers>
Lanes chosen(Lanes a, Lanes b) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(a, b, kNumbers...);
#else
  return __builtin_shuffle(a, b, Ints{kNumbers...});
#endif
}

// Lane i has what was in lane i ^ kStep.
template <int kStep, int... i>
Lanes exchanged(Lanes x, std::integer_sequence<int, i...>) {
  return chosen<(i ^ kStep)...>(x, x);
}

template <int kStep>
Lanes exchanged(Lanes x) {
  return exchanged<kStep>(x, Each{});
}

// Lanes of b where the bit kStep of their number is set, of a elsewhere.
template <int kStep, int... i>
Lanes mixed(Lanes a, Lanes b, std::integer_sequence<int, i...>) {
  return chosen<(i & kStep ? i + kLanes : i)...>(a, b);
}

// Sums of two vectors' lanes kStep apart: those of b where the bit kStep is set, of a elsewhere.
template <int kStep>
Lanes folded(Lanes a, Lanes b) {
  return mixed<kStep>(a, b, Each{}) + exchanged<kStep>(mixed<kStep>(b, a, Each{}));
}

// Lane i is the sum of the lanes of vector i, of as many vectors as there are lanes.
template <int kStep = kLanes / 2>
inline Lanes sums_of(Lanes* vectors) {
  for (int i = 0; i < kStep; ++i) vectors[i] = folded<kStep>(vectors[i], vectors[i + kStep]);
  if constexpr (kStep > 1) return sums_of<kStep / 2>(vectors);
  return vectors[0];
}

// What lanes whose numbers differ by multiples of kRows have in common.
template <int kRows, typename Join>
Lanes joined_by_row(Lanes x, Join join) {
  if constexpr (kRows <= kLanes / 2) x = join(x, exchanged<kLanes / 2>(x));
  if constexpr (kRows <= kLanes / 4) x = join(x, exchanged<kLanes / 4>(x));
  if constexpr (kRows <= kLanes / 8) x = join(x, exchanged<kLanes / 8>(x));
  if constexpr (kRows <= kLanes / 16) x = join(x, exchanged<kLanes / 16>(x));
  return x;
}

// e**x = 2**exponent * (1 + fraction), where the fraction is exact to the last bits however small.
struct Power {
  Ints exponent;
  Lanes fraction;
};

// For x from -100 to 88.
inline Power power_of_e(Lanes x) {
  constexpr float kLog2E = 1.44269504f, kHigh = 0.693359375f, kLow = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // so large a number has no fraction: adding it rounds
  const Lanes shifted = x * kLog2E + kRound;
  const Lanes whole = shifted - kRound;
  const Lanes rest = (x - whole * kHigh) - whole * kLow;
  // Taylor's: what is left is at most ln(2) / 2.
  Lanes sum = rest * (1.0f / 5040) + 1.0f / 720;
  sum = sum * rest + 1.0f / 120;
  sum = sum * rest + 1.0f / 24;
  sum = sum * rest + 1.0f / 6;
  sum = sum * rest + 0.5f;
  return {__builtin_convertvector(whole, Ints), rest + rest * rest * sum};
}

inline Lanes two_to(Ints exponent) { return reinterpret_cast<Lanes>((exponent + 127) << 23); }

// e**x of x up to 0; 0 where that is below the normal numbers, and of minus infinity.
inline Lanes exponential(Lanes x) {
  const Ints none = x < -87.0f;
  const Power power = power_of_e(none ? Lanes{} : x);
  const Lanes scale = two_to(power.exponent);
  return none ? Lanes{} : scale + scale * power.fraction;
}

inline Lanes hyperbolic_tangent(Lanes x) {
  const Lanes size = x < 0.0f ? -x : x;
  const Ints one = size > 10.0f;  // to the nearest float
  // By e**-2x - 1, which is as exact near 0 as elsewhere.
  const Power power = power_of_e(one ? Lanes{} : -2.0f * size);
  const Lanes scale = two_to(power.exponent);
  const Lanes less_one = (scale - 1.0f) + scale * power.fraction;
  const Lanes tangent = one ? all(1.0f) : -less_one / (2.0f + less_one);
  return x < 0.0f ? -tangent : tangent;
}

}  // namespace kvbench
