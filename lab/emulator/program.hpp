/// Emulated programs: a variant's device sources compiled by the host compiler for a GPU of fibers (device/simt.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jit/build.hpp"
#include "jit/confined_build.hpp"
#include "variant/family.hpp"
#include "verify/scene.hpp"

namespace heed::emulator {

/// Why a variant has no emulated program, in a sentence; empty where it may have one. A family has none where its
/// kernels hold PTX that the emulator has no stand-in for, a variant where it edits a source that has one, or brings
/// PTX or static shared memory of its own.
std::optional<std::string> refusal_of(const Variant& variant);

/// The order of what a launch leaves open.
struct Schedule {
  std::uint64_t seed = 1;
  bool early = false;          ///< copies and stores are done at once, instead of as late as may be
  std::uint32_t resident = 1;  ///< thread blocks that run at a time, where they are no clusters
};

/// What became of one emulated launch.
struct Launched {
  enum class End {
    done,       ///< `image` is what it left
    objection,  ///< the emulated GPU objects: a deadlock, an address outside shared memory, a copy of unreadable memory
    crashed,    ///< by a signal, as for an address outside all memory
    timed_out,
    failed,  ///< by no fault of the kernel: no memory, no process
  };
  End end = End::done;
  std::vector<std::byte> image;
  std::string reason;  ///< a sentence; empty where it is done
};

/// One compiled variant, in a folder of its own that goes with it.
class Program {
 public:
  /// Compiles, in a process confined as the host compiler's always are (jit/confined_build.hpp). What a program has
  /// beside the variant is compiled once and kept in the builder's cache.
  /// @param limit_s wall clock
  /// @throws Error(build_failed) with the compiler's first error, Error(no_compiler), Error(cache)
  Program(const Variant& variant, jit::Builder& builder, double limit_s);

  /// Runs a scene's launch in a process without files, network and other processes, in at most 4 GiB.
  /// @param limit_s wall clock
  [[nodiscard]] Launched launch(const verify::Scene& scene, const LaunchPlan& plan, const Schedule& schedule,
                                double limit_s) const;

  [[nodiscard]] double build_ms() const { return build_ms_; }

 private:
  jit::BuildFolder folder_;
  double build_ms_ = 0;
};

/// The translation unit of a variant's emulated program. @throws Error(unsupported) for an entry whose shared memory
/// cannot be found
std::string unit_of(const Variant& variant);

/// 16 hexadecimal digits over the emulator's own sources: what an outcome is of.
const std::string& emulator_digest();

}  // namespace heed::emulator
