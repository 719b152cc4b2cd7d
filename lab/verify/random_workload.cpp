#include "verify/random_workload.hpp"

#include <array>

namespace heed {
namespace {

constexpr double kMostFlops = 2e9;

// Every scale of lengths as often as any other: single queries, a tile or less, several tiles.
std::int64_t random_length(Random& random) {
  constexpr std::array<std::uint64_t, 4> kMost = {4, 40, 160, 900};
  return 1 + static_cast<std::int64_t>(random.below(kMost[random.below(kMost.size())]));
}

template <std::size_t kCount>
std::int64_t one_of(Random& random, const std::array<int, kCount>& values) {
  return values[random.below(kCount)];
}

BlockPattern random_pattern(Random& random) {
  BlockPattern p{.rows = one_of<2>(random, {64, 128}), .keys = one_of<2>(random, {64, 128})};
  p.by_batch = random.chance(0.3);
  p.by_head = random.chance(0.3);
  if (random.chance(0.5)) p.window = static_cast<std::int64_t>(random.below(3));
  if (p.window && random.chance(0.3)) p.dilation = 2;
  if (random.chance(0.3)) p.globals = 1;
  if (random.chance(0.3)) p.random = 1 + static_cast<std::int64_t>(random.below(2));
  if (random.chance(0.2)) p.stride = 2 + static_cast<std::int64_t>(random.below(3));
  if (random.chance(0.2)) p.wavefront = 2 + static_cast<std::int64_t>(random.below(3));
  if (random.chance(0.3)) p.density = one_of<3>(random, {10, 25, 75}) / 100.0;
  if (p.random > 0 || p.density > 0) p.seed = 1 + random.below(1000);
  return p;
}

Quantised random_quantised(Random& random) {
  constexpr std::array kDtypes = {Dtype::e4m3, Dtype::e5m2, Dtype::int8};
  constexpr std::array kBy = {ScaleBy::tensor, ScaleBy::head, ScaleBy::block, ScaleBy::token, ScaleBy::channel};
  Quantised quantised;
  const auto draw = [&](std::optional<QuantisedTensor>& tensor, std::size_t granularities) {
    tensor.emplace();
    tensor->dtype = kDtypes[random.below(kDtypes.size())];
    tensor->by = kBy[random.below(granularities)];
    if (tensor->by == ScaleBy::block) tensor->rows = one_of<4>(random, {16, 24, 64, 128});
  };
  if (random.chance(0.7)) draw(quantised.q, kBy.size() - 1);
  if (random.chance(0.7)) draw(quantised.v, kBy.size());
  if (random.chance(0.7) || (!quantised.q && !quantised.v)) draw(quantised.k, kBy.size() - 1);
  return quantised;
}

// One to three features, of those that go together.
void add_features(Random& random, Workload& w) {
  constexpr std::array kBiasDtypes = {BiasDtype::boolean, BiasDtype::fp16, BiasDtype::bf16, BiasDtype::fp32};
  const int count = 1 + static_cast<int>(random.below(3));
  for (int i = 0; i < count; ++i) switch (random.below(14)) {
      case 0:
        w.softcap = static_cast<double>(1 + random.below(50));
        break;
      case 1:
        w.bias = Bias{kBiasDtypes[random.below(kBiasDtypes.size())], random.chance(0.5), random.chance(0.5),
                      random.chance(0.5), random.chance(0.8)};
        break;
      case 2:
        w.alibi = true;
        break;
      case 3:
        w.sinks = true;
        break;
      case 4:
        w.key_lengths = !w.ragged || w.page_size > 0;
        break;
      case 5:
        w.ragged = true;
        break;
      case 6:
        w.page_size = one_of<4>(random, {1, 16, 64, 256});
        break;
      case 7:
        w.blocks = random_pattern(random);
        break;
      case 8:
        w.prefix = random_length(random);
        break;
      case 10:
        w.relative = RelativeBias{.buckets = one_of<3>(random, {8, 32, 64}),
                                  .max_distance = one_of<3>(random, {40, 128, 256}),
                                  .bidirectional = random.chance(0.5)};
        break;
      case 11:
        w.quantised = random_quantised(random);
        break;
      case 12:
        w.out_norm = OutNorm{.eps = one_of<3>(random, {1, 100, 10000}) * 1e-6, .by_head = random.chance(0.5)};
        break;
      case 13:
        w.out_gate = random.chance(0.5) ? OutGate::element : OutGate::head;
        break;
      case 9:
        w.dropout = one_of<4>(random, {1, 10, 50, 100}) / 100.0;
        break;
    }
  if (w.ragged && w.page_size == 0) w.key_lengths = false;
  if (w.ragged && w.quantised)
    for (std::optional<QuantisedTensor>* tensor : {&w.quantised->q, &w.quantised->k, &w.quantised->v})
      if (*tensor && (*tensor)->by == ScaleBy::block) (*tensor)->by = ScaleBy::token, (*tensor)->rows = 1;
}

}  // namespace

Workload random_workload(Random& random, const std::vector<Dtype>& dtypes) {
  for (;;) {
    Workload w;
    w.batch = 1 + static_cast<std::int64_t>(random.below(3));
    w.heads_kv = one_of<5>(random, {1, 1, 2, 3, 4});
    w.heads = w.heads_kv * one_of<6>(random, {1, 1, 2, 3, 4, 8});
    w.len_q = random_length(random);
    w.len_k = random.chance(0.3) ? w.len_q : random_length(random);
    w.dim = w.dim_v = one_of<10>(random, {64, 64, 64, 128, 128, 128, 32, 96, 192, 256});
    w.dtype = dtypes[random.below(dtypes.size())];
    constexpr std::array kMasks = {Mask::none, Mask::none, Mask::causal_top_left, Mask::causal_bottom_right};
    w.mask = kMasks[random.below(kMasks.size())];
    // One in three has a window: narrow, as long as a tile or two, or longer than the keys.
    if (random.chance(0.33)) {
      w.window.left = random_length(random) - 1;
      if (w.mask == Mask::none) {
        w.mask = random.chance(0.5) ? Mask::window_bottom_right : Mask::window_top_left;
        if (random.chance(0.8)) w.window.right = random_length(random) - 1;
        if (random.chance(0.2)) w.window.left = Window::kAll;
      }
      w = reduced(w);
    }
    if (random.chance(0.2)) w.scale = 0.5 / static_cast<double>(1 + random.below(8));
    if (random.chance(0.3)) w.layout = Layout::blhd;
    if (random.chance(0.3)) {
      add_features(random, w);
      w = reduced(w);
    }
    if (w.flops() <= kMostFlops) return w;
  }
}

}  // namespace heed
