/// Warpgroup-level matrix multiply-accumulate of 16-bit inputs with fp32 accumulation (sm_90a): 128 threads multiply a
/// (64, 16) operand A with a (16, kColumns) operand B that lies in shared memory.
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
///
/// Accumulator registers: warp w of the warpgroup holds rows 16 w to 16 w + 15; within them register 4 t + i of a lane
/// is element tile::accumulator_element(lane, i) of the 16 x 8 tile t. A in registers is the A fragment of
/// mma.m16n8k16.
///
/// The products run asynchronously: wgmma_fence() before the first that uses registers written by other instructions,
/// wgmma_commit_group() after the last, wgmma_wait_group() before the results are read, and keep_live()
/// (kernels/codegen.cuh) after that wait, or the compiler may move reads in front of it.
#pragma once

#include "kernels/contract.hpp"

namespace heed::ptx {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most `pending` groups are in flight: a constant after unrolling.
__device__ __forceinline__ void wgmma_wait_group(int pending) {
  switch (pending) {
    case 0:
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      break;
    case 1:
      asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
      break;
    case 2:
      asm volatile("wgmma.wait_group.sync.aligned 2;" ::: "memory");
      break;
    case 3:
      asm volatile("wgmma.wait_group.sync.aligned 3;" ::: "memory");
      break;
    case 4:
      asm volatile("wgmma.wait_group.sync.aligned 4;" ::: "memory");
      break;
    case 5:
      asm volatile("wgmma.wait_group.sync.aligned 5;" ::: "memory");
      break;
    case 6:
      asm volatile("wgmma.wait_group.sync.aligned 6;" ::: "memory");
      break;
    default:
      asm volatile("wgmma.wait_group.sync.aligned 7;" ::: "memory");
  }
}

// Register lists of the instructions below. The operands that follow the accumulators are numbered from their count on.
#define HEED_D(i) "+f"(d[i])
#define HEED_D4(i) HEED_D(i), HEED_D(i + 1), HEED_D(i + 2), HEED_D(i + 3)
#define HEED_D16(i) HEED_D4(i), HEED_D4(i + 4), HEED_D4(i + 8), HEED_D4(i + 12)
#define HEED_D8(i) HEED_D4(i), HEED_D4(i + 4)
#define HEED_D32(i) HEED_D16(i), HEED_D16(i + 16)
#define HEED_R16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define HEED_R24 HEED_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define HEED_R32 HEED_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HEED_R36 HEED_R32 ", %32, %33, %34, %35"
#define HEED_R40 HEED_R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define HEED_R48 HEED_R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define HEED_R56 HEED_R48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define HEED_R64                                                                     \
  HEED_R32                                                                           \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HEED_R96                                                                     \
  HEED_R64                                                                           \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HEED_R128                                                                                \
  HEED_R96                                                                                       \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define HEED_LIST(...) __VA_ARGS__
#define HEED_WGMMA_SS(columns, element, registers, operand_a, operand_b, operand_c, outputs)                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " operand_c ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns      \
               "k16.f32." element "." element " {" registers "}, " operand_a ", " operand_b ", p, 1, 1, 0, 0;\n}\n" \
               : outputs                                                                                            \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
#define HEED_WGMMA_RS(columns, element, registers, operand_a, operand_b, operand_c, outputs)                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " operand_c ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns     \
               "k16.f32." element "." element " {" registers "}, {" operand_a "}, " operand_b ", p, 1, 1, 1;\n}\n" \
               : outputs                                                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))

/// d = or += A B^T, both operands in shared memory with rows along the contraction (K-major), by their descriptors
/// (kernels/tile/matrix_descriptor.hpp). The products of queries and keys.
template <Element kElement, int kColumns>
__device__ __forceinline__ void wgmma_ss(float (&d)[kColumns / 2], unsigned long long a, unsigned long long b,
                                         bool accumulate) {
  static_assert(kColumns % 16 == 0 && kColumns >= 32 && kColumns <= 128, "no wrapper for this many columns");
  if constexpr (kColumns == 32 && kElement == Element::bf16)
    HEED_WGMMA_SS("32", "bf16", HEED_R16, "%16", "%17", "%18", HEED_LIST(HEED_D16(0)));
  else if constexpr (kColumns == 32 && kElement == Element::fp16)
    HEED_WGMMA_SS("32", "f16", HEED_R16, "%16", "%17", "%18", HEED_LIST(HEED_D16(0)));
  else if constexpr (kColumns == 64 && kElement == Element::bf16)
    HEED_WGMMA_SS("64", "bf16", HEED_R32, "%32", "%33", "%34", HEED_LIST(HEED_D32(0)));
  else if constexpr (kColumns == 64 && kElement == Element::fp16)
    HEED_WGMMA_SS("64", "f16", HEED_R32, "%32", "%33", "%34", HEED_LIST(HEED_D32(0)));
  else if constexpr (kColumns == 128 && kElement == Element::bf16)
    HEED_WGMMA_SS("128", "bf16", HEED_R64, "%64", "%65", "%66", HEED_LIST(HEED_D32(0), HEED_D32(32)));
  else if constexpr (kColumns == 128 && kElement == Element::fp16)
    HEED_WGMMA_SS("128", "f16", HEED_R64, "%64", "%65", "%66", HEED_LIST(HEED_D32(0), HEED_D32(32)));
  else if constexpr (kColumns == 48 && kElement == Element::bf16)
    HEED_WGMMA_SS("48", "bf16", HEED_R24, "%24", "%25", "%26", HEED_LIST(HEED_D16(0), HEED_D8(16)));
  else if constexpr (kColumns == 48 && kElement == Element::fp16)
    HEED_WGMMA_SS("48", "f16", HEED_R24, "%24", "%25", "%26", HEED_LIST(HEED_D16(0), HEED_D8(16)));
  else if constexpr (kColumns == 80 && kElement == Element::bf16)
    HEED_WGMMA_SS("80", "bf16", HEED_R40, "%40", "%41", "%42", HEED_LIST(HEED_D32(0), HEED_D8(32)));
  else if constexpr (kColumns == 80 && kElement == Element::fp16)
    HEED_WGMMA_SS("80", "f16", HEED_R40, "%40", "%41", "%42", HEED_LIST(HEED_D32(0), HEED_D8(32)));
  else if constexpr (kColumns == 96 && kElement == Element::bf16)
    HEED_WGMMA_SS("96", "bf16", HEED_R48, "%48", "%49", "%50", HEED_LIST(HEED_D32(0), HEED_D16(32)));
  else if constexpr (kColumns == 96 && kElement == Element::fp16)
    HEED_WGMMA_SS("96", "f16", HEED_R48, "%48", "%49", "%50", HEED_LIST(HEED_D32(0), HEED_D16(32)));
  else if constexpr (kColumns == 112 && kElement == Element::bf16)
    HEED_WGMMA_SS("112", "bf16", HEED_R56, "%56", "%57", "%58", HEED_LIST(HEED_D32(0), HEED_D16(32), HEED_D8(48)));
  else if constexpr (kColumns == 112 && kElement == Element::fp16)
    HEED_WGMMA_SS("112", "f16", HEED_R56, "%56", "%57", "%58", HEED_LIST(HEED_D32(0), HEED_D16(32), HEED_D8(48)));
}

