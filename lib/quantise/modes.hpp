/// Named ways to make quantised inputs of fp16, bf16 or fp32 ones: what is quantised, with factors of what, and what is
/// done to Q and K before. heed_options.precision, `precision=` in Python and `heed calibrate` name them.
///
/// What is done before changes no exact attention, only what quantising costs:
///
/// - smoothing takes the mean over keys of each channel out of K: every score of a row moves by the same q.mean, which
///   the softmax does not see (SageAttention, Zhang et al., arXiv 2410.02367). The log-sum-exp moves by
///   scale * q.mean, which whoever smooths adds back.
/// - rotation multiplies rows of Q and of K by one orthogonal matrix, a Hadamard matrix with random signs, so that
///   outliers of a channel spread over all (QuIP#, arXiv 2402.04396; FlashAttention-3, arXiv 2407.08608): q.k stays.
///
/// Factors are those of the largest magnitude, so that nothing saturates.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "heed/heed.hpp"

namespace heed::quantise {

struct Mode {
  std::string_view name;
  std::string_view tensors;  ///< as the grammar of workloads has them, "qk/int8/block64"
  bool smooths = false;
  bool rotates = false;
  std::string_view words;  ///< what it is, in a sentence
};

std::span<const Mode> modes();
/// @throws Error(usage) with the names there are
const Mode& find_mode(std::string_view name);

/// The workload with a mode's tensors. @throws Error(invalid_workload) for a workload that is quantised already, and
/// for blocks of rows of ragged tensors; Error(unsupported) for smoothing where scores of a row may not all move
/// (softcap, sinks), and for rotation of head dims that are no power of two
Workload quantised_by(const Workload& workload, const Mode& mode);

/// A mode's total error on one kind of inputs: the relative RMS of exact attention on the quantised numbers against
/// exact attention on the inputs.
struct MeasuredError {
  std::string_view mode;
  std::string_view inputs;  ///< "normal", "outliers", ...
  double rel_rms = 0;
};
/// Those of evidence/cpu/calibration.json, by mode.
std::span<const MeasuredError> measured_errors();
/// The workload that they were measured on.
std::string_view measured_workload();
/// "relative RMS error of O on b1h4l1024d128: 1.2e-02 normal, ..., 2.0e-02 attention_sink", or "not measured".
std::string error_words(const Mode& mode);

}  // namespace heed::quantise
