#include "measure/pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "process/interrupt.hpp"

namespace heed::measure {
namespace {

constexpr int kAttempts = 4;  // at readings whose times do not fit

std::vector<Readings> readings_of(const PairResult& pair) {
  std::vector<Readings> processes;
  std::size_t begin = 0;
  for (const std::size_t quads : pair.quads) {
    processes.push_back({std::span(pair.base_us).subspan(2 * begin, 2 * quads),
                         std::span(pair.trial_us).subspan(2 * begin, 2 * quads)});
    begin += quads;
  }
  return processes;
}

// Medians of the replays of a block; none where one of them was not counted.
std::optional<Counts> counts_of(const worker::Worker::Times& times, int replays) {
  const auto all = static_cast<std::size_t>(replays);
  if (times.instructions.size() != all || times.cycles.size() != all) return std::nullopt;
  return Counts{median(times.instructions), median(times.cycles)};
}

// None where one block has no counts.
std::optional<Counts> medians_of(const std::vector<std::optional<Counts>>& blocks) {
  std::vector<double> instructions;
  std::vector<double> cycles;
  for (const std::optional<Counts>& one : blocks) {
    if (!one) return std::nullopt;
    instructions.push_back(one->instructions);
    cycles.push_back(one->cycles);
  }
  if (blocks.empty()) return std::nullopt;
  return Counts{median(std::move(instructions)), median(std::move(cycles))};
}

}  // namespace

PairResult measure_pair(const Block& base, const Block& trial, const PairOptions& options) {
  PairResult result;
  std::vector<std::optional<Counts>> base_counts;
  std::vector<std::optional<Counts>> trial_counts;
  const auto begin = std::chrono::steady_clock::now();
  for (int quad = 0; quad < options.most_quads; ++quad) {
    check_interrupt();
    const Reading a1 = base();
    const Reading b1 = trial();
    const Reading b2 = trial();
    const Reading a2 = base();
    result.base_us.insert(result.base_us.end(), {a1.us, a2.us});
    result.trial_us.insert(result.trial_us.end(), {b1.us, b2.us});
    result.ratios.push_back((a1.us + a2.us) / (b1.us + b2.us));
    base_counts.insert(base_counts.end(), {a1.counts, a2.counts});
    trial_counts.insert(trial_counts.end(), {b1.counts, b2.counts});
    if (quad + 1 < options.least_quads) continue;
    result.quads = {result.ratios.size()};
    result.ratio = paired_ratio(readings_of(result));
    const double elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (result.ratio.uncertainty() <= options.target_uncertainty || result.ratio.high < options.hopeless_below ||
        elapsed_s > options.limit_s)
      break;
  }
  result.quads = {result.ratios.size()};
  result.ratio = paired_ratio(readings_of(result));
  result.base_median_us = median(result.base_us);
  result.trial_median_us = median(result.trial_us);
  result.base_counts = medians_of(base_counts);
  result.trial_counts = medians_of(trial_counts);
  return result;
}

PairResult together(const std::vector<PairResult>& processes) {
  PairResult all;
  std::vector<std::optional<Counts>> base_counts;
  std::vector<std::optional<Counts>> trial_counts;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (const PairResult& one : processes) {
    append(all.base_us, one.base_us);
    append(all.trial_us, one.trial_us);
    append(all.ratios, one.ratios);
    append(all.quads, one.quads);
    base_counts.push_back(one.base_counts);
    trial_counts.push_back(one.trial_counts);
  }
  all.ratio = paired_ratio(readings_of(all));
  all.base_median_us = median(all.base_us);
  all.trial_median_us = median(all.trial_us);
  all.base_counts = medians_of(base_counts);
  all.trial_counts = medians_of(trial_counts);
  return all;
}

std::optional<Counts> counted_ratios(const PairResult& pair) {
  if (!pair.base_counts || !pair.trial_counts) return std::nullopt;
  if (pair.trial_counts->instructions <= 0 || pair.trial_counts->cycles <= 0) return std::nullopt;
  return Counts{pair.base_counts->instructions / pair.trial_counts->instructions,
                pair.base_counts->cycles / pair.trial_counts->cycles};
}

bool contradicts_counts(const PairResult& pair, double margin) {
  const std::optional<Counts> counted = counted_ratios(pair);
  return counted && pair.ratio.low > 1 + margin && counted->instructions < 1 / (1 + margin) &&
         counted->cycles < 1 / (1 + margin);
}

bool times_are_plausible(double reported_us, double wall_us, double untimed_bytes) {
  // Besides its launches a block starts a runner, poisons outputs and changes K: cold caches have hundreds of MB of it.
  constexpr double kBytesPerUs = 500;
  return reported_us <= 1.05 * wall_us + 50 && wall_us <= 4 * (reported_us + untimed_bytes / kBytesPerUs) + 250'000;
}

Block worker_block(worker::Worker& worker, int slot, const std::string& name, TimedSets& sets, double limit_s,
                   int most_replays) {
  return [&worker, slot, name, &sets, limit_s, most_replays]() -> Reading {
    const int replays = std::min(sets.plan().replays, most_replays);
    // A busy moment of the machine may hold up what lies around the readings; it passes. Who forges times does it
    // again.
    for (int attempt = 1;; ++attempt) {
      const worker::Worker::Times times = worker.time(slot, replays, sets.flips(replays + 1), limit_s);
      const double reported_us = std::accumulate(times.us.begin(), times.us.end(), 0.0) * sets.plan().launches;
      if (static_cast<int>(times.us.size()) == replays &&
          times_are_plausible(reported_us, times.wall_us, sets.untimed_bytes()))
        return Reading{median(times.us), counts_of(times, replays)};
      if (attempt == kAttempts)
        throw ForgedTime(
            fmt::format("{} reports {:.0f} us for {} replays that took {:.0f} us on this side of the worker", name,
                        reported_us, replays, times.wall_us));
    }
  };
}

}  // namespace heed::measure
