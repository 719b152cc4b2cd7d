// At which places of a measurement spot checks are taken, and when they are compared.
#include <algorithm>
#include <chrono>

#include "base/parallel.hpp"
#include "base/random.hpp"
#include "measure/spot_check.hpp"

namespace heed::measure {
namespace {

constexpr int kChecks = 3;            // of each slot, in a measurement of the fewest blocks
constexpr int kFewestChecks = 2;      // where one takes long
constexpr int kMostChecks = 6;        // of a long measurement
constexpr double kLaterShare = 0.03;  // of the blocks beyond the fewest, before which there is one more
constexpr double kLong_s = 0.5;
// Images up to this size are kept and compared when all blocks are done: a GPU that waits for the host cools down.
constexpr std::uint64_t kMostKeptBytes = 64 << 20;
// Of each side, at a check that sees an output and stops in time: where processors are busy, a stop can come late
// several times in a row. Only the side that came late is stopped again, at the same place: where one stop in three is
// in time, both sides together are so once in nine. After a few a place is given up, for the last ones may never do.
constexpr int kSpotAttempts = 8;
constexpr int kPauses = 8;  // of a CPU's check: a candidate that is ahead a tenth of its time is caught by 24 at 92%
constexpr int kStopsAtOnePlace = 3;

// Adds the time of a scope.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

SpotChecks::SpotChecks(TimedSets& sets, worker::Worker& worker, std::vector<int> slots, int blocks, double warm_up_ms,
                       double limit_s)
    : sets_(sets),
      worker_(worker),
      slots_(std::move(slots)),
      warm_up_ms_(warm_up_ms),
      limit_s_(limit_s),
      random_(fresh_seed()),
      most_(kMostChecks) {
  for (int i = 0; i < kChecks; ++i)
    places_.push_back(static_cast<int>(random_.below(static_cast<std::uint64_t>(blocks) + 1)));
  // Those that are taken whatever they cost: of K as it is timed to the end of a replay, and of single keys.
  first_ = {{.kind = KeyScale::ones, .is_whole = true}, {}};
  if (worker.device() == DeviceKind::cpu) {
    first_.back().kind = KeyScale::loud_keys;
    first_.push_back({.kind = random_.chance(0.5) ? KeyScale::large : KeyScale::outliers});
  }
  if (random_.chance(0.5)) std::swap(first_[0], first_[1]);
}

void SpotChecks::before_block() {
  const bool is_later = block_ > *std::max_element(places_.begin(), places_.end());
  const auto here = std::count(places_.begin(), places_.end(), block_) + (is_later && random_.chance(kLaterShare));
  ++block_;
  if (here == 0) return;
  const Stopwatch stopwatch(seconds_);
  for (std::ptrdiff_t i = 0; i < here; ++i) take();
}

void SpotChecks::take() {
  if (failure_ || begun_ >= most_) return;
  ++begun_;
  const auto begin = std::chrono::steady_clock::now();
  const bool keep = SpotCheck::kept_bytes(sets_, worker_) <= kMostKeptBytes;
  const auto number = static_cast<std::size_t>(begun_) - 1;
  SpotCheck::Choice choice = number < first_.size() ? first_[number] : SpotCheck::Choice();
  choice.pauses = worker_.device() == DeviceKind::cpu ? kPauses : 0;
  const auto most_stops = static_cast<int>(kSpotAttempts * slots_.size());
  for (int stops = 0; stops < most_stops;) {
    Taken taken{SpotCheck(sets_, random_.next(), choice), std::vector<SpotCheck::Image>(slots_.size())};
    if (keep) {
      // In random order: neither side always finds what the other has left.
      const std::size_t first = random_.below(slots_.size());
      bool saw = true;
      bool late = false;
      for (std::size_t i = 0; i < slots_.size() && !(late && stops < most_stops); ++i) {
        const std::size_t side = (first + i) % slots_.size();
        SpotCheck::Image& image = taken.images[side];
        for (int stop = 0; stop < kStopsAtOnePlace; ++stop) {
          sets_.give_back(std::move(image.kept));
          image = taken.check.take(worker_, slots_[side], true, limit_s_);
          ++stops;
          if (!taken.check.came_late(image)) break;
        }
        saw = saw && taken.check.saw_outputs(worker_, image);
        late = late || taken.check.came_late(image);
      }
      if (late && stops < most_stops) {
        for (SpotCheck::Image& image : taken.images) sets_.give_back(std::move(image.kept));
        continue;
      }
      put_off_.push_back(std::move(taken));
      if (!saw || late) continue;
      ++taken_;
      break;
    }
    failure_ = compare(taken);
    if (failure_) break;
    stops += static_cast<int>(slots_.size());
    if (std::all_of(taken.images.begin(), taken.images.end(), [&](const SpotCheck::Image& image) {
          return taken.check.saw_outputs(worker_, image) && !taken.check.came_late(image);
        })) {
      ++taken_;
      break;
    }
  }
  const double took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (took_s > kLong_s) most_ = std::min(most_, std::max(kFewestChecks, begun_));
  if (!keep && warm_up_ms_ > 0 && !failure_)
    for (const int slot : slots_)
      worker_.warm_up(slot, std::min(warm_up_ms_, 1000 * took_s) / static_cast<double>(slots_.size()), limit_s_);
}

// Images that were not kept are taken here: one at a time lies in the arena.
std::optional<SpotFailure> SpotChecks::compare(Taken& taken) {
  std::vector<SpotCheck::Outputs> outputs;
  for (std::size_t side = 0; side < slots_.size(); ++side) {
    SpotCheck::Image& image = taken.images[side];
    if (image.kept.empty()) image = taken.check.take(worker_, slots_[side], false, limit_s_);
    verify::Comparison comparison = taken.check.check(worker_, image);
    if (comparison.finding != Finding::none) return SpotFailure{slots_[side], std::move(comparison)};
    if (slots_.size() > 1) outputs.push_back(taken.check.outputs(worker_, image));
  }
  if (slots_.size() < 2) return std::nullopt;
  verify::Comparison comparison = taken.check.compare(outputs.front(), outputs.back());
  if (comparison.finding == Finding::none) return std::nullopt;
  return SpotFailure{slots_.back(), std::move(comparison)};
}

std::optional<SpotFailure> SpotChecks::finish() {
  const Stopwatch stopwatch(seconds_);
  while (!failure_ && begun_ < std::min(kChecks, most_)) take();
  std::vector<std::optional<SpotFailure>> failures(put_off_.size());
  if (!failure_)
    parallel_for(std::ssize(put_off_), 0, [&](std::int64_t i) {
      failures[static_cast<std::size_t>(i)] = compare(put_off_[static_cast<std::size_t>(i)]);
    });
  for (std::size_t i = 0; i < put_off_.size(); ++i) {
    if (!failure_) failure_ = std::move(failures[i]);
    for (SpotCheck::Image& image : put_off_[i].images) sets_.give_back(std::move(image.kept));
  }
  if (!failure_ && !put_off_.empty())
    if (verify::Comparison inputs = SpotCheck::check_inputs(sets_, worker_); inputs.finding != Finding::none)
      failure_ = SpotFailure{slots_.back(), std::move(inputs)};
  put_off_.clear();
  return failure_;
}

}  // namespace heed::measure
