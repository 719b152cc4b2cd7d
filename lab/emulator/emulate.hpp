/// A variant on the emulated GPU: what the gate cannot provoke on a real one.
///
/// A GPU runs a race right nearly always; the emulator (device/simt.hpp) does what a GPU may do as late, as early and
/// in as unlikely an order as it may, and objects to deadlocks, to addresses outside shared memory, and to lanes of a
/// warp that do not meet. Outputs are compared with the oracle within the gate's tolerances, and what the launch wrote
/// elsewhere is found as in the gate. It says nothing of time, of fences between blocks, or of dependent launches.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "jit/build.hpp"
#include "variant/family.hpp"
#include "verdict/verdict.hpp"

namespace heed::emulator {

enum class Outcome {
  passed,
  failed,
  not_run,  ///< the emulator has no program of the variant: no verdict
};
std::string_view to_string(Outcome outcome);

struct Options {
  std::uint64_t seed = 1;                                  ///< of inputs and schedules
  double build_limit_s = 120;                              ///< for one program
  double launch_limit_s = 120;                             ///< for one launch
  std::function<void(const std::string&)> on_launch = {};  ///< told the workload and schedule before each
};

struct Report {
  Outcome outcome = Outcome::passed;
  Verdict verdict = Verdict::ok;  ///< of one that failed: crashed, timed_out, wrong, cheating
  Finding finding = Finding::none;
  std::string reason;                  ///< a sentence; empty when it passed
  std::string check;                   ///< the launch that failed: workload, inputs and schedule
  std::vector<std::string> workloads;  ///< launched, in order
  int launches = 0;
  double build_ms = 0;
  double run_ms = 0;
  std::uint64_t seed = 0;
  std::string digest;  ///< of the emulator's sources
};

/// Compiles a variant's sources with the host's compiler, as edited, and launches them on small workloads with the
/// dtype, head dim, mask and features of its own. Takes seconds; needs no GPU and no NVRTC.
/// @param device that the variant is for; its facts decide launches, but for the number of multiprocessors
/// Without a host compiler it is not run, with a sentence. @throws Error(cache)
Report emulate(const Variant& variant, const Workload& workload, const DeviceFacts& device, jit::Builder& builder,
               const Options& options);

}  // namespace heed::emulator
