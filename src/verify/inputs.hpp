/// The kinds of inputs a kernel must be right on.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"

namespace heed::verify {

enum class InputClass {
  normal,        ///< N(0, 1)
  uniform,       ///< uniform in [-1, 1)
  large_logits,  ///< Q and K scaled so that scores reach about +-60 before the softmax
  one_hot,       ///< each query points at one visible key: its output is that key's value
  outliers,      ///< N(0, 1) with one key channel in 16 and one value in 1000 times 20
  constant_v,    ///< V equal for all keys of a head: the output is that constant, for every row
  zero_k,        ///< K = 0: the output is the mean of the visible values
  peaked_late,   ///< the largest score of a row comes late, so that every running maximum must move
};

std::string_view to_string(InputClass inputs);
const std::vector<InputClass>& all_input_classes();

/// Dense fp32 values (batch, heads or heads_kv, length, dim), row-major, of the three inputs.
struct InputValues {
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
};

/// Values of one kind for one workload; the same seed gives the same values on every machine. Values are not yet
/// rounded to the workload's dtype.
InputValues make_inputs(const Workload& workload, InputClass inputs, std::uint64_t seed);

}  // namespace heed::verify
