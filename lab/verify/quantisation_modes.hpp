/// How fp16, bf16 or fp32 inputs become quantised ones: named modes, and what each costs in accuracy on given values.
///
/// A mode says what is quantised, with factors of what, and what is done to Q and K before. None of these changes exact
/// attention, all of them change what quantising costs:
///
/// - smoothing takes the mean over keys of each channel out of K: every score of a row moves by the same q.mean, which
///   the softmax does not see (SageAttention, Zhang et al., arXiv 2410.02367). The log-sum-exp moves by
///   scale * q.mean, which whoever smooths adds back.
/// - rotation multiplies rows of Q and of K by one orthogonal matrix, a Hadamard matrix with random signs, so that
///   outliers of a channel spread over all (QuIP#, arXiv 2402.04396; FlashAttention-3, arXiv 2407.08608): q.k stays.
///
/// Factors are those of the largest magnitude (quantise.hpp), so that nothing saturates.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"
#include "verify/accuracy.hpp"
#include "verify/inputs.hpp"

namespace heed::verify {

struct QuantisationMode {
  std::string_view name;
  std::string_view tensors;  ///< as the grammar of workloads has them, "qk/int8/block64"
  bool smooths = false;
  bool rotates = false;
  std::string_view words;  ///< what it is, in a sentence
};

std::span<const QuantisationMode> quantisation_modes();
/// @throws Error(usage) with the names there are
const QuantisationMode& find_quantisation_mode(std::string_view name);

/// The workload with a mode's tensors. @throws Error(invalid_workload) for a workload that is quantised already, and
/// for blocks of rows of ragged tensors; Error(unsupported) for smoothing where scores of a row may not all move
/// (softcap, sinks), and for rotation of head dims that are no power of two
Workload quantised_by(const Workload& workload, const QuantisationMode& mode);

/// Values as the mode quantises them: smoothed and rotated, in fp32. @param seed of the rotation's signs
InputValues prepared_by(const Workload& workload, const QuantisationMode& mode, InputValues values, std::uint64_t seed);

/// What the mode costs: exact attention of the quantised numbers against exact attention of the values as the
/// workload's dtype holds them.
Accuracy cost_of(const Workload& workload, const QuantisationMode& mode, const InputValues& values,
                 const std::vector<RowIndex>& rows, std::uint64_t seed);

}  // namespace heed::verify
