// Codes of quantised pools as bit arithmetic, the same as in codes.py, in loops that vectorise.
//
// A row goes through a buffer of floats: so each format of rows and each of codes is told once.
#pragma once

#include <cstdint>
#include <cstring>

namespace kvbench {

using Int = std::int64_t;

inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

constexpr float power_of_two(int exponent) {
  float x = 1;
  for (; exponent > 0; --exponent) x *= 2;
  for (; exponent < 0; ++exponent) x /= 2;
  return x;
}

// A magnitude as a format of fewer bits has it, to the nearest and ties to even. It is finite, and
// no larger than the format's exponents reach.
template <int kMantissa, int kBias>
std::uint32_t narrowed(float size) {
  const std::uint32_t bits = bits_of(size);
  // Normal numbers: add just under half of the last bit that is kept, or half if that bit is set.
  const std::uint32_t last = (bits >> (23 - kMantissa)) & 1;
  const std::uint32_t half = (1u << (22 - kMantissa)) - 1 + last;
  const std::uint32_t normal = ((bits + half) >> (23 - kMantissa)) - ((127 - kBias) << kMantissa);
  // Below them the spacing is fixed: a number whose last bit is worth that rounds to it.
  constexpr float unit = power_of_two(24 - kBias - kMantissa);
  const std::uint32_t below = bits_of(size + unit) - bits_of(unit);
  return size < power_of_two(1 - kBias) ? below : normal;
}

// The finite number of a magnitude in such a format.
template <int kMantissa, int kBias>
float widened(std::uint32_t magnitude) {
  const float below = static_cast<float>(static_cast<int>(magnitude)) *
                      power_of_two(1 - kBias - kMantissa);
  const float normal =
      float_of((magnitude + ((127 - kBias) << kMantissa)) << (23 - kMantissa));
  return magnitude < 1u << kMantissa ? below : normal;
}

inline float with_sign(float size, std::uint32_t sign) { return float_of(bits_of(size) | sign); }

// Formats of rows.

struct Fp32 {
  using Bits = std::uint32_t;
  static constexpr Bits kMagnitude = 0x7fffffff;
  static float load(Bits bits) { return float_of(bits); }
  static Bits store(float x) { return bits_of(x); }
};

struct Fp16 {
  using Bits = std::uint16_t;
  static constexpr Bits kMagnitude = 0x7fff;
  static float load(Bits bits) {
    const std::uint32_t magnitude = bits & 0x7fffu;
    const std::uint32_t special = 0x7f800000u | magnitude << 13;  // infinity, or NaN
    const float size =
        magnitude >= 0x7c00u ? float_of(special) : widened<10, 15>(magnitude);
    return with_sign(size, (bits & 0x8000u) << 16);
  }
  static Bits store(float x) {
    const float size = float_of(bits_of(x) & 0x7fffffffu);
    // 65536 is where infinity is, and what lies between rounds to it.
    const std::uint32_t rounded = narrowed<10, 15>(size < 65536.0f ? size : 65536.0f);
    const std::uint32_t magnitude = x != x ? 0x7e00u : rounded;
    return static_cast<Bits>((bits_of(x) >> 16 & 0x8000u) | magnitude);
  }
};

struct Bf16 {
  using Bits = std::uint16_t;
  static constexpr Bits kMagnitude = 0x7fff;
  static float load(Bits bits) { return float_of(static_cast<std::uint32_t>(bits) << 16); }
  static Bits store(float x) {
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1);
    return static_cast<Bits>((x != x ? bits | 0x400000u : rounded) >> 16);
  }
};

// Formats of codes.

