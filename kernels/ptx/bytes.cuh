/// Bytes of registers: conversions to and from 8-bit elements and permutations, one instruction a function.
/// PTX ISA: https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

namespace heed::ptx {

/// Four fp32 values to one register of e4m3, the first in the lowest byte: to nearest even, what is too large to the
/// largest (sm_89).
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
__device__ __forceinline__ unsigned cvt_rn_satfinite_e4m3_x4(float x0, float x1, float x2, float x3) {
  unsigned packed;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}\n"
      : "=r"(packed)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return packed;
}

/// The e4m3 values in the low or high half of a register as two fp16 values: exact, NaN stays (sm_89).
__device__ __forceinline__ unsigned cvt_rn_f16x2_e4m3x2_low(unsigned packed) {
  unsigned pair;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low; }" : "=r"(pair) : "r"(packed));
  return pair;
}
__device__ __forceinline__ unsigned cvt_rn_f16x2_e4m3x2_high(unsigned packed) {
  unsigned pair;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high; }" : "=r"(pair) : "r"(packed));
  return pair;
}

/// Byte i of the result is byte (selector >> 4 i) % 8 of the eight of x, the lower four, and y; where the selector's
/// bit 4 i + 3 is set, the sign of that byte eight times.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prmt
__device__ __forceinline__ unsigned prmt(unsigned x, unsigned y, unsigned selector) {
  unsigned z;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(y), "r"(selector));
  return z;
}

}  // namespace heed::ptx
