#include "verify/other_features.hpp"

#include <array>

namespace heed::verify {
namespace {

constexpr double kOther = 0.5;  // of the draws, for each feature
constexpr double kLeftOut = 0.1;

template <typename T, std::size_t kCount>
T one_of(Random& random, const std::array<T, kCount>& values) {
  return values[random.below(kCount)];
}

void leave_out_pages(Workload& w) {
  w.page_size = 0;
  if (w.ragged) w.key_lengths = false;  // those of its arrays are all it has
}

void leave_out_some(Random& random, Workload& w) {
  const auto leaves_out = [&] { return random.chance(kLeftOut); };
  if (w.softcap > 0 && leaves_out()) w.softcap = 0;
  if (w.bias && leaves_out()) w.bias.reset();
  if (w.alibi && leaves_out()) w.alibi = false;
  if (w.sinks && leaves_out()) w.sinks = false;
  if (w.relative && leaves_out()) w.relative.reset();
  if (w.dropout > 0 && leaves_out()) w.dropout = 0;
  if (w.prefix > 0 && leaves_out()) w.prefix = 0;
  if (w.blocks && leaves_out()) w.blocks.reset();
  if (w.page_size > 0 && leaves_out()) leave_out_pages(w);
  if (w.out_norm && leaves_out()) w.out_norm.reset();
  if (w.out_gate != OutGate::none && leaves_out()) w.out_gate = OutGate::none;
}

}  // namespace

void draw_features(Random& random, Workload& w) {
  if (w.softcap > 0 && random.chance(kOther)) w.softcap = random.uniform(1, 50);
  if (w.page_size > 0 && random.chance(kOther))
    w.page_size = one_of<std::int64_t>(random, std::array<std::int64_t, 8>{1, 8, 16, 24, 32, 64, 128, 256});
  if (w.bias) {
    if (random.chance(kOther)) w.bias->by_batch = !w.bias->by_batch;
    if (random.chance(kOther)) w.bias->by_head = !w.bias->by_head;
    if (random.chance(kOther)) w.bias->by_row = !w.bias->by_row;
    if (random.chance(kOther))
      w.bias->dtype = one_of(random, std::array{BiasDtype::boolean, BiasDtype::fp16, BiasDtype::bf16, BiasDtype::fp32});
  }
  if (w.relative && random.chance(kOther))
    w.relative = RelativeBias{.buckets = one_of<std::int64_t>(random, std::array<std::int64_t, 4>{8, 16, 32, 64}),
                              .max_distance = one_of<std::int64_t>(random, std::array<std::int64_t, 3>{40, 128, 256}),
                              .bidirectional = random.chance(0.5)};
  if (w.out_norm && random.chance(kOther))
    w.out_norm = OutNorm{.eps = one_of(random, std::array{1e-6, 1e-4, 1e-2}), .by_head = random.chance(0.5)};
  if (w.out_gate != OutGate::none && random.chance(kOther))
    w.out_gate = w.out_gate == OutGate::head ? OutGate::element : OutGate::head;
  leave_out_some(random, w);
}

Workload without_features(const Workload& workload) {
  Workload w = workload;
  w.softcap = 0;
  w.bias.reset();
  w.alibi = false;
  w.sinks = false;
  w.relative.reset();
  w.dropout = 0;
  w.prefix = 0;
  w.blocks.reset();
  leave_out_pages(w);
  if (!w.ragged) w.key_lengths = false;
  w.out_norm.reset();
  w.out_gate = OutGate::none;
  return w;
}

bool is_valid(const Workload& workload) {
  try {
    validate(workload);
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace heed::verify
