/// Launches of few queries with features, which the emulated tests of all families for them share.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "feature_shape.hpp"

namespace heed::emulator {

using FeatureShapes = std::vector<FeatureShape>;

inline constexpr float kHidingSink = -std::numeric_limits<float>::infinity();

constexpr Problem problem_with(const Features& features, Element element, int head_dim, MaskKind mask) {
  Problem p{.element = element, .head_dim = head_dim, .mask = mask};
  p.features = features;
  return p;
}

/// Small caps, scores of up to a thousand at either side of one, rows that see nothing, and none.
inline FeatureShapes softcap_shapes() {
  return {
      {.heads = 6, .heads_kv = 2, .len_q = 7, .len_k = 190, .right_offset = 183, .softcap = 2},
      {.len_q = 3, .len_k = 90, .right_offset = 20, .score_scale = 300, .softcap = 30},
      {.len_q = 12, .len_k = 50, .right_offset = -6, .softcap = 5},
      {.len_q = 5, .len_k = 50, .right_offset = 45},
  };
}

inline FeatureShapes alibi_shapes() {
  return {
      {.batch = 2, .heads = 6, .heads_kv = 2, .len_q = 7, .len_k = 190, .slopes = 1},
      {.batch = 2, .heads = 5, .heads_kv = 1, .len_q = 9, .len_k = 170, .slopes = 2},
      {.len_q = 1, .len_k = 140},
  };
}

/// Of all types, shared by dimensions or not; rows that see nothing.
inline FeatureShapes bias_shapes() {
  FeatureShape base{.batch = 2, .heads = 6, .heads_kv = 2, .len_q = 7, .len_k = 177, .right_offset = 170};
  base.left_offset = -20;
  FeatureShapes all;
  const auto with = [&](const BiasTensor& bias) {
    all.push_back(base);
    all.back().bias = bias;
  };
  for (const BiasElement element : {BiasElement::boolean, BiasElement::fp16, BiasElement::bf16, BiasElement::fp32}) {
    with({.element = element, .hides_rows = true});
    with({.element = element, .per_batch = false, .per_head = false, .key_stride = 3, .row_padding = 5});
    with({.element = element, .per_head = false, .per_row = false});
  }
  with({.per_key = false});
  with({.per_batch = false, .per_head = false, .per_row = false, .per_key = false});
  return all;
}

/// Of sinks far above the scores nothing is left, of those far below nothing is seen; the first rows see no key. A sink
/// counts once, however many parts a row has.
inline FeatureShapes sink_shapes() {
  FeatureShape shape{.batch = 2,
                     .heads = 6,
                     .heads_kv = 2,
                     .len_q = 12,
                     .len_k = 160,
                     .right_offset = -4,
                     .sinks = {0.5F, 4.0F, -3.0F, 300.0F, -300.0F, kHidingSink}};
  FeatureShapes all = {shape};
  shape.sinks = {};
  all.push_back(shape);
  return all;
}

/// Entries of the longest length, of none and of one; more keys than queries, fewer, and none.
/// @param with_first_keys some where keys of entries follow each other
inline FeatureShapes length_shapes(bool with_first_keys = true) {
  FeatureShapes all;
  FeatureShape shape{.batch = 6, .heads = 6, .heads_kv = 2, .len_q = 9, .len_k = 150, .right_offset = 141};
  shape.left_offset = -30;
  shape.to_the_end = true;
  shape.cu_q = {0, 9, 9, 10, 17, 20, 24};
  if (with_first_keys) {
    shape.cu_k = {0, 100, 150, 220, 370, 370, 400};
    all.push_back(shape);
    shape.to_the_end = false;
    shape.right_offset = 0;
    all.push_back(shape);
    // More keys than there are, fewer than none, and some.
    shape.used_k = {1000, -5, 30, 77, 10, 1};
    all.push_back(shape);
    shape.to_the_end = true;
    shape.right_offset = 141;
    all.push_back(shape);
  }
  shape.used_k = {1000, -5, 30, 77, 10, 1};
  shape.cu_k = {};  // of a tensor with a batch stride
  all.push_back(shape);
  shape.cu_q = {};
  all.push_back(shape);
  if (with_first_keys) {
    // Entries that end before they begin have no rows; those beyond the longest have as many as the longest.
    shape.batch = 3;
    shape.used_k = {};
    shape.cu_q = {10, 0, 30, 35};
    shape.cu_k = {160, 0, 160, 100};
    all.push_back(shape);
  }
  // A launch without any.
  all.push_back({.heads = 3, .len_q = 5, .len_k = 70, .right_offset = 65});
  return all;
}

/// Of every remainder that an entry's keys leave of a tile; keys behind the end are NaN.
inline FeatureShape all_remainders() {
  FeatureShape shape{.batch = 35, .heads = 2, .heads_kv = 1, .len_q = 1, .len_k = 100, .right_offset = 99};
  shape.to_the_end = true;
  shape.left_offset = 60;
  for (int b = 0; b < shape.batch; ++b) shape.used_k.push_back(b + 32);
  return shape;
}

/// No entry has a key: rows are zeros, and log-sum-exps those of sinks alone.
inline FeatureShapes empty_shapes() {
  FeatureShape shape{.batch = 2, .heads = 2, .heads_kv = 1, .len_q = 2, .len_k = 200, .used_k = {0, -1}};
  FeatureShapes all = {shape};
  shape.sinks = {1.5F, kHidingSink};
  all.push_back(shape);
  return all;
}

/// Pages of a size, and a launch without; the first keys of a window may be NaN.
inline FeatureShapes page_shapes(const std::vector<int>& sizes, bool with_lengths) {
  FeatureShapes all;
  for (const int size : sizes) {
    FeatureShape shape{.batch = 3, .heads = 4, .heads_kv = 2, .len_q = 4, .len_k = 350, .right_offset = 346};
    shape.left_offset = 200;
    shape.page_size = size;
    all.push_back(shape);
    if (!with_lengths) continue;
    shape.to_the_end = true;
    shape.used_k = {350, 7, 190};
    all.push_back(shape);
    shape.cu_q = {0, 4, 5, 8};
    all.push_back(shape);
  }
  all.push_back({.batch = 2, .heads = 2, .len_q = 4, .len_k = 170, .right_offset = 30});
  return all;
}

/// All features but lists of blocks and prefixes, some and none of them, for a program that has them all.
/// @param page_size of the launch that has pages
inline FeatureShapes shapes_with_all(int page_size = 16, bool with_first_keys = true) {
  FeatureShape shape{.batch = 3, .heads = 8, .heads_kv = 2, .len_q = 5, .len_k = 140, .right_offset = 135};
  shape.left_offset = 60;
  FeatureShapes all = {shape};
  shape.to_the_end = true;
  shape.softcap = 5;
  shape.slopes = 2;
  shape.relative = kT5Buckets;
  shape.sinks = {0.5F, kHidingSink, 30.0F, -2.0F, 0, 1, 2, 3};
  shape.bias = {.element = BiasElement::bf16, .per_head = false, .row_padding = 1, .hides_rows = true};
  shape.used_k = {140, 60, 0};
  shape.page_size = page_size;
  all.push_back(shape);
  shape.page_size = 0;
  shape.bias = {.element = BiasElement::boolean, .per_batch = false, .hides_rows = true};
  shape.relative = kT5PastBuckets;
  shape.cu_q = {0, 5, 6, 9};
  if (with_first_keys) {
    shape.cu_k = {0, 140, 190, 290};
    shape.used_k = {};
  }
  all.push_back(shape);
  shape.sinks = {};
  shape.score_scale = 30;
  shape.softcap = 0;
  shape.slopes = 0;
  all.push_back(shape);
  return all;
}

/// One launch with all of them, of two heads: what a comparison that can fail is shown on.
inline FeatureShape shape_of_wrong_numbers() {
  return {.heads = 2,
          .len_q = 4,
          .len_k = 160,
          .right_offset = 156,
          .to_the_end = true,
          .softcap = 3,
          .bias = BiasTensor{.element = BiasElement::fp16},
          .slopes = 1,
          .sinks = {0, 0},
          .used_k = {155},
          .page_size = 16,
          .relative = kT5Buckets};
}

/// Runs that launch with each number wrong by a little. What `said` says of each change of its parameters must be a
/// difference; what it says of none, nothing.
template <class Said, class Expect>
void expect_wrong_numbers_found(const Said& said, const Expect& expect) {
  static constexpr float kSlopes[2] = {0.45F, 0.35F};  // instead of 0.5 and 0.354
  static constexpr float kSinks[2] = {0.0F, 0.1F};
  static constexpr int kUsed[1] = {154};
  expect(said([](FeatureParams&) {}), false, "nothing");
  expect(said([](FeatureParams& p) { p.alibi_slopes = kSlopes; }), true, "slopes");
  expect(said([](FeatureParams& p) { p.sinks = kSinks; }), true, "sinks");
  expect(said([](FeatureParams& p) { p.seqused_k = kUsed; }), true, "lengths");
  expect(said([](FeatureParams& p) { p.softcap = 3.2F; }), true, "softcap");
  expect(said([](FeatureParams& p) { ++p.relative_bias; }), true, "the next bucket's bias");
  expect(said([](FeatureParams& p) { p.bias = nullptr; }), true, "no bias");
  expect(said([](FeatureParams& p) { p.bias_row = 0; }), true, "bias of another row");
  expect(said([](FeatureParams& p) { p.pages = 1; }), true, "pages");
  expect(said([](FeatureParams& p) { p.aligned_to_the_end = 0; }), true, "alignment");
}

}  // namespace heed::emulator
