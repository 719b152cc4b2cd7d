/// Conversions and special functions, one instruction a function.
/// PTX ISA: https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

#include "kernels/element.hpp"

namespace heed::ptx {

/// 2^x, flushing subnormals; 2 ulp over the full range, ex2(-inf) = 0.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-ex2
__device__ __forceinline__ float ex2_approx_ftz(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The same, kept where it stands in the source.
__device__ __forceinline__ float ex2_approx_ftz_in_order(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two fp16 powers of two at once.
__device__ __forceinline__ unsigned ex2_approx_f16x2(unsigned x) {
  unsigned y;
  asm("ex2.approx.f16x2 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// log2(x); lg2(0) = -inf.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-lg2
__device__ __forceinline__ float lg2_approx_ftz(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two fp32 values to one register of 16-bit values, round to nearest even; `low` in the low half.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
template <Element kElement>
__device__ __forceinline__ unsigned cvt_rn_x2(float low, float high) {
  static_assert(is_half<kElement>);
  unsigned packed;
  if constexpr (kElement == Element::bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// The same, kept where it stands in the source.
template <Element kElement>
__device__ __forceinline__ unsigned cvt_rn_x2_in_order(float low, float high) {
  static_assert(is_half<kElement>);
  unsigned packed;
  if constexpr (kElement == Element::bf16)
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  else
    asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Sums of the low and of the high fp16 halves.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-floating-point-instructions-add
__device__ __forceinline__ unsigned add_rn_f16x2(unsigned x, unsigned y) {
  unsigned sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(x), "r"(y));
  return sum;
}

/// 1 / x, within 1 ulp.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-rcp
__device__ __forceinline__ float rcp_approx_ftz(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / sqrt(x), within 2^-22.9 of it; rsqrt(inf) = 0.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-rsqrt
__device__ __forceinline__ float rsqrt_approx_ftz(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The 16-bit value in the low or high half of a register as fp32.
template <Element kElement>
__device__ __forceinline__ float unpack_low(unsigned packed) {
  static_assert(is_half<kElement>);
  if constexpr (kElement == Element::bf16) return __int_as_float(static_cast<int>(packed << 16));
  float y;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(y) : "r"(packed));
  return y;
}
template <Element kElement>
__device__ __forceinline__ float unpack_high(unsigned packed) {
  static_assert(is_half<kElement>);
  if constexpr (kElement == Element::bf16) return __int_as_float(static_cast<int>(packed & 0xFFFF0000U));
  float y;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(y) : "r"(packed));
  return y;
}

/// The fp16 in the low half of a register as fp32.
__device__ __forceinline__ float cvt_f32_f16(unsigned packed) {
  float y;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(y) : "r"(packed));
  return y;
}

/// z + x * y of both 16-bit halves of `pair` where they are above the halves of `limit`, or NaN; `other` elsewhere. As
/// selections: with a condition in C++ the compiler puts `other` into a register of its own for every sum and moves
/// sums to where other paths have them, two instructions more for each.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-comparison-instructions-setp
template <Element kElement>
__device__ __forceinline__ void fma_where_above(float& low, float& high, unsigned pair, unsigned limit, float y,
                                                float other) {
  static_assert(is_half<kElement>);
  if constexpr (kElement == Element::fp16) {
    asm("{\n"
        ".reg .pred p, q;\n"
        ".reg .f32 s, t;\n"
        "setp.gtu.f16x2 p|q, %4, %5;\n"
        "fma.rn.f32 s, %2, %6, %0;\n"
        "fma.rn.f32 t, %3, %6, %1;\n"
        "selp.f32 %0, s, %7, p;\n"
        "selp.f32 %1, t, %7, q;\n"
        "}\n"
        : "+f"(low), "+f"(high)
        : "f"(unpack_low<kElement>(pair)), "f"(unpack_high<kElement>(pair)), "r"(pair), "r"(limit), "f"(y), "f"(other));
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("{\n"
        ".reg .pred p, q;\n"
        ".reg .f32 s, t;\n"
        "setp.gtu.bf16x2 p|q, %4, %5;\n"
        "fma.rn.f32 s, %2, %6, %0;\n"
        "fma.rn.f32 t, %3, %6, %1;\n"
        "selp.f32 %0, s, %7, p;\n"
        "selp.f32 %1, t, %7, q;\n"
        "}\n"
        : "+f"(low), "+f"(high)
        : "f"(unpack_low<kElement>(pair)), "f"(unpack_high<kElement>(pair)), "r"(pair), "r"(limit), "f"(y), "f"(other));
#else
    asm("{\n"
        ".reg .pred p, q;\n"
        ".reg .f32 s, t;\n"
        "setp.gtu.f32 p, %2, %4;\n"
        "setp.gtu.f32 q, %3, %4;\n"
        "fma.rn.f32 s, %2, %5, %0;\n"
        "fma.rn.f32 t, %3, %5, %1;\n"
        "selp.f32 %0, s, %6, p;\n"
        "selp.f32 %1, t, %6, q;\n"
        "}\n"
        : "+f"(low), "+f"(high)
        : "f"(unpack_low<kElement>(pair)), "f"(unpack_high<kElement>(pair)), "f"(unpack_low<kElement>(limit)), "f"(y),
          "f"(other));
#endif
  }
}

/// The same of one fp32 value.
__device__ __forceinline__ void fma_where_above(float& z, float x, float limit, float y, float other) {
  asm("{\n"
      ".reg .pred p;\n"
      ".reg .f32 s;\n"
      "setp.gtu.f32 p, %1, %2;\n"
      "fma.rn.f32 s, %1, %3, %0;\n"
      "selp.f32 %0, s, %4, p;\n"
      "}\n"
      : "+f"(z)
      : "f"(x), "f"(limit), "f"(y), "f"(other));
}

/// x stays where any of the bits is set, and becomes `other` elsewhere; a selection, as above.
__device__ __forceinline__ void keep_where_any(float& x, unsigned bits, float other) {
  asm("{\n"
      ".reg .pred any;\n"
      "setp.ne.u32 any, %1, 0;\n"
      "selp.f32 %0, %0, %2, any;\n"
      "}\n"
      : "+f"(x)
      : "r"(bits), "f"(other));
}

}  // namespace heed::ptx
