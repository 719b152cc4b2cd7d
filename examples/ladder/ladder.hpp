/// The ladder: the steps from a minimal kernel to the best there is, each through the same gate and clock, with a
/// prediction beside each outcome.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "measure/pair.hpp"
#include "measure/peer.hpp"
#include "trial/trial_runner.hpp"

namespace heed::ladder {

/// Makes the family "ladder" and its sources known. To be called once, before anything asks for families.
void register_family();

/// One step.
struct Step {
  std::string name;
  std::string title;     ///< what is new
  std::string variant;   ///< as parse_variant reads it; empty for a step that PyTorch runs
  std::string backend;   ///< of the PyTorch helper, where there is no variant
  double predicted = 0;  ///< time of the step before / time of this one, reasoned before measuring; 0: none
  std::string before;    ///< step the prediction refers to; empty for the first
};

/// All steps on a GPU, in order.
std::vector<Step> steps();

/// The steps named in `names` ("a,b"; empty: all), in that order. @throws Error(usage) for an unknown name
std::vector<Step> choose(std::span<const Step> all, const std::string& names);

/// What a profile knows about a kernel: shares of the elapsed time, 0 to 1; empty where a counter cannot be read.
struct Shares {
  std::optional<double> tensor_pipe;  ///< cycles in which the tensor pipe was active
  std::optional<double> dram;         ///< bytes moved, of the peak
};
/// Fills the shares of one variant; never called while anything is timed.
using Profiler = std::function<Shares(const trial::Built& built, const Workload& workload, const DeviceFacts& device)>;

struct Row {
  Step step;
  std::optional<Verdict> verdict;  ///< empty when it was not tried: `reason` says why
  Finding finding = Finding::none;
  std::string reason;
  std::string variant_id;  ///< empty for PyTorch
  double us = 0;           ///< 0 when it was not measured
  double tflops = 0;
  std::string before;                       ///< step it was measured against; empty for the first
  std::optional<measure::Ratio> to_before;  ///< time before / time
  double to_first = 0;                      ///< the first step's time / time
  std::optional<measure::Ratio> to_peer;    ///< best SDPA backend's time / time
  std::optional<jit::Resources> resources;
  std::string machine_code;       ///< digest of the program
  std::int64_t shared_bytes = 0;  ///< a block, dynamic
  std::uint32_t blocks = 0;       ///< the grid
  std::uint32_t threads = 0;      ///< a block
  double max_abs = -1;            ///< against the oracle; negative when unknown
  double rel_rms = -1;
  Shares shares;
  DeviceState clocks_before;
  DeviceState clocks_after;

  [[nodiscard]] bool measured() const { return us > 0; }
  [[nodiscard]] bool failed() const { return verdict && *verdict != Verdict::ok; }
  /// Whether the prediction speaks of what was measured: the step before is the one it was made for.
  [[nodiscard]] bool comparable() const { return step.predicted > 0 && to_before.has_value() && before == step.before; }
};

struct Peer {
  std::string backend;
  double us = 0;
  std::vector<std::string> kernels;
  std::string refused;
};

struct Result {
  Workload workload;
  DeviceFacts device;
  std::vector<Row> rows;
  std::vector<Peer> peers;   ///< SDPA's backends
  std::string best_peer;     ///< empty when there is none
  std::string peers_reason;  ///< why there are no peers
  std::string torch;
  std::string cudnn;
  measure::Floor floor;
  double elapsed_s = 0;
  std::string date;  ///< UTC, ISO 8601

  [[nodiscard]] bool passed() const;
};

struct Options {
  trial::Options trial;
  bool peers = true;
  std::string python = "python3";
  Profiler profiler;  ///< empty: no shares
};

/// Verifies and measures the steps in order. What goes wrong with one step is its row; the next step is then measured
/// against the last good one.
/// @param on_message progress, one line each
Result measure_steps(std::span<const Step> steps, const Workload& workload, const DeviceFacts& device,
                     jit::Builder& builder, const Options& options,
                     const std::function<void(const std::string&)>& on_message);

}  // namespace heed::ladder