template <int kMantissa, int kBias, std::uint32_t kLargestCode>
struct Fp8 {
  static std::uint8_t encode(float x) {
    const float largest = widened<kMantissa, kBias>(kLargestCode);
    const float size = float_of(bits_of(x) & 0x7fffffffu);
    const std::uint32_t rounded = narrowed<kMantissa, kBias>(size < largest ? size : largest);
    const std::uint32_t magnitude = x != x ? 0x7fu : rounded;
    return static_cast<std::uint8_t>((bits_of(x) >> 24 & 0x80u) | magnitude);
  }
  static float decode(std::uint8_t code) {
    const std::uint32_t magnitude = code & 0x7fu;
    // Past the largest comes infinity, where the format has it, and then NaN.
    constexpr std::uint32_t infinity = kMantissa == 2 ? kLargestCode + 1 : 0x80u;
    const std::uint32_t special = magnitude == infinity ? 0x7f800000u : 0x7fc00000u;
    const float size = magnitude > kLargestCode ? float_of(special)
                                                : widened<kMantissa, kBias>(magnitude);
    return with_sign(size, (code & 0x80u) << 24);
  }
};
using E4m3 = Fp8<3, 7, 0x7e>;
using E5m2 = Fp8<2, 15, 0x7b>;

struct Int8 {
  static std::uint8_t encode(float x) {
    const float above = x > -128.0f ? x : -128.0f;  // NaN is undefined, and here the least
    const float limited = above < 127.0f ? above : 127.0f;
    // So large a number has no fraction: adding it rounds. Its last bits are the code.
    return static_cast<std::uint8_t>(bits_of(limited + 12582912.0f));
  }
  static float decode(std::uint8_t code) {
    return static_cast<float>(static_cast<std::int8_t>(code));
  }
};

// Elements `stride` apart, to and from a buffer. Where they are next to each other the compiler is
// told, as its vectors need that.

template <typename Bits, typename Move>
void each_element(char* elements, Int stride, Int count, Move move) {
  auto* first = reinterpret_cast<Bits*>(elements);
  if (stride == sizeof(Bits)) {
    for (Int i = 0; i < count; ++i) move(first[i], i);
  } else {
    const Int step = stride / static_cast<Int>(sizeof(Bits));
    for (Int i = 0; i < count; ++i) move(first[i * step], i);
  }
}

template <typename Format>
void load_rows(char* row, Int stride, Int count, float* __restrict numbers) {
  each_element<typename Format::Bits>(
      row, stride, count, [=](typename Format::Bits& bits, Int i) { numbers[i] = Format::load(bits); });
}

template <typename Format>
void store_rows(const float* __restrict numbers, Int count, char* row, Int stride) {
  each_element<typename Format::Bits>(
      row, stride, count, [=](typename Format::Bits& bits, Int i) { bits = Format::store(numbers[i]); });
}

// The largest magnitude. Magnitudes are ordered as their bits are.
template <typename Format>
float largest_magnitude(char* row, Int stride, Int count) {
  using Bits = typename Format::Bits;
  Bits most = 0;
  each_element<Bits>(row, stride, count, [&](Bits& bits, Int) {
    const Bits magnitude = bits & Format::kMagnitude;
    most = magnitude > most ? magnitude : most;
  });
  return Format::load(most);
}

template <typename Format>
void encode(const float* __restrict numbers, Int count, float scale, char* codes, Int stride) {
  each_element<std::uint8_t>(codes, stride, count, [=](std::uint8_t& code, Int i) {
    code = Format::encode(numbers[i] / scale);
  });
}

template <typename Format>
void decode(char* codes, Int stride, Int count, float scale, float* __restrict numbers) {
  each_element<std::uint8_t>(codes, stride, count, [=](std::uint8_t& code, Int i) {
    numbers[i] = Format::decode(code) * scale;
  });
}

// What a plan names by number.

struct RowFormat {
  void (*load)(char*, Int, Int, float*);
  void (*store)(const float*, Int, char*, Int);
  float (*largest)(char*, Int, Int);
};

struct CodeFormat {
  void (*encode)(const float*, Int, float, char*, Int);
  void (*decode)(char*, Int, Int, float, float*);
  float largest;
};

template <typename Format>
constexpr RowFormat kRowFormat = {load_rows<Format>, store_rows<Format>, largest_magnitude<Format>};
constexpr RowFormat kRowFormats[] = {kRowFormat<Fp32>, kRowFormat<Fp16>, kRowFormat<Bf16>};

constexpr CodeFormat kCodeFormats[] = {{encode<Int8>, decode<Int8>, 127.0f},
                                       {encode<E4m3>, decode<E4m3>, 448.0f},
                                       {encode<E5m2>, decode<E5m2>, 57344.0f}};

}  // namespace kvbench
