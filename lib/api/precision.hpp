/// Plans of heed_options.precision: inputs of 16 or 32 bits that a run quantises by a named mode (quantise/modes.hpp).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "api/plan.hpp"
#include "quantise/modes.hpp"
#include "quantise/quantise_rows.hpp"

namespace heed::api {

/// The quantised problem that runs in place of a caller's.
struct PrecisionDecision {
  const quantise::Mode* mode = nullptr;
  Problem inner;          ///< quantised tensors dense; O, and a V that stays, as the caller's unless they are copied
  bool copies_v = false;  ///< V stays as it is, where no program reads it
  bool copies_o = false;  ///< rows of O are longer than the caller's
  bool is_plain = false;  ///< there is nothing to compute, or no key: nothing is quantised
  Choice choice;          ///< for the inner problem, or its first launch
};
/// @throws Error(unsupported) for what the mode would change, keys in pages, and what no family runs, with the modes
/// that are served
PrecisionDecision decide_precision(const Problem& problem, const Options& options, const DeviceFacts& device);

std::unique_ptr<Plan> make_precision_plan(const Problem& problem, const Options& options);

/// For heed_explain: the mode, what it quantises, and what it costs.
std::string precision_lines(std::string_view mode);

/// @throws Error(invalid_input) where quantising lost a value, with how many of Q, K and V, and the first
void expect_none_lost(const quantise::Pass& pass, const quantise::Mode& mode,
                      const std::array<quantise::Lost, 3>& lost);

/// Runs the stages of a pass.
class Quantiser {
 public:
  virtual ~Quantiser() = default;
  Quantiser(const Quantiser&) = delete;
  Quantiser& operator=(const Quantiser&) = delete;
  /// Queues all stages up to the elements; on a CPU they are done on return. @return microseconds on a CPU, else 0
  virtual double quantise(const quantise::Pass& pass, void* stream) const = 0;
  virtual double shift_lse(const quantise::Pass& pass, void* stream) const = 0;
  /// Queues the elements alone, of tensors whose factors are given.
  virtual double quantise_by_given_factors(const quantise::Pass& pass, void* stream) const = 0;
  /// Of Q, K and V, after `quantise` of the same pass; waits for a GPU's stream.
  /// @param pass with room at `lost` @throws Error(usage) for a stream that is captured
  [[nodiscard]] virtual std::array<quantise::Lost, 3> lost(const quantise::Pass& pass, void* stream) const = 0;

 protected:
  Quantiser() = default;
};
std::unique_ptr<Quantiser> make_cpu_quantiser(const Options& options, const DeviceFacts& device);
/// @param program of choose_quantiser
/// @param lost of choose_lost; null: `lost` is not asked for
std::unique_ptr<Quantiser> make_gpu_quantiser(const Problem& problem, const Choice& program, const Choice* lost);
/// The pass's program for a device. @throws Error(unsupported), Error(programs)
Choice choose_quantiser(const Options& options, const DeviceFacts& device);
/// That counts what it loses. @throws the same
Choice choose_lost(const Options& options, const DeviceFacts& device);

}  // namespace heed::api