/// d = or += A B, A in registers, B in shared memory with rows along the columns (MN-major). The products of
/// probabilities and values.
template <Element kElement, int kColumns>
__device__ __forceinline__ void wgmma_rs(float (&d)[kColumns / 2], const unsigned (&a)[4], unsigned long long b,
                                         bool accumulate) {
  static_assert(kColumns % 64 == 0 || kColumns == 72, "no wrapper for this many columns");
  if constexpr (kColumns == 64 && kElement == Element::bf16)
    HEED_WGMMA_RS("64", "bf16", HEED_R32, "%32, %33, %34, %35", "%36", "%37", HEED_LIST(HEED_D32(0)));
  else if constexpr (kColumns == 64 && kElement == Element::fp16)
    HEED_WGMMA_RS("64", "f16", HEED_R32, "%32, %33, %34, %35", "%36", "%37", HEED_LIST(HEED_D32(0)));
  else if constexpr (kColumns == 72 && kElement == Element::bf16)
    HEED_WGMMA_RS("72", "bf16", HEED_R36, "%36, %37, %38, %39", "%40", "%41", HEED_LIST(HEED_D32(0), HEED_D4(32)));
  else if constexpr (kColumns == 72 && kElement == Element::fp16)
    HEED_WGMMA_RS("72", "f16", HEED_R36, "%36, %37, %38, %39", "%40", "%41", HEED_LIST(HEED_D32(0), HEED_D4(32)));
  else if constexpr (kColumns == 128 && kElement == Element::bf16)
    HEED_WGMMA_RS("128", "bf16", HEED_R64, "%64, %65, %66, %67", "%68", "%69", HEED_LIST(HEED_D32(0), HEED_D32(32)));
  else if constexpr (kColumns == 128 && kElement == Element::fp16)
    HEED_WGMMA_RS("128", "f16", HEED_R64, "%64, %65, %66, %67", "%68", "%69", HEED_LIST(HEED_D32(0), HEED_D32(32)));
  else if constexpr (kColumns == 192 && kElement == Element::bf16)
    HEED_WGMMA_RS("192", "bf16", HEED_R96, "%96, %97, %98, %99", "%100", "%101",
                  HEED_LIST(HEED_D32(0), HEED_D32(32), HEED_D32(64)));
  else if constexpr (kColumns == 192 && kElement == Element::fp16)
    HEED_WGMMA_RS("192", "f16", HEED_R96, "%96, %97, %98, %99", "%100", "%101",
                  HEED_LIST(HEED_D32(0), HEED_D32(32), HEED_D32(64)));
  else if constexpr (kColumns == 256 && kElement == Element::bf16)
    HEED_WGMMA_RS("256", "bf16", HEED_R128, "%128, %129, %130, %131", "%132", "%133",
                  HEED_LIST(HEED_D32(0), HEED_D32(32), HEED_D32(64), HEED_D32(96)));
  else if constexpr (kColumns == 256 && kElement == Element::fp16)
    HEED_WGMMA_RS("256", "f16", HEED_R128, "%128, %129, %130, %131", "%132", "%133",
                  HEED_LIST(HEED_D32(0), HEED_D32(32), HEED_D32(64), HEED_D32(96)));
}

#undef HEED_D
#undef HEED_D4
#undef HEED_D8
#undef HEED_D16
#undef HEED_D32
#undef HEED_R16
#undef HEED_R24
#undef HEED_R32
#undef HEED_R36
#undef HEED_R40
#undef HEED_R48
#undef HEED_R56
#undef HEED_R64
#undef HEED_R96
#undef HEED_R128
#undef HEED_WGMMA_SS
#undef HEED_WGMMA_RS
#undef HEED_LIST

}  // namespace heed::ptx
