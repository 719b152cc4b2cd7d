/// Launches with norms of output rows and gates, which every family that has them is run on (features_case.hpp).
#pragma once

#include "feature_shape.hpp"

namespace heed::emulator {

/// Calls `run(shape, seed)` for norms with shared weights and those of each head, gates of elements and of rows, both,
/// none, and rows of which the last columns are not there. Rows of the causal ones may see nothing.
template <typename Run>
void for_each_output(FeatureShape shape, bool has_norm, bool has_gate, const Run& run) {
  std::uint64_t seed = 1;
  for (const int norm : {0, 1, 2})
    for (const int gate : {0, 1, 2}) {
      if ((norm != 0 && !has_norm) || (gate != 0 && !has_gate)) continue;
      shape.norm = norm;
      shape.gate = gate;
      shape.norm_eps = gate == 1 ? 0.3F : 1e-6F;
      run(shape, seed++);
    }
  shape.norm = has_norm ? 2 : 0;
  shape.gate = has_gate ? 1 : 0;
  shape.out_columns = 40;
  run(shape, seed);
}

/// A launch in which every number of norms and gates matters.
inline FeatureShape shape_of_output() {
  return {.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 40, .len_k = 70, .norm = 2, .norm_eps = 0.5F, .gate = 1};
}

/// Runs that launch with each number wrong by a little. What `said` says of each change of its parameters must be a
/// difference. @param expect called with what is said, whether it must be a difference, and a name
template <typename Said, typename Expect>
void expect_wrong_output_found(const Said& said, const Expect& expect) {
  expect(said([](FeatureParams&) {}), false, "nothing");
  expect(said([](FeatureParams& p) { p.out_gate = nullptr; }), true, "no gate");
  expect(said([](FeatureParams& p) { p.out_norm_weight = nullptr; }), true, "no norm");
  expect(said([](FeatureParams& p) { p.out_gate_column = 0; }), true, "a gate of a row");
  expect(said([](FeatureParams& p) { p.out_gate_strides.row = 0; }), true, "gates of the first row");
  expect(said([](FeatureParams& p) { p.out_gate_strides.head = 0; }), true, "gates of the first head");
  expect(said([](FeatureParams& p) { p.out_gate_strides.batch = 0; }), true, "gates of the first entry");
  expect(said([](FeatureParams& p) { p.out_norm_head = 0; }), true, "weights of the first head");
  expect(said([](FeatureParams& p) { p.out_norm_eps = 0.1F; }), true, "another eps");
  expect(said([](FeatureParams& p) { p.out_columns -= 16; }), true, "fewer columns");
}

}  // namespace heed::emulator
