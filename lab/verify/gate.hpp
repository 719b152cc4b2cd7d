/// The gate: what a variant must survive before its time counts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tensors/tensor_file.hpp"
#include "verdict/verdict.hpp"
#include "verify/accuracy.hpp"
#include "verify/compare.hpp"
#include "worker/worker.hpp"

namespace heed::verify {

/// Rows of NaN after each head in the strided check.
inline constexpr std::int64_t kPaddingRows = 3;

struct GateOptions {
  std::uint64_t seed = 0;               ///< of all inputs; from fresh_seed() except in tests and replays
  const QkvTensors* tensors = nullptr;  ///< the user's own, if any: one more set of inputs
  double launch_limit_s = 20;           ///< wall clock for one launch
  double oracle_flops = 0.6e9;  ///< most the oracle may cost for one scene; larger workloads are sampled by rows
  std::function<void(const std::string&)> on_check;  ///< told the name of every check before it starts
};

struct CheckResult {
  std::string name;  ///< "normal", "neighbour b1h1l513k513d64:fp16", ...
  bool passed = false;
  bool required = true;     ///< false: it tells what a family does that promises nothing; it fails no variant
  bool has_errors = false;  ///< a comparison with the oracle; the rest is empty where it is not
  ErrorStats error;
  Tolerance allowed;   ///< without its rows
  ErrorStats unfused;  ///< what the unfused computation in the same dtype is off by
  /// Of quantised inputs: against attention on the values before they were quantised. Told, not judged.
  std::optional<Accuracy> total = {};
  std::string text;  ///< what failed
};

struct GateReport {
  Verdict verdict = Verdict::ok;
  Finding finding = Finding::none;
  std::string reason;               ///< one sentence; empty when it passed
  std::string check;                ///< the check that failed
  ErrorStats error;                 ///< on N(0,1) inputs at the workload itself
  std::vector<CheckResult> checks;  ///< in order; repeated launches of one scene are one
  [[nodiscard]] bool passed() const { return verdict == Verdict::ok; }
};

/// Runs every check on the binary in `slot`, cheapest first, stopping at the first failure. The worker's arena must
/// hold gate_arena_bytes(); a worker that failed is dead afterwards.
GateReport run_gate(worker::Worker& worker, int slot, const Variant& variant, const Workload& workload,
                    const DeviceFacts& device, const GateOptions& options);

/// Bytes of arena the gate needs for a workload.
std::uint64_t gate_arena_bytes(const Variant& variant, const Workload& workload, const DeviceFacts& device);

/// Shapes near a workload that a variant's binary runs too: lengths one off, ragged, a single query, other batch and
/// head counts, grouped heads, the other layout, both alignments of a mask, other windows, another scale. Of a variant
/// for fixed sizes the workload itself with another scale, and where its outputs may have any strides in the other
/// layout.
std::vector<Workload> neighbours(const Variant& variant, const Workload& workload);

/// How many shapes held_back draws of a variant for any sizes.
inline constexpr int kHeldBack = 5;

/// Shapes drawn from a seed: neighbours() can be read by whoever writes a kernel, and be made right one by one. Other
/// batches, heads, groups, lengths, layouts, windows and numbers of features (draw_features), and at least once another
/// scale. Two have about the workload's own lengths and lengths between, one has more entries and more heads than any
/// neighbour.
/// @param most_bytes what scene_bytes of one may be
std::vector<Workload> held_back(const Variant& variant, const Workload& workload, const DeviceFacts& device,
                                std::uint64_t seed, std::uint64_t most_bytes);

/// The largest draw of more entries and more heads, whose scene the arena holds whatever the workload.
Workload with_many_heads(const Workload& workload);

/// Whether scenes of a workload may have gaps between rows (SceneStrides): not those that fill the memory anyway.
bool may_spread(const Variant& variant, const Workload& workload, const DeviceFacts& device);

/// Bytes that a scene of the gate takes in the arena, of which it needs twice as many.
std::uint64_t scene_bytes(const Variant& variant, const Workload& workload, const DeviceFacts& device);

/// The verdict a worker's failure stands for.
Verdict verdict_of(const worker::WorkerFailure& failure);
Finding finding_of(const worker::WorkerFailure& failure);

}  // namespace heed::verify
