/// The least time the hardware allows: a time below it means that the referee was fooled.
#pragma once

#include <string>

#include "device/device_facts.hpp"
#include "heed/heed.hpp"

namespace heed::measure {

/// Each bound by itself, in µs. The floor is the largest.
struct Floor {
  double products_us = 0;      ///< both matrix products on the fastest unit for the dtype
  double exponentials_us = 0;  ///< one per visible score
  double bytes_us = 0;         ///< inputs read once, output written once
  double launch_us = 0;        ///< an empty kernel in the same kind of launch; 0 until measured
  [[nodiscard]] double us() const;
  /// "products", "exponentials", "bytes" or "launch"
  [[nodiscard]] std::string bound() const;
};

/// Rates a device reaches, for the floor and for shares of the peak.
struct Peak {
  double flops = 0;         ///< floating-point operations a second of the products
  double exponentials = 0;  ///< a second
  double bytes = 0;         ///< a second; of the caches when the workload fits them
};

/// GPU: from the architecture's tables and the highest clock. Tensor-core rates: NVIDIA A100, Ada and H100 architecture
/// white papers (FMA per clock and multiprocessor for dense fp16 with fp32 accumulation: 1024 on 8.0, 512 on 8.6
/// and 8.9, 2048 on 9.0; of fp32 a sixth, three products in tf32 for one, or the 64 of cores on 8.0 and 128 later); 16
/// ex2 a clock and multiprocessor (CUDA programming guide, arithmetic throughput); L2 64 bytes a clock and
/// multiprocessor, an upper bound for what a multiprocessor's port takes. CPU: the measured rate of `threads` threads
/// (measure_cpu_flops) on the faster unit, where a matrix unit computes fp16 in two products of bf16 and fp32 in three;
/// exponentials and bytes are not bounded.
Peak peak_of(const DeviceFacts& device, const Workload& workload, int threads);

Floor floor_of(const Peak& peak, const Workload& workload, double launch_us);

enum class CpuUnit {
  vector,  ///< fused multiply-adds of fp32 on full vectors
  matrix,  ///< products of bf16 tiles (AMX)
};

/// Operations a second that `threads` threads reach in a loop of independent instructions of a unit, turbo included; 0
/// where this process may not use it; the best each thread showed in several short runs, those of earlier
/// calls in this process included.
double measure_cpu_flops(int threads, CpuUnit unit);

}  // namespace heed::measure
