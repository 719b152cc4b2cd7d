// Values of features for the gate's inputs.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.hpp"
#include "base/random.hpp"
#include "verify/inputs.hpp"

namespace heed::verify {
namespace {

constexpr double kHiddenShare = 0.125;         // of the scores, by a bias
constexpr std::uint64_t kRowsHidden = 29;      // one row in so many sees nothing by its bias
constexpr std::uint64_t kGatesInfinite = 211;  // one gate in so many is wide open or shut

float most_negative(BiasDtype dtype) {
  switch (dtype) {
    case BiasDtype::fp16:
      return -65504;
    case BiasDtype::bf16:
      return -0x1.fep127F;
    case BiasDtype::boolean:
    case BiasDtype::fp32:
      break;
  }
  return std::numeric_limits<float>::lowest();
}

void make_bias(const Workload& w, std::uint64_t seed, Values& bias) {
  const BiasSizes sizes = bias_sizes(w);
  const bool boolean = w.bias->dtype == BiasDtype::boolean;
  const std::int64_t rows = sizes.batch * sizes.head * sizes.row;
  bias.resize(static_cast<std::size_t>(sizes.count()));
  parallel_for(rows, 0, [&](std::int64_t row) {
    Random random(substream(seed, static_cast<std::uint64_t>(row)));
    // What models write for a hidden score: -infinity, or the most negative number there is.
    const float hidden = boolean ? 0 : random.chance(0.5) ? -INFINITY : most_negative(w.bias->dtype);
    const bool hides_all = sizes.row > 1 && sizes.key > 1 && random.below(kRowsHidden) == 0;
    for (std::int64_t key = 0; key < sizes.key; ++key) {
      const bool hides = hides_all || (sizes.key > 1 && random.chance(kHiddenShare));
      const auto shown = static_cast<float>(boolean ? 1.0 : 2 * random.normal());
      bias[static_cast<std::size_t>(row * sizes.key + key)] = hides ? hidden : shown;
    }
  });
}

void make_gates(const Workload& w, std::uint64_t seed, Values& gates) {
  const std::int64_t columns = w.out_gate == OutGate::element ? w.dim_v : 1;
  const std::int64_t rows = w.batch * w.heads * w.len_q;
  gates.resize(static_cast<std::size_t>(rows * columns));
  parallel_for(rows, 0, [&](std::int64_t row) {
    Random random(substream(seed, static_cast<std::uint64_t>(row)));
    for (std::int64_t d = 0; d < columns; ++d) {
      const float infinite = random.chance(0.5) ? INFINITY : -INFINITY;
      gates[static_cast<std::size_t>(row * columns + d)] =
          random.below(kGatesInfinite) == 0 ? infinite : static_cast<float>(2 * random.normal());
    }
  });
}

}  // namespace

void make_features(const Workload& w, std::uint64_t seed, InputValues& values) {
  values.lengths = lengths_of(w);
  if (w.blocks) values.blocks = block_lists(w);
  values.prefix_lengths = prefix_lengths_of(w);
  if (w.bias) make_bias(w, substream(seed, 1), values.bias);
  Random slopes(substream(seed, 5));
  if (w.alibi)
    for (std::int64_t head = 0; head < w.heads; ++head)
      values.alibi_slopes.push_back(static_cast<float>(std::exp2(-8 * slopes.uniform())));
  Random random(substream(seed, 2));
  if (w.sinks)
    for (std::int64_t head = 0; head < w.heads; ++head)
      values.sinks.push_back(static_cast<float>(3 + 2 * random.normal()));
  if (w.relative)
    for (std::int64_t i = 0; i < w.heads * w.relative->buckets; ++i)
      values.relative_bias.push_back(static_cast<float>(2 * random.normal()));
  if (w.dropout > 0) {
    values.dropout_seed = random.next();
    values.dropout_offset = random.next();
    values.dropout_first_entry = static_cast<std::int32_t>(random.below(1000));
  }
  Random output(substream(seed, 3));
  if (w.out_norm)
    for (std::int64_t i = 0; i < (w.out_norm->by_head ? w.heads : 1) * w.dim_v; ++i)
      values.out_norm_weight.push_back(static_cast<float>(1 + 0.25 * output.normal()));
  if (w.out_gate != OutGate::none) make_gates(w, substream(seed, 4), values.out_gate);
}

void draw_lengths(const Workload& w, std::uint64_t seed, InputValues& values) {
  Random random(seed);
  const auto draw = [&](std::int64_t most) {
    switch (random.below(5)) {
      case 0:
        return std::int64_t{0};
      case 1:
        return std::int64_t{1};
      case 2:
        return most;
      default:
        return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most + 1)));
    }
  };
  for (std::int32_t& prefix : values.prefix_lengths)
    prefix = static_cast<std::int32_t>(draw(std::min(w.prefix, w.len_k)));
  if (!w.has_lengths()) return;
  for (EntryLengths& lengths : values.lengths) {
    lengths.len_k = draw(w.len_k);
    if (w.ragged) lengths.len_q = draw(w.len_q);
  }
}

}  // namespace heed::verify
