// Shapes that whoever writes a kernel cannot know, for they are drawn when it is verified.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/random.hpp"
#include "verify/gate.hpp"
#include "verify/other_features.hpp"

namespace heed::verify {
namespace {

constexpr int kDraws = 20;  // for one shape that fits the memory

// What the draws, one after another, are made for: a scale of their own and ragged tiles; lengths about as large as the
// workload's; lengths between; batch entries and heads.
enum class Draw { any, long_keys, between, many_heads };
constexpr std::array<Draw, kHeldBack> kKinds = {Draw::any, Draw::long_keys, Draw::any, Draw::between, Draw::many_heads};

constexpr std::int64_t kMostQueries = 160;
constexpr std::int64_t kMostKeys = 260;
constexpr std::int64_t kShortQueries = 24;  // of many heads
constexpr std::int64_t kShortKeys = 60;
constexpr std::int64_t kManyEntries = 6;
constexpr std::int64_t kManyKeyHeads = 10;    // of keys
constexpr std::int64_t kManyQueryHeads = 48;  // of queries, but for one group
constexpr double kLonger = 1.5;               // than the workload, at most
constexpr double kLeastMostFlops = 1e9;       // of a long draw: cheap beside anything
constexpr double kShareOfTheWorkload = 0.1;   // of the workload's own flops, where that is more

std::int64_t from_one_to(Random& random, std::int64_t most) {
  return 1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most)));
}

// 1 as in T5, those around 1/sqrt(dim), and larger ones.
double any_scale(Random& random) {
  if (random.chance(0.2)) return 1.0;
  return random.chance(0.6) ? random.uniform(0.01, 0.5) : random.uniform(0.5, 2.0);
}

// Near the workload's own length, a little shorter or up to half longer.
std::int64_t near(Random& random, std::int64_t own, std::int64_t least) {
  const auto most = static_cast<double>(std::max(own, least));
  return std::max<std::int64_t>(1, std::llround(most * random.uniform(0.95, kLonger)));
}

// From the most that other draws have up to that; as likely between two lengths as between any others of their ratio.
std::int64_t between(Random& random, std::int64_t own, std::int64_t least) {
  const double ratio = kLonger * static_cast<double>(std::max(own, least)) / static_cast<double>(least);
  return std::llround(static_cast<double>(least) * std::pow(ratio, random.uniform()));
}

void draw_both_lengths(const Workload& workload, Draw kind, Random& random, Workload& w) {
  switch (kind) {
    case Draw::any:
      w.len_q = from_one_to(random, kMostQueries);
      w.len_k = from_one_to(random, kMostKeys);
      return;
    case Draw::long_keys:
      w.len_q = near(random, workload.len_q, 1);
      w.len_k = near(random, workload.len_k, kMostKeys);
      return;
    case Draw::between:
      w.len_q = workload.len_q == 1 ? from_one_to(random, 4) : between(random, workload.len_q, kMostQueries);
      w.len_k = between(random, workload.len_k, kMostKeys);
      return;
    case Draw::many_heads:
      w.len_q = from_one_to(random, kShortQueries);
      w.len_k = from_one_to(random, kShortKeys);
      return;
  }
}

// More entries, and more heads of queries than twelve; as few of keys as groups leave.
void draw_many_heads(const Workload& workload, Random& random, Workload& w) {
  const std::int64_t own = workload.heads / workload.heads_kv;
  const std::int64_t group = random.chance(0.5) ? std::max<std::int64_t>(2, own) : 1 + from_one_to(random, 3);
  w.batch = kManyEntries - 2 + static_cast<std::int64_t>(random.below(3));
  w.heads_kv = std::clamp<std::int64_t>(kManyQueryHeads / group, 1, kManyKeyHeads - 3 + from_one_to(random, 3));
  w.heads = w.heads_kv * group;
}

Workload draw(const Workload& workload, Draw kind, int number, int attempt, Random& random) {
  Workload w = workload;
  const std::int64_t group = workload.heads / workload.heads_kv;
  const bool is_long = kind == Draw::long_keys || kind == Draw::between;
  if (kind == Draw::many_heads) {
    draw_many_heads(workload, random, w);
  } else {
    w.batch = is_long ? 1 : from_one_to(random, 3);
    w.heads_kv = is_long ? 1 : from_one_to(random, 3);
    // The workload's own grouping as often as any other.
    w.heads = w.heads_kv * (random.chance(0.5) ? group : from_one_to(random, 4));
  }
  draw_both_lengths(workload, kind, random, w);
  if (is_long) {
    // What does not fit the memory at first is tried shorter. Queries are left out before keys, which loops are over.
    for (std::int64_t* const length : {&w.len_q, &w.len_k}) *length = std::max<std::int64_t>(1, *length >> attempt / 2);
    const double most = std::max(kLeastMostFlops, kShareOfTheWorkload * workload.flops());
    if (w.flops() > most)
      w.len_q = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(w.len_q) * most / w.flops()));
  }
  if (random.chance(0.5)) w.layout = other_layout(w.layout);
  // One of them has another scale, whatever is drawn.
  if (number == 0 || random.chance(0.5)) w.scale = any_scale(random);
  if (w.has_left_bound()) w.window.left = static_cast<std::int64_t>(random.below(200));
  draw_features(random, w);
  return w;
}

}  // namespace

Workload with_many_heads(const Workload& workload) {
  Workload w = workload;
  const std::int64_t group = std::max<std::int64_t>(4, workload.heads / workload.heads_kv);
  w.batch = kManyEntries;
  w.heads_kv = std::clamp<std::int64_t>(kManyQueryHeads / group, 1, kManyKeyHeads);
  w.heads = w.heads_kv * group;
  w.len_q = kShortQueries;
  w.len_k = kShortKeys;
  return w;
}

std::vector<Workload> held_back(const Variant& variant, const Workload& workload, const DeviceFacts& device,
                                std::uint64_t seed, std::uint64_t most_bytes) {
  Random random(seed);
  std::vector<Workload> shapes;
  const auto fits = [&](const Workload& w) {
    return is_valid(w) && variant.runs(w) && !variant.family->refuses(w, device) && !variant.is_illegal(w, device) &&
           scene_bytes(variant, w, device) <= most_bytes;
  };
  // A program for fixed sizes knows nothing but them.
  if (variant.problem.sizes.len_q > 0) {
    shapes.push_back(workload);
    shapes.back().scale = any_scale(random);
    Workload other = shapes.back();
    draw_features(random, other);
    if (fits(other)) shapes.back() = other;
    return shapes;
  }
  for (int number = 0; number < kHeldBack; ++number)
    for (int attempt = 0; attempt < kDraws; ++attempt) {
      const Workload w = draw(workload, kKinds[static_cast<std::size_t>(number)], number, attempt, random);
      if (!fits(w)) continue;
      shapes.push_back(w);
      break;
    }
  return shapes;
}

}  // namespace heed::verify
