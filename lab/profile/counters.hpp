/// What hardware counters say of one launch of a kernel.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/hardware_counters.hpp"

namespace heed::profile {

/// Why warps that were not issued waited: warps in that state at an instruction issued, on average.
struct Stall {
  std::string reason;  ///< as NVIDIA names it, e.g. "long_scoreboard"
  double warps = 0;
};

/// A chip that cannot count something leaves it empty. Percentages are of what the hardware could sustain.
struct Counters {
  std::optional<double> tensor_percent;         ///< tensor pipe, while a multiprocessor is active
  std::optional<double> fma_percent;            ///< FMA pipe
  std::optional<double> alu_percent;            ///< integer and logic pipe
  std::optional<double> xu_percent;             ///< special functions: exponentials, conversions
  std::optional<double> issue_percent;          ///< cycles in which an instruction was issued
  std::optional<double> warps_percent;          ///< warps resident, of the most a multiprocessor holds
  std::optional<double> eligible_warps;         ///< ready to issue, of a scheduler, at a cycle
  std::optional<double> active_percent;         ///< multiprocessors with work, over the whole kernel
  std::optional<double> dram_percent;           ///< of the memory's bandwidth, over the whole kernel
  std::optional<double> dram_bytes;             ///< read and written
  std::optional<double> l2_percent;             ///< of the L2's throughput, over the whole kernel
  std::optional<double> l2_bytes;               ///< that passed the L2
  std::optional<double> shared_percent;         ///< of the shared-memory pipe's wavefronts, over the whole kernel
  std::optional<double> shared_wavefronts;      ///< passes through shared memory
  std::optional<double> shared_bank_conflicts;  ///< of those passes, the ones that only conflicts cost
  std::optional<double> cycles;                 ///< of the multiprocessors' clock, from start to end
  std::optional<double> instructions;           ///< executed by warps
  std::optional<double> duration_us;            ///< under the profiler, at its clock: not a time to quote
  std::optional<double> registers;              ///< a thread, as the driver loaded the kernel
  std::vector<Stall> stalls;                    ///< largest first

  /// Share of shared-memory wavefronts that bank conflicts cost, 0 to 1.
  [[nodiscard]] std::optional<double> conflict_share() const;
};

/// The metrics behind each field. Names: CUPTI's, for compute capability 8.0, 8.6, 8.9 and 9.0; NVIDIA Nsight Compute's
/// "Metrics Structure" explains them. Those a chip lacks are left out.
const std::vector<MetricChoice>& metric_choices();

Counters counters_of(const CounterReading& reading);

/// The numbers that there are, by the names of their fields.
std::vector<std::pair<std::string_view, double>> numbers_of(const Counters& counters);

}  // namespace heed::profile
