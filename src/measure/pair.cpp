#include "measure/pair.hpp"

#include <fmt/format.h>

#include <chrono>
#include <numeric>

#include "base/interrupt.hpp"

namespace heed::measure {
namespace {

constexpr int kAttempts = 4;  // at readings whose times do not fit

}  // namespace

PairResult measure_pair(const Block& base, const Block& trial, const PairOptions& options) {
  PairResult result;
  const auto begin = std::chrono::steady_clock::now();
  for (int quad = 0; quad < options.most_quads; ++quad) {
    check_interrupt();
    const double a1 = base();
    const double b1 = trial();
    const double b2 = trial();
    const double a2 = base();
    result.base_us.insert(result.base_us.end(), {a1, a2});
    result.trial_us.insert(result.trial_us.end(), {b1, b2});
    result.ratios.push_back((a1 + a2) / (b1 + b2));
    if (quad + 1 < options.least_quads) continue;
    result.ratio = bootstrap(result.ratios, options.seed);
    const double elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (result.ratio.uncertainty() <= options.target_uncertainty || result.ratio.high < options.hopeless_below ||
        elapsed_s > options.limit_s)
      break;
  }
  result.ratio = bootstrap(result.ratios, options.seed);
  result.base_median_us = median(result.base_us);
  result.trial_median_us = median(result.trial_us);
  return result;
}

bool times_are_plausible(double reported_us, double wall_us) {
  return reported_us <= 1.05 * wall_us + 50 && wall_us <= 4 * reported_us + 20'000;
}

Block worker_block(worker::Worker& worker, int slot, const std::string& name, TimedSets& sets, double limit_s) {
  return [&worker, slot, name, &sets, limit_s] {
    const int replays = sets.plan().replays;
    // A busy moment of the machine may hold up what lies around the readings; it passes. Who forges times does it
    // again.
    for (int attempt = 1;; ++attempt) {
      const worker::Worker::Times times = worker.time(slot, replays, sets.flips(replays + 1), limit_s);
      const double reported_us = std::accumulate(times.us.begin(), times.us.end(), 0.0) * sets.plan().launches;
      if (static_cast<int>(times.us.size()) == replays && times_are_plausible(reported_us, times.wall_us))
        return median(times.us);
      if (attempt == kAttempts)
        throw ForgedTime(
            fmt::format("{} reports {:.0f} us for {} replays that took {:.0f} us on this side of the worker", name,
                        reported_us, replays, times.wall_us));
    }
  };
}

}  // namespace heed::measure
