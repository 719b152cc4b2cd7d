#include "emulator/workloads.hpp"

#include <algorithm>
#include <optional>

#include "heed/heed.hpp"
#include "verify/other_features.hpp"

namespace heed::emulator {
namespace {

constexpr int kProcessors = 3;
constexpr std::int64_t kFewRows = 16;  // from which on packed rows of a group are not what matters

struct Sizes {
  std::int64_t batch;
  std::int64_t heads_kv;
  std::int64_t len_q;
  std::int64_t len_k;
  bool other_layout;
};

// Ragged tiles of a few rows, as the gate begins with; several tiles of both lengths, ragged; whole tiles of every
// size.
constexpr Sizes kRagged[] = {{1, 1, 37, 83, false}, {2, 2, 70, 200, true}, {1, 1, 150, 410, false}};
constexpr Sizes kWhole[] = {{1, 1, 128, 256, false}, {1, 1, 128, 512, false}, {1, 2, 256, 256, false},
                            {1, 1, 192, 384, false}, {1, 1, 64, 256, false},  {1, 1, 384, 768, false}};

std::optional<Workload> shrunk(const Workload& workload, const Sizes& sizes) {
  Workload w = workload;
  const std::int64_t group = workload.heads / workload.heads_kv;
  const std::int64_t few = workload.len_q <= kFewRows ? 8 : 2;
  w.batch = std::min(workload.batch, sizes.batch);
  w.heads_kv = sizes.heads_kv;
  w.heads = sizes.heads_kv * std::min(group, few);
  w.len_q = std::min(workload.len_q, sizes.len_q);
  w.len_k = std::min(workload.len_k, sizes.len_k);
  if (sizes.other_layout) w.layout = verify::other_layout(w.layout);
  // A window of as much of the keys.
  const auto narrow = [&](std::int64_t& side) {
    static_assert(Window::kAll < 0);
    if (side > 0)
      side = std::max<std::int64_t>(1, std::min(side, side * w.len_k / std::max<std::int64_t>(1, workload.len_k)));
  };
  if (workload.has_left_bound()) narrow(w.window.left);
  w.prefix = std::min(workload.prefix, w.len_k);
  try {
    return parse_workload(to_string(w));
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool is_legal(const Variant& variant, const Workload& workload, const DeviceFacts& device) {
  return !variant.family->refuses(workload, device) && variant.runs(workload) && !variant.is_illegal(workload, device);
}

// The variant for a small workload, with settings that mean nothing there at their one name; none where it is not
// legal.
std::optional<Variant> made_for(const Variant& variant, const Specialization& specialization, const Workload& w,
                                const DeviceFacts& device) {
  if (variant.family->refuses(w, device)) return std::nullopt;
  try {
    Variant small = canonical(make_variant(*variant.family, variant.config, w, specialization), w);
    small.overlay = variant.overlay;
    if (!is_legal(small, w, device)) return std::nullopt;
    return small;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

DeviceFacts emulated_device(const DeviceFacts& device) {
  DeviceFacts small = device;
  small.processors = kProcessors;
  return small;
}

std::vector<SmallCase> small_cases(const Variant& variant, const Workload& workload, const DeviceFacts& device) {
  std::vector<SmallCase> cases;
  if (variant.specialization != Specialization{})
    for (const Sizes& sizes : kWhole) {
      const std::optional<Workload> w = shrunk(workload, sizes);
      const std::optional<Variant> small = w ? made_for(variant, variant.specialization, *w, device) : std::nullopt;
      if (!small || small->specialization == Specialization{}) continue;
      cases.push_back({*small, *w});
      break;
    }
  std::optional<Variant> general;
  const auto add = [&](const Sizes& sizes) {
    const std::optional<Workload> w = shrunk(workload, sizes);
    if (!w) return;
    if (!general) general = made_for(variant, {}, *w, device);
    if (!general || !is_legal(*general, *w, device)) return;
    const bool is_known = std::any_of(cases.begin(), cases.end(), [&](const SmallCase& c) {
      return c.workload == *w && c.variant.specialization == Specialization{};
    });
    if (!is_known) cases.push_back({*general, *w});
  };
  for (const Sizes& sizes : kRagged) add(sizes);
  add(kWhole[0]);
  return cases;
}

}  // namespace heed::emulator
