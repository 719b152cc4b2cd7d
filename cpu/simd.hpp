/// Vectors of fp32 as GCC and Clang vector extensions, as wide as the target the candidate is compiled for
/// (https://gcc.gnu.org/onlinedocs/gcc/Vector-Extensions.html), with the few conversions that need intrinsics.
///
/// Freestanding: no function of any library is called, because a candidate is linked against none. Where vector
/// extensions have no word for an instruction the compiler's built-in function is used, not <immintrin.h>: parsing that
/// header takes 1.0 s of the 2.2 s a candidate would take to build.
#pragma once

#include "kernels/contract.hpp"
#include "kernels/eight_bits.hpp"
#include "kernels/element.hpp"

namespace heed::cpu {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float Vec [[gnu::vector_size(kLanes * 4), gnu::may_alias]];
typedef float UnalignedVec [[gnu::vector_size(kLanes * 4), gnu::may_alias, gnu::aligned(4)]];
typedef int IntVec [[gnu::vector_size(kLanes * 4), gnu::may_alias]];
typedef unsigned short HalfVec [[gnu::vector_size(kLanes * 2), gnu::may_alias, gnu::aligned(2)]];
typedef unsigned UnsignedVec [[gnu::vector_size(kLanes * 4), gnu::may_alias]];
typedef unsigned char ByteVec [[gnu::vector_size(kLanes), gnu::may_alias, gnu::aligned(1)]];
typedef signed char SignedByteVec [[gnu::vector_size(kLanes), gnu::may_alias, gnu::aligned(1)]];

inline constexpr float kInfinity = __builtin_inff();

inline Vec broadcast(float x) {
  return x - Vec{};
}  // a subtraction keeps infinities; GCC turns it into one broadcast
inline IntVec broadcast(int x) {
  return x - IntVec{};
}

/// 0, 1, 2, ...
inline IntVec lane_indices() {
  IntVec lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

inline Vec max(Vec a, Vec b) {
  return a > b ? a : b;
}
inline Vec select(IntVec condition, Vec yes, Vec no) {
  return condition ? yes : no;
}

template <int... kIndex>
struct Indices {};
#if defined(__AVX512F__)
using LaneIndices = Indices<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>;
#elif defined(__AVX2__)
using LaneIndices = Indices<0, 1, 2, 3, 4, 5, 6, 7>;
#else
using LaneIndices = Indices<0, 1, 2, 3>;
#endif

inline bool any(IntVec condition) {
#if defined(__AVX512F__) || defined(__AVX2__)
  typedef float Half [[gnu::vector_size(32), gnu::may_alias]];
  int bits = 0;
  for (int i = 0; i < kLanes / 8; ++i) bits |= __builtin_ia32_movmskps256(reinterpret_cast<const Half*>(&condition)[i]);
  return bits != 0;
#else
  int bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= condition[i];
  return bits != 0;
#endif
}

/// One 16-bit element as fp32.
template <Element kElement>
inline float to_float(unsigned short bits) {
  static_assert(is_half<kElement>);
  if constexpr (kElement == Element::bf16) {
    return __builtin_bit_cast(float, static_cast<unsigned>(bits) << 16);
  } else {
#if defined(__F16C__)
    typedef short Halves [[gnu::vector_size(16)]];
    return __builtin_ia32_vcvtph2ps(Halves{static_cast<short>(bits)})[0];
#else
    const unsigned sign = (bits & 0x8000U) << 16;
    const unsigned exponent = (bits >> 10) & 0x1fU;
    const unsigned mantissa = bits & 0x3ffU;
    if (exponent == 0x1f) return __builtin_bit_cast(float, sign | 0x7f800000U | (mantissa << 13));
    if (exponent != 0) return __builtin_bit_cast(float, sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24F;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(unsigned, magnitude));
#endif
  }
}

/// fp32 rounded to nearest even.
template <Element kElement>
inline unsigned short from_float(float value) {
  static_assert(is_half<kElement>);
  const unsigned bits = __builtin_bit_cast(unsigned, value);
  if constexpr (kElement == Element::bf16) {
    if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<unsigned short>((bits >> 16) | 0x40U);
    return static_cast<unsigned short>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  } else {
#if defined(__F16C__)
    typedef float Floats [[gnu::vector_size(16)]];
    return static_cast<unsigned short>(__builtin_ia32_vcvtps2ph(Floats{value}, 0)[0]);  // 0: round to nearest even
#else
    const unsigned sign = (bits >> 16) & 0x8000U;
    const unsigned magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) return static_cast<unsigned short>(sign | 0x7e00U);
    if (magnitude >= 0x477ff000U) return static_cast<unsigned short>(sign | 0x7c00U);
    if (magnitude < 0x38800000U) {
      const float scaled = __builtin_bit_cast(float, magnitude) + 0.5F;
      return static_cast<unsigned short>(sign | (__builtin_bit_cast(unsigned, scaled) - 0x3f000000U));
    }
    const unsigned rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
    return static_cast<unsigned short>(sign | ((rounded - 0x38000000U) >> 13));
#endif
  }
}

/// fp32 rounded to nearest even, kLanes at once.
template <Element kElement>
inline HalfVec from_float(Vec values) {
  static_assert(is_half<kElement>);
  if constexpr (kElement == Element::bf16) {
    const auto bits = (UnsignedVec)values;
    const UnsignedVec rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const UnsignedVec quiet = (bits >> 16) | 0x40U;
    return __builtin_convertvector((UnsignedVec)select(values == values, (Vec)rounded, (Vec)quiet), HalfVec);
  } else {
#if defined(__AVX512F__)
    typedef short Halves [[gnu::vector_size(32)]];
    return (HalfVec)__builtin_ia32_vcvtps2ph512_mask(values, 0, Halves{}, -1);  // 0: round to nearest even
#elif defined(__AVX2__) && defined(__F16C__)
    return (HalfVec)__builtin_ia32_vcvtps2ph256(values, 0);
#else
    HalfVec narrow;
    for (int i = 0; i < kLanes; ++i) narrow[i] = from_float<kElement>(values[i]);
    return narrow;
#endif
  }
}

/// kLanes 16-bit elements as fp32.
template <Element kElement>
inline Vec to_float(HalfVec bits) {
  static_assert(is_half<kElement>);
  if constexpr (kElement == Element::bf16) {
    return (Vec)(__builtin_convertvector(bits, UnsignedVec) << 16);
  } else {
#if defined(__AVX512F__)
    typedef short Halves [[gnu::vector_size(32)]];
    return (Vec)__builtin_ia32_vcvtph2ps512_mask((Halves)bits, Vec{}, -1, 4);  // 4: the rounding mode of the thread
#elif defined(__AVX2__) && defined(__F16C__)
    typedef short Halves [[gnu::vector_size(16)]];
    return (Vec)__builtin_ia32_vcvtph2ps256((Halves)bits);
#else
    Vec wide;
    for (int i = 0; i < kLanes; ++i) wide[i] = to_float<kElement>(bits[i]);
    return wide;
#endif
  }
}

/// kLanes 8-bit elements as fp32. Subnormal numbers are made of whole ones, for a thread may take those of fp32 as
/// zeros.
template <Element kElement>
inline Vec to_float(ByteVec bytes) {
  if constexpr (kElement == Element::int8) {
    return __builtin_convertvector((SignedByteVec)bytes, Vec);
  } else {
    static_assert(kElement == Element::e4m3 || kElement == Element::e5m2);
    constexpr int kMantissa = kElement == Element::e4m3 ? 3 : 2;
    constexpr int kBiasLess = kElement == Element::e4m3 ? 120 : 112;  // below fp32's
    constexpr int kFirstNaN = kElement == Element::e4m3 ? 0x7f : 0x7d;
    const IntVec bits = __builtin_convertvector(bytes, IntVec);
    const IntVec magnitude = bits & 0x7f;
    const Vec smallest = (Vec)broadcast((kBiasLess + 1 - kMantissa) << 23);
    const Vec normal = (Vec)((magnitude << (23 - kMantissa)) + (kBiasLess << 23));
    Vec value = select(magnitude < (1 << kMantissa), __builtin_convertvector(magnitude, Vec) * smallest, normal);
    if constexpr (kElement == Element::e5m2) value = select(magnitude == 0x7c, broadcast(kInfinity), value);
    value = select(magnitude >= kFirstNaN, broadcast(__builtin_nanf("")), value);
    return (Vec)((IntVec)value | ((bits & 0x80) << 24));
  }
}

/// What an element is in memory.
template <Element kElement>
struct StoredAs {
  using Type = unsigned short;
};
template <>
struct StoredAs<Element::fp32> {
  using Type = float;
};
template <>
struct StoredAs<Element::e4m3> {
  using Type = unsigned char;
};
template <>
struct StoredAs<Element::e5m2> {
  using Type = unsigned char;
};
template <>
struct StoredAs<Element::int8> {
  using Type = unsigned char;
};
template <Element kElement>
using Stored = typename StoredAs<kElement>::Type;

template <Element kElement>
inline float load_scalar(const Stored<kElement>* from) {
  if constexpr (kElement == Element::fp32)
    return *from;
  else if constexpr (sizeof(Stored<kElement>) == 1)
    return eight_bits_to_float<kElement>(*from);
  else
    return to_float<kElement>(*from);
}
template <Element kElement>
inline Vec load_vector(const Stored<kElement>* from) {
  if constexpr (kElement == Element::fp32)
    return *reinterpret_cast<const UnalignedVec*>(from);
  else if constexpr (sizeof(Stored<kElement>) == 1)
    return to_float<kElement>(*reinterpret_cast<const ByteVec*>(from));
  else
    return to_float<kElement>(*reinterpret_cast<const HalfVec*>(from));
}
template <Element kElement>
inline void store_scalar(Stored<kElement>* to, float value) {
  if constexpr (kElement == Element::fp32)
    *to = value;
  else
    *to = from_float<kElement>(value);
}
template <Element kElement>
inline void store_vector(Stored<kElement>* to, Vec values) {
  if constexpr (kElement == Element::fp32)
    *reinterpret_cast<UnalignedVec*>(to) = values;
  else
    *reinterpret_cast<HalfVec*>(to) = from_float<kElement>(values);
}

/// `count` elements to fp32.
template <Element kElement>
inline void convert_row(const Stored<kElement>* from, float* to, int count) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) *reinterpret_cast<UnalignedVec*>(to + i) = load_vector<kElement>(from + i);
  for (; i < count; ++i) to[i] = load_scalar<kElement>(from + i);
}

/// The same of a quantised row: each element times its factor, of which there is one, or one each column.
template <Element kElement>
inline void dequantise_row(const Stored<kElement>* from, const float* factors, bool by_column, float* to, int count) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec factor = by_column ? (Vec) * reinterpret_cast<const UnalignedVec*>(factors + i) : broadcast(*factors);
    *reinterpret_cast<UnalignedVec*>(to + i) = load_vector<kElement>(from + i) * factor;
  }
  for (; i < count; ++i) to[i] = load_scalar<kElement>(from + i) * factors[by_column ? i : 0];
}

}  // namespace heed::cpu
