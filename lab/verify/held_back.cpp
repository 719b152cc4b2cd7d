// Shapes that whoever writes a kernel cannot know, for they are drawn when it is verified.
#include <algorithm>

#include "base/random.hpp"
#include "verify/gate.hpp"

namespace heed::verify {
namespace {

constexpr int kDraws = 20;  // for one shape that fits the memory

std::int64_t from_one_to(Random& random, std::int64_t most) {
  return 1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most)));
}

double any_scale(Random& random) {
  return 0.02 * static_cast<double>(from_one_to(random, 25));
}

Workload draw(const Workload& workload, Random& random, int number) {
  Workload w = workload;
  w.batch = from_one_to(random, 3);
  w.heads_kv = from_one_to(random, 3);
  // The workload's own grouping as often as any other.
  w.heads = w.heads_kv * (random.chance(0.5) ? workload.heads / workload.heads_kv : from_one_to(random, 4));
  w.len_q = from_one_to(random, 160);
  w.len_k = from_one_to(random, 260);
  if (random.chance(0.5)) w.layout = w.layout == Layout::bhld ? Layout::blhd : Layout::bhld;
  // One of them has another scale, whatever is drawn.
  if (number == 0 || random.chance(0.5)) w.scale = any_scale(random);
  if (w.has_left_bound()) w.window.left = static_cast<std::int64_t>(random.below(200));
  return w;
}

}  // namespace

std::vector<Workload> held_back(const Variant& variant, const Workload& workload, const DeviceFacts& device,
                                std::uint64_t seed, std::uint64_t most_bytes) {
  Random random(seed);
  std::vector<Workload> shapes;
  // A program for fixed sizes knows nothing but them.
  if (variant.problem.sizes.len_q > 0) {
    shapes.push_back(workload);
    shapes.back().scale = any_scale(random);
    return shapes;
  }
  for (int number = 0; number < kHeldBack; ++number)
    for (int attempt = 0; attempt < kDraws; ++attempt) {
      const Workload w = draw(workload, random, number);
      if (!variant.runs(w) || variant.family->refuses(w, device) || variant.is_illegal(w, device) ||
          scene_bytes(variant, w, device) > most_bytes)
        continue;
      shapes.push_back(w);
      break;
    }
  return shapes;
}

}  // namespace heed::verify
