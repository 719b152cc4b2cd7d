/// Values of a user's file: Q, K and V, and those of features.
#pragma once

#include "verify/inputs.hpp"

namespace heed::verify {

/// Puts what the file holds (kFeatureTensors) in the place of drawn values of the workload's features:
///
///   bias             (batch, heads, len_q, len_k), 1 in each dimension that the workload's bias shares
///   alibi_slopes     (heads)
///   relative_bias    (heads, buckets)
///   sinks            (heads)
///   out_norm_weight  (dim), or (heads, dim) of out_norm=EPS/h
///   out_gate         (batch, heads, len_q, dim), or (batch, heads, len_q, 1) of out_gate=head; of a ragged file
///                    (rows of all entries, heads, dim or 1)
///   key_lengths      (batch), of 0 to len_k
///   prefix_lengths   (batch), of 0 to the workload's prefix
///
/// @return names of the tensors that the workload's features take and the file lacks
/// @throws Error(invalid_input) for another shape, NaN, or a length that is none
std::vector<std::string> take_given_features(const QkvTensors& tensors, const Workload& workload, InputValues& values);

/// Q, K and V of a user's file, in the order of make_inputs: (batch, head, row, dim), with zeros past the rows of an
/// entry of a ragged file.
InputValues values_of(const QkvTensors& tensors);

/// What a launch on a user's file takes.
struct GivenInputs {
  InputValues values;                ///< Q, K and V of the file; features of the file too, or drawn where it has none
  std::vector<std::string> missing;  ///< see take_given_features
};
/// @param seed of the features that are drawn: those that are missing, seeds of dropout, lengths without a tensor
GivenInputs given_inputs(const QkvTensors& tensors, const Workload& workload, std::uint64_t seed);

/// Those of the file's feature tensors that the workload has no feature for.
std::vector<std::string> features_without_use(const QkvTensors& tensors, const Workload& workload);

}  // namespace heed::verify
