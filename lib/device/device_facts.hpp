/// What legality, resource plans, floors and the store need to know about a device: plain data, no driver.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace heed {

enum class DeviceKind { cpu, cuda };

constexpr std::string_view to_string(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "cpu" : "cuda";
}

struct DeviceFacts {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;    ///< "NVIDIA H200", "AMD EPYC 7763 64-Core Processor"
  std::string arch;    ///< build target: "sm_90a", a CpuLevel, or this very processor, "x86_64-avx512-0a1b2c3d"
  std::string driver;  ///< CUDA driver version "13.0", or the kernel release
  int processors = 0;  ///< multiprocessors, or processors this process may run on
  std::int64_t memory_bytes = 0;
  std::int64_t cache_bytes = 0;  ///< L2 of a GPU, last-level cache of a CPU
  double clock_mhz = 0;          ///< highest clock of the multiprocessors; 0 on a CPU (its peak is measured instead)

  // CPU only
  int lanes = 0;             ///< fp32 values a vector register
  int registers = 0;         ///< vector registers
  bool matrix_unit = false;  ///< tiles of bf16 (Intel AMX) that this process may use
  std::string level;         ///< the highest CpuLevel whose programs run; empty: none

  // CUDA only
  int compute_capability = 0;               ///< 10 * major + minor
  std::int64_t shared_bytes_per_block = 0;  ///< with opt-in
  std::int64_t shared_bytes_per_processor = 0;
  double memory_bandwidth = 0;  ///< bytes per second, from memory clock and bus width

  bool operator==(const DeviceFacts&) const = default;
};

}  // namespace heed
