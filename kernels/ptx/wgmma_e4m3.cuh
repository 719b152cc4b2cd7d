/// Warpgroup-level matrix multiply-accumulate of e4m3 inputs with fp32 accumulation (sm_90a): 128 threads multiply a
/// (64, 32) operand A with a (32, kColumns) operand B that lies in shared memory. What kernels/ptx/wgmma.cuh says of
/// waiting and of accumulators holds here too.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
///
/// Operands of 8 bits in shared memory have rows along the contraction (K-major); there is no transposed form. A in
/// registers: byte i of register r of a lane is row lane / 4 + 8 (r % 2), column 4 (lane % 4) + i + 16 (r / 2).
/// Products are added with about 13 bits of mantissa (DeepSeek-V3, arXiv 2412.19437, 3.3.2), unlike those of 16-bit
/// operands.
#pragma once

#include "kernels/ptx/wgmma.cuh"

namespace heed::ptx {

// Register lists of the instructions below. The operands that follow the accumulators are numbered from their count on.
#define HEED_D(i) "+f"(d[i])
#define HEED_D4(i) HEED_D(i), HEED_D(i + 1), HEED_D(i + 2), HEED_D(i + 3)
#define HEED_D16(i) HEED_D4(i), HEED_D4(i + 4), HEED_D4(i + 8), HEED_D4(i + 12)
#define HEED_D32(i) HEED_D16(i), HEED_D16(i + 16)
#define HEED_R32                                                           \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HEED_R48 \
  HEED_R32       \
  ", "           \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define HEED_R64 \
  HEED_R48       \
  ", "           \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HEED_R80 \
  HEED_R64       \
  ", "           \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define HEED_R96 \
  HEED_R80       \
  ", "           \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HEED_R112 \
  HEED_R96        \
  ", "            \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define HEED_R128 \
  HEED_R112       \
  ", "            \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define HEED_LIST(...) __VA_ARGS__

#define HEED_WGMMA_SS(columns, registers, operand_a, operand_b, operand_c, outputs)                            \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " operand_c ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
               "k32.f32.e4m3.e4m3 {" registers "}, " operand_a ", " operand_b ", p, 1, 1;\n}\n"                \
               : outputs                                                                                       \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
#define HEED_WGMMA_RS(columns, registers, operand_a, operand_b, operand_c, outputs)                            \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " operand_c ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
               "k32.f32.e4m3.e4m3 {" registers "}, {" operand_a "}, " operand_b ", p, 1, 1;\n}\n"              \
               : outputs                                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))

/// d = or += A B^T, both operands in shared memory by their descriptors. The products of queries and keys.
template <int kColumns>
__device__ __forceinline__ void wgmma_e4m3_ss(float (&d)[kColumns / 2], unsigned long long a, unsigned long long b,
                                              bool accumulate) {
  static_assert(kColumns % 32 == 0 && kColumns >= 64 && kColumns <= 256, "no wrapper for this many columns");
  if constexpr (kColumns == 64)
    HEED_WGMMA_SS("64", HEED_R32, "%32", "%33", "%34", HEED_LIST(HEED_D32(0)));
  else if constexpr (kColumns == 96)
    HEED_WGMMA_SS("96", HEED_R48, "%48", "%49", "%50", HEED_LIST(HEED_D32(0), HEED_D16(32)));
  else if constexpr (kColumns == 128)
    HEED_WGMMA_SS("128", HEED_R64, "%64", "%65", "%66", HEED_LIST(HEED_D32(0), HEED_D32(32)));
  else if constexpr (kColumns == 160)
    HEED_WGMMA_SS("160", HEED_R80, "%80", "%81", "%82", HEED_LIST(HEED_D32(0), HEED_D32(32), HEED_D16(64)));
  else if constexpr (kColumns == 192)
    HEED_WGMMA_SS("192", HEED_R96, "%96", "%97", "%98", HEED_LIST(HEED_D32(0), HEED_D32(32), HEED_D32(64)));
  else if constexpr (kColumns == 224)
    HEED_WGMMA_SS("224", HEED_R112, "%112", "%113", "%114",
                  HEED_LIST(HEED_D32(0), HEED_D32(32), HEED_D32(64), HEED_D16(96)));
  else if constexpr (kColumns == 256)
    HEED_WGMMA_SS("256", HEED_R128, "%128", "%129", "%130",
                  HEED_LIST(HEED_D32(0), HEED_D32(32), HEED_D32(64), HEED_D32(96)));
}

/// d = or += A B, A in registers, B in shared memory with rows along the contraction. The products of probabilities and
/// values that have been transposed.
template <int kColumns>
__device__ __forceinline__ void wgmma_e4m3_rs(float (&d)[kColumns / 2], const unsigned (&a)[4], unsigned long long b,
                                              bool accumulate) {
  static_assert(kColumns == 64 || kColumns == 128 || kColumns == 256, "no wrapper for this many columns");
  if constexpr (kColumns == 64)
    HEED_WGMMA_RS("64", HEED_R32, "%32, %33, %34, %35", "%36", "%37", HEED_LIST(HEED_D32(0)));
  else if constexpr (kColumns == 128)
    HEED_WGMMA_RS("128", HEED_R64, "%64, %65, %66, %67", "%68", "%69", HEED_LIST(HEED_D32(0), HEED_D32(32)));
  else if constexpr (kColumns == 256)
    HEED_WGMMA_RS("256", HEED_R128, "%128, %129, %130, %131", "%132", "%133",
                  HEED_LIST(HEED_D32(0), HEED_D32(32), HEED_D32(64), HEED_D32(96)));
}

#undef HEED_D
#undef HEED_D4
#undef HEED_D16
#undef HEED_D32
#undef HEED_R32
#undef HEED_R48
#undef HEED_R64
#undef HEED_R80
#undef HEED_R96
#undef HEED_R112
#undef HEED_R128
#undef HEED_LIST
#undef HEED_WGMMA_SS
#undef HEED_WGMMA_RS

}  // namespace heed::ptx
