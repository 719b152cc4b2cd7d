#include "measure/floor.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "base/matrix_unit.hpp"
#include "base/parallel.hpp"
#include "variant/element.hpp"

namespace heed::measure {
namespace {

// 12 independent chains cover a latency of 4 at 2 FMAs a clock with room to spare, and fit 16 registers with two
// operands. Written as one asm block a step, so that the compiler neither spills nor simplifies the chains.
constexpr long long kStepsPerRun = 1'000'000;

#if defined(__x86_64__)

double flops_avx512() {
  asm volatile(
      "vpxorq %%zmm30, %%zmm30, %%zmm30\n vpxorq %%zmm31, %%zmm31, %%zmm31\n"
      "mov %0, %%rcx\n"
      "1:\n"
      "vfmadd231ps %%zmm30, %%zmm31, %%zmm0\n vfmadd231ps %%zmm30, %%zmm31, %%zmm1\n vfmadd231ps %%zmm30, %%zmm31, "
      "%%zmm2\n"
      "vfmadd231ps %%zmm30, %%zmm31, %%zmm3\n vfmadd231ps %%zmm30, %%zmm31, %%zmm4\n vfmadd231ps %%zmm30, %%zmm31, "
      "%%zmm5\n"
      "vfmadd231ps %%zmm30, %%zmm31, %%zmm6\n vfmadd231ps %%zmm30, %%zmm31, %%zmm7\n vfmadd231ps %%zmm30, %%zmm31, "
      "%%zmm8\n"
      "vfmadd231ps %%zmm30, %%zmm31, %%zmm9\n vfmadd231ps %%zmm30, %%zmm31, %%zmm10\n vfmadd231ps %%zmm30, %%zmm31, "
      "%%zmm11\n"
      "dec %%rcx\n"
      "jnz 1b\n"
      "vzeroupper\n"
      :
      : "r"(kStepsPerRun)
      : "rcx", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11");  // nothing else here uses zmm16 to 31
  return 12.0 * 16 * 2 * kStepsPerRun;
}

double flops_avx2() {
  asm volatile(
      "vxorps %%ymm14, %%ymm14, %%ymm14\n vxorps %%ymm15, %%ymm15, %%ymm15\n"
      "mov %0, %%rcx\n"
      "1:\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm0\n vfmadd231ps %%ymm14, %%ymm15, %%ymm1\n vfmadd231ps %%ymm14, %%ymm15, "
      "%%ymm2\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm3\n vfmadd231ps %%ymm14, %%ymm15, %%ymm4\n vfmadd231ps %%ymm14, %%ymm15, "
      "%%ymm5\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm6\n vfmadd231ps %%ymm14, %%ymm15, %%ymm7\n vfmadd231ps %%ymm14, %%ymm15, "
      "%%ymm8\n"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm9\n vfmadd231ps %%ymm14, %%ymm15, %%ymm10\n vfmadd231ps %%ymm14, %%ymm15, "
      "%%ymm11\n"
      "dec %%rcx\n"
      "jnz 1b\n"
      "vzeroupper\n"
      :
      : "r"(kStepsPerRun)
      : "rcx", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
        "xmm14", "xmm15");
  return 12.0 * 8 * 2 * kStepsPerRun;
}

// The matrix unit: four sums, each product waits for the one before it in its sum only. The instructions are older than
// some assemblers' defaults, but no compiler flag is needed for them in assembly.
double flops_matrix() {
  struct alignas(64) Layout {
    unsigned char palette = 1;
    unsigned char rest[15] = {};
    unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  constexpr long long kSteps = 250'000;
  const Layout layout;
  asm volatile(
      "ldtilecfg %1\n"
      "tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"
      "tilezero %%tmm4\n tilezero %%tmm5\n tilezero %%tmm6\n tilezero %%tmm7\n"
      "mov %0, %%rcx\n"
      "1:\n"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n"
      "dec %%rcx\n"
      "jnz 1b\n"
      "tilerelease\n"
      :
      : "r"(kSteps), "m"(layout)
      : "rcx", "cc", "memory");
  return 4.0 * 16 * 16 * 32 * 2 * kSteps;
}

#else

double flops_matrix() {
  return 0;
}

#endif

#if defined(__aarch64__)

// Of 32 registers 24 chains: four FMAs a clock with a latency of 4 (Arm Neoverse V1 and V2, Apple M1) need 16.
double flops_neon() {
  long long steps = kStepsPerRun;
  asm volatile(
      "movi v30.4s, #0\n movi v31.4s, #0\n"
      "1:\n"
      "fmla v0.4s, v30.4s, v31.4s\n fmla v1.4s, v30.4s, v31.4s\n fmla v2.4s, v30.4s, v31.4s\n"
      "fmla v3.4s, v30.4s, v31.4s\n fmla v4.4s, v30.4s, v31.4s\n fmla v5.4s, v30.4s, v31.4s\n"
      "fmla v6.4s, v30.4s, v31.4s\n fmla v7.4s, v30.4s, v31.4s\n fmla v8.4s, v30.4s, v31.4s\n"
      "fmla v9.4s, v30.4s, v31.4s\n fmla v10.4s, v30.4s, v31.4s\n fmla v11.4s, v30.4s, v31.4s\n"
      "fmla v12.4s, v30.4s, v31.4s\n fmla v13.4s, v30.4s, v31.4s\n fmla v14.4s, v30.4s, v31.4s\n"
      "fmla v15.4s, v30.4s, v31.4s\n fmla v16.4s, v30.4s, v31.4s\n fmla v17.4s, v30.4s, v31.4s\n"
      "fmla v18.4s, v30.4s, v31.4s\n fmla v19.4s, v30.4s, v31.4s\n fmla v20.4s, v30.4s, v31.4s\n"
      "fmla v21.4s, v30.4s, v31.4s\n fmla v22.4s, v30.4s, v31.4s\n fmla v23.4s, v30.4s, v31.4s\n"
      "subs %0, %0, #1\n"
      "b.ne 1b\n"
      : "+r"(steps)
      :
      : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15",
        "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v30", "v31");
  return 24.0 * 4 * 2 * kStepsPerRun;
}

#else

// Four lanes, multiply and add as the baseline has them.
double flops_portable() {
  typedef float Vec [[gnu::vector_size(16)]];
  Vec sums[8] = {};
  Vec factor = {1.0F, 1.0F, 1.0F, 1.0F};
  for (long long step = 0; step < kStepsPerRun; ++step) {
    asm volatile("" : "+m"(factor));  // read again every step, so that nothing is folded
    for (Vec& sum : sums) sum = sum * factor + factor;
  }
  volatile float sink = 0;
  for (const Vec& sum : sums) sink = sink + sum[0];
  return 8.0 * 4 * 2 * kStepsPerRun;
}

#endif

double one_run() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return flops_avx512();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return flops_avx2();
#endif
#if defined(__aarch64__)
  return flops_neon();
#else
  return flops_portable();
#endif
}

// Tiles hold bf16: inputs of more digits take as many products, at the least, as one of them has bf16 pieces.
int least_tile_products(Dtype dtype) {
  const int digits = facts_of(dtype).digits;
  const int of_tile = ElementTraits<Element::bf16>::digits;
  return (digits + of_tile - 1) / of_tile;
}

int tensor_fma_per_clock(int compute_capability) {
  if (compute_capability >= 90) return 2048;
  if (compute_capability == 80) return 1024;
  return 512;
}

// Of more digits than tf32 has, as many products in tf32, at half the rate of fp16, as make them up; or the cores' own,
// if they are more.
double fma_per_clock(int compute_capability, Dtype dtype) {
  const int tensor = tensor_fma_per_clock(compute_capability);
  constexpr int kTf32Digits = 11;
  const int products = (facts_of(dtype).digits + kTf32Digits - 1) / kTf32Digits;
  if (products == 1) return tensor;
  return std::max(tensor / 2.0 / products, compute_capability == 80 ? 64.0 : 128.0);
}

}  // namespace

double measure_cpu_flops(int threads, CpuUnit unit) {
  static std::mutex mutex;
  static std::map<std::pair<int, CpuUnit>, std::vector<double>> known;  // the best of each thread
  const std::lock_guard lock(mutex);
  if (unit == CpuUnit::matrix && !allow_matrix_unit()) return 0;
  std::vector<double>& best = known[{threads, unit}];
  // About 10 ms each: enough for the clock to rise. Every later call looks again, for what else runs on this machine
  // can halve a rate for seconds, and a peak that is too low makes an honest kernel look faster than the floor.
  const int runs = best.empty() ? 12 : 2;
  best.resize(static_cast<std::size_t>(threads));
  for (int run = 0; run < runs; ++run)
    parallel_for(threads, threads, [&](std::int64_t i) {
      const auto begin = std::chrono::steady_clock::now();
      const double flops = unit == CpuUnit::matrix ? flops_matrix() : one_run();
      double& rate = best[static_cast<std::size_t>(i)];
      rate = std::max(rate, flops / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    });
  return std::accumulate(best.begin(), best.end(), 0.0);
}

Peak peak_of(const DeviceFacts& device, const Workload& workload, int threads) {
  Peak peak;
  if (device.kind == DeviceKind::cpu) {
    peak.flops = measure_cpu_flops(threads, CpuUnit::vector);
    if (device.matrix_unit)
      peak.flops =
          std::max(peak.flops, measure_cpu_flops(threads, CpuUnit::matrix) / least_tile_products(workload.dtype));
    return peak;
  }
  const double clocks = device.clock_mhz * 1e6 * device.processors;
  peak.flops = 2.0 * fma_per_clock(device.compute_capability, workload.dtype) * clocks;
  peak.exponentials = 16.0 * clocks;
  const bool fits_cache = workload.bytes() <= static_cast<double>(device.cache_bytes);
  peak.bytes = fits_cache ? 64.0 * clocks : device.memory_bandwidth;
  return peak;
}

Floor floor_of(const Peak& peak, const Workload& workload, double launch_us) {
  Floor floor;
  if (peak.flops > 0) floor.products_us = workload.flops() / peak.flops * 1e6;
  if (peak.exponentials > 0) floor.exponentials_us = workload.visible_scores() / peak.exponentials * 1e6;
  if (peak.bytes > 0) floor.bytes_us = workload.bytes() / peak.bytes * 1e6;
  floor.launch_us = launch_us;
  return floor;
}

double Floor::us() const {
  return std::max({products_us, exponentials_us, bytes_us, launch_us});
}

std::string Floor::bound() const {
  const double largest = us();
  if (largest == products_us) return "products";
  if (largest == exponentials_us) return "exponentials";
  return largest == bytes_us ? "bytes" : "launch";
}

}  // namespace heed::measure
