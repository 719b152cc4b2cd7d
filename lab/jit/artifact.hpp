/// What a build produces and what is asked of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "device/device_facts.hpp"
#include "variant/family.hpp"

namespace heed::jit {

/// What the compiler reports of a kernel (ptxas -v); zeros on a CPU but for code_bytes.
struct Resources {
  int registers = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int stack_bytes = 0;
  int static_shared_bytes = 0;
  std::int64_t code_bytes = 0;
  bool operator==(const Resources&) const = default;
};

struct BuildRequest {
  DeviceKind device = DeviceKind::cpu;
  std::string arch;           ///< "sm_90a"; on a CPU the name of its instruction set, which is part of the cache key
  std::string source;         ///< whole translation unit; it may include device sources
  std::string entry;          ///< function that must be there
  bool supports_pdl = false;  ///< LaunchPlan::supports_pdl: the entry may wait for the launch before it
  bool semaphores = false;  ///< the entry may count in global memory: its plan has semaphores, or it is a family's own
  std::shared_ptr<const Overlay> overlay{};  ///< edited device sources; null: those that the binary carries
};

/// What is to be built of a variant for a workload on a device.
BuildRequest request_for(const Variant& variant, const Workload& workload, const DeviceFacts& device);

/// A binary in the cache.
struct Artifact {
  std::filesystem::path path;
  Resources resources;
  std::string machine_code;  ///< digest of the code: equal means the same program
  std::string violation;     ///< why the binary breaks the kernel contract; empty when it keeps to it
  std::string audit;         ///< what was read to say so, e.g. "PTX and machine code"
  std::string log;
  double build_ms = 0;
  /// User and system time of the compiler and of what it runs, when it was built; 0 where the entry of the cache, an
  /// older Heed's, does not say.
  double processor_s = 0;
  bool from_cache = false;
};

/// What a binary from elsewhere shows of itself: its machine code, and why it breaks the kernel contract. It has no
/// path yet, and no PTX to be read. @throws Error(cache) for bytes that are no such binary
Artifact audited(const BuildRequest& request, std::string_view bytes);

/// A build that ran to its end, either way.
struct BuildOutcome {
  std::optional<Artifact> artifact;
  bool timed_out = false;
  std::string log;  ///< the compiler's words when there is no artifact
};

}  // namespace heed::jit
