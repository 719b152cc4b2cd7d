#include "measure/spot_check.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>

#include "base/check.hpp"
#include "base/parallel.hpp"
#include "workload/elements.hpp"

namespace heed::measure {
namespace {

constexpr int kEarlier = -1;   // written by the replay before the one that was stopped, or by the lead
constexpr int kUnderWay = -2;  // may hold anything

constexpr double kMostCheckedBytes = 256e6;  // of sets looked at in one check, but one set at least
constexpr double kAllRowsFlops = 0.1e9;      // of the launches of all sets: up to there every row is recomputed
constexpr std::size_t kAtOnce = 64;          // elements of a row
constexpr double kOutlier = 32;
constexpr int kOutlierEvery = 16;
// The largest of many is about 4 sigma: 60, and 160, where e^160 is no fp32 number: without the maximum it overflows.
constexpr double kLargeScoreDeviations[] = {15, 40};
constexpr double kLargestScoreDeviation = 50;
constexpr int kMostExponent = 8;  // of N(0, 1): 6 * 2^8 is far from 65504, for K and for the oracle's Q

// A CPU launches in the arena, which the worker and this process share; a device in memory of its own.
bool is_in_place(const worker::Worker& worker) {
  return worker.device() == DeviceKind::cpu;
}

// A runner maps inputs read-only, in whole pages; where a page is larger than a guard it may hold an output as well.
bool inputs_are_protected() {
  static const bool result = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) <= verify::kGuardBytes;
  return result;
}

bool is_poison(const std::byte* bytes, std::uint64_t count) {
  return std::all_of(bytes, bytes + count, [](std::byte byte) { return byte == std::byte{0xff}; });
}

// As many of `count` things as are affordable, in random order.
std::vector<int> some_of(int count, double bytes_of_each, Random& random) {
  std::vector<int> all = permutation(count, random);
  all.resize(static_cast<std::size_t>(std::clamp(kMostCheckedBytes / bytes_of_each, 1.0, static_cast<double>(count))));
  return all;
}

std::vector<float> scales(const Workload& w, KeyScale kind, Random& random) {
  std::vector<float> result(static_cast<std::size_t>(w.dim), 1.0F);
  const double deviation = w.softmax_scale() * std::sqrt(static_cast<double>(w.dim));
  if (kind == KeyScale::large && deviation > 0) {
    const double target = kLargeScoreDeviations[random.below(std::size(kLargeScoreDeviations))];
    const int exponent = std::clamp(static_cast<int>(std::lround(std::log2(target / deviation))), 0, kMostExponent);
    std::fill(result.begin(), result.end(), static_cast<float>(std::ldexp(1.0, exponent)));
  }
  const double with_outliers = deviation * std::sqrt(1 + kOutlier * kOutlier / kOutlierEvery);
  if (kind == KeyScale::outliers && with_outliers < kLargestScoreDeviation)
    for (std::size_t d = random.below(kOutlierEvery); d < result.size(); d += kOutlierEvery)
      result[d] = static_cast<float>(kOutlier);
  return result;
}

}  // namespace

SpotCheck::SpotCheck(TimedSets& sets, std::uint64_t seed, bool whole_passes) : sets_(sets), seed_(seed) {
  const TimingPlan& plan = sets.plan();
  Random random(seed);
  looked_at_ = some_of(plan.sets, static_cast<double>(sets.stride()), random);
  outputs_ = looked_at_;
  if (sets.outputs() > plan.sets)
    outputs_ = some_of(sets.outputs(), static_cast<double>(sets.scene(0).o().bytes), random);
  if (whole_passes) {
    launches_ = plan.launches;
    totals_ = {sets.product()};
    return;
  }
  replays_ = static_cast<int>(random.below(static_cast<std::uint64_t>(plan.replays)));
  launches_ = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(plan.launches)));
  // Half of the checks are of blocks as they are timed.
  KeyScale kind = KeyScale::ones;
  // Quantised keys, and the oracle's Q, whose channels take the factors, have no room for more than signs.
  const Workload& w = sets.workload();
  const bool has_room = size_of(w.dtype_q()) > 1 && size_of(w.dtype_k()) > 1;
  if (has_room && sets.inputs() == verify::InputClass::normal && random.chance(0.5))
    kind = random.chance(0.5) ? KeyScale::large : KeyScale::outliers;
  const std::vector<float> scale = scales(sets.workload(), kind, random);
  for (int replay = 0; replay < replays_ + 2; ++replay) {
    totals_.push_back(scale);
    for (float& factor : totals_.back())
      if (random.chance(0.5)) factor = -factor;
  }
}

SpotCheck::SpotCheck(TimedSets& sets, std::uint64_t seed) : SpotCheck(sets, seed, false) {}

SpotCheck SpotCheck::of_whole_passes(TimedSets& sets, std::uint64_t seed) {
  return {sets, seed, true};
}

std::vector<worker::Range> SpotCheck::wanted() const {
  std::vector<worker::Range> ranges;
  for (const int set : looked_at_) ranges.push_back({sets_.offset_of(set), sets_.stride()});
  return ranges;
}

std::uint64_t SpotCheck::kept_bytes(const TimedSets& sets, const worker::Worker& worker) {
  return is_in_place(worker) ? sets.scene(0).o().bytes * static_cast<std::uint64_t>(sets.outputs())
                             : sets.stride() * static_cast<std::uint64_t>(sets.plan().sets);
}

SpotCheck::Image SpotCheck::take(worker::Worker& worker, int slot, bool keep, double limit_s) {
  Image image;
  const bool in_place = is_in_place(worker);
  image.stopped = worker.spot_check(slot, replays_, launches_, sets_.factors_to(totals_),
                                    in_place ? std::vector<worker::Range>() : wanted(), sets_.image_bytes(),
                                    sets_.image_bytes(), limit_s);
  if (in_place)
    image.memory = check_memory(worker, image,
                                keep && inputs_are_protected() ? TimedSets::Reach::but_inputs : TimedSets::Reach::all);
  if (!keep) return image;
  std::vector<std::byte> kept = sets_.take_buffer();
  const std::uint64_t each = in_place ? sets_.scene(0).o().bytes : sets_.stride();
  const std::size_t count = in_place ? outputs_.size() : looked_at_.size();
  kept.resize(count * each);
  parallel_for(static_cast<std::int64_t>(count), 0, [&](std::int64_t i) {
    const auto index = static_cast<std::size_t>(i);
    std::memcpy(kept.data() + index * each, in_place ? output_of(worker, image, index) : bytes_of(worker, image, index),
                each);
  });
  image.kept = std::move(kept);
  return image;
}

SpotCheck::Image SpotCheck::fetch(worker::Worker& worker, double limit_s) {
  Image image{.stopped = {.complete = launches_, .begun = launches_}, .kept = {}, .memory = {}};
  if (is_in_place(worker))
    image.memory = check_memory(worker, image, TimedSets::Reach::all);
  else
    worker.fetch(wanted(), sets_.image_bytes(), sets_.image_bytes(), limit_s);
  return image;
}

const std::byte* SpotCheck::bytes_of(worker::Worker& worker, const Image& image, std::size_t index) const {
  if (!image.kept.empty()) return image.kept.data() + index * sets_.stride();
  const std::uint64_t copy = is_in_place(worker) ? 0 : sets_.image_bytes();
  return worker.arena().data() + copy + sets_.offset_of(looked_at_[index]);
}

const std::byte* SpotCheck::output_of(worker::Worker& worker, const Image& image, std::size_t index) const {
  const verify::Place& o = sets_.scene(0).o();
  if (!is_in_place(worker)) return bytes_of(worker, image, index) + o.offset;
  return image.kept.empty() ? worker.arena().data() + sets_.output_offset(outputs_[index])
                            : image.kept.data() + index * o.bytes;
}

int SpotCheck::writer(int output, const worker::Stopped& stopped) const {
  for (int n = stopped.complete; n < stopped.begun; ++n)
    if (sets_.sources(n).output == output) return kUnderWay;
  return last_writer(output, stopped.complete);
}

int SpotCheck::last_writer(int output, int launches) const {
  for (int n = launches - 1; n >= 0; --n)
    if (sets_.sources(n).output == output) return n;
  return kEarlier;
}

int SpotCheck::earlier_writer(int output) const {
  const int all = sets_.plan().launches;
  return last_writer(output, replays_ > 0 ? all : std::min(all, worker::kCpuLead));
}

// Whether a launch that was stopped works in the workspace of the set, and with its semaphores.
bool SpotCheck::uses_workspace(int set, const worker::Stopped& stopped) const {
  for (int n = stopped.complete; n < stopped.begun; ++n)
    if (sets_.sources(n).workspace == set) return true;
  return false;
}

bool SpotCheck::is_known(const worker::Worker& worker, int output, int writer) const {
  if (writer != kEarlier || replays_ > 0) return writer != kUnderWay;
  return is_in_place(worker) && earlier_writer(output) != kEarlier;  // how long a device's lead is the worker knows
}

bool SpotCheck::saw_outputs(const worker::Worker& worker, const Image& image) const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [&](int output) { return is_known(worker, output, writer(output, image.stopped)); });
}

bool SpotCheck::came_late(const Image& image) const {
  const int all = sets_.plan().launches;
  return sets_.outputs() < all && launches_ < all && image.stopped.complete >= all;
}

// Q carries the factors of K, exactly.
const verify::Reference& SpotCheck::reference(int output, int writer) {
  const auto [at, is_new] = references_.try_emplace({output, writer});
  if (!is_new) return at->second;
  const int launch = writer == kEarlier ? earlier_writer(output) : writer;
  const worker::ChannelFactors& factors = writer == kEarlier ? totals_.at(totals_.size() - 2) : totals_.back();
  at->second = sets_.reference(launch, factors, substream(seed_, static_cast<std::uint64_t>(output)));
  return at->second;
}

verify::Comparison SpotCheck::described(verify::Comparison found, const std::string& where, const Image& image) const {
  if (found.finding != Finding::none)
    found.text = fmt::format("in the timed launches (stopped in replay {}, after launch {} of {}), {}: {}",
                             replays_ + 1, image.stopped.complete, sets_.plan().launches, where, found.text);
  return found;
}

verify::Comparison SpotCheck::check_memory(worker::Worker& worker, const Image& image, TimedSets::Reach reach) const {
  std::vector<verify::Comparison> found(looked_at_.size());
  parallel_for(std::ssize(looked_at_), 0, [&](std::int64_t index) {
    const auto i = static_cast<std::size_t>(index);
    const int set = looked_at_[i];
    found[i] =
        sets_.check_memory(set, bytes_of(worker, image, i), totals_.back(), uses_workspace(set, image.stopped), reach);
  });
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i].finding != Finding::none)
      return described(std::move(found[i]), fmt::format("set {}", looked_at_[i]), image);
  if (!is_in_place(worker)) return {};
  return described(sets_.check_guards(worker.arena().data()), "outputs", image);
}

verify::Comparison SpotCheck::check_inputs(const TimedSets& sets, worker::Worker& worker) {
  if (!is_in_place(worker)) return {};
  std::vector<verify::Comparison> found(static_cast<std::size_t>(sets.plan().sets));
  parallel_for(sets.plan().sets, 0, [&](std::int64_t at) {
    const auto set = static_cast<int>(at);
    found[static_cast<std::size_t>(at)] =
        sets.check_memory(set, worker.arena().data() + sets.offset_of(set), sets.product(), true);
  });
  for (std::size_t set = 0; set < found.size(); ++set)
    if (found[set].finding != Finding::none) {
      found[set].text = fmt::format("after the timed launches, set {}: {}", set, found[set].text);
      return found[set];
    }
  return {};
}

verify::Comparison SpotCheck::check(worker::Worker& worker, const Image& image) {
  verify::Comparison result;
  if (image.stopped.wrote_out_of_bounds) {
    result.finding = Finding::wrote_outside;
    result.text = "it wrote outside its outputs, to device memory that is part of no tensor";
    return result;
  }
  result = image.memory ? *image.memory : check_memory(worker, image, TimedSets::Reach::all);
  if (result.finding != Finding::none) return result;
  // Of one set: the others are compared with another slot's, if that was stopped at the same launch. Where the oracle
  // costs little, of all: on a CPU small launches are seldom stopped alike.
  const bool all_rows = sets_.workload().flops() * static_cast<double>(outputs_.size()) <= kAllRowsFlops;
  bool with_rows = true;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const int by = writer(outputs_[i], image.stopped);
    if (!is_known(worker, outputs_[i], by)) {
      if (by == kUnderWay || !is_in_place(worker) || is_poison(output_of(worker, image, i), sets_.scene(0).o().bytes))
        continue;
      result.finding = Finding::timed_output;
      result.text = "it was written before its launch began";
      return described(std::move(result), fmt::format("output {}", outputs_[i]), image);
    }
    const verify::Reference none;
    const int set = sets_.sources(by == kEarlier ? earlier_writer(outputs_[i]) : by).q;
    result = described(verify::compare_outputs(sets_.scene(set), {output_of(worker, image, i)},
                                               with_rows ? reference(outputs_[i], by) : none, false),
                       fmt::format("output {}", outputs_[i]), image);
    if (result.finding != Finding::none) return result;
    with_rows = all_rows;
  }
  return result;
}

SpotCheck::Outputs SpotCheck::outputs(worker::Worker& worker, const Image& image) const {
  Outputs result;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const std::byte* at = output_of(worker, image, i);
    result.writers.push_back(writer(outputs_[i], image.stopped));
    // The next slot's image takes the arena's place; a kept image stays.
    if (image.kept.empty()) at = result.copies.emplace_back(at, at + sets_.scene(0).o().bytes).data();
    result.at.push_back(at);
  }
  return result;
}

// Each is within the tolerance of the oracle, so they are within twice that of each other. It is calibrated on sampled
// rows: a row of larger outputs may be off by as much more.
verify::Comparison SpotCheck::compare(const Outputs& base, const Outputs& trial) const {
  verify::Comparison result;
  if (references_.empty()) return result;
  const verify::Reference& reference = references_.begin()->second;
  const double absolute = 2 * reference.tolerance.max_abs;
  const double relative = 2 * reference.tolerance.worst_row;
  const double largest = std::max(reference.unfused.largest, 1e-30);
  const Workload& w = sets_.workload();
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (base.writers[i] != trial.writers[i] || base.writers[i] == kUnderWay) continue;
    // Rows are as many in every replay.
    const int by = base.writers[i] == kEarlier ? last_writer(outputs_[i], sets_.plan().launches) : base.writers[i];
    const verify::Scene& scene = sets_.scene(sets_.sources(by).q);
    const std::int64_t rows = w.batch * w.heads * w.len_q;
    std::vector<double> errors(static_cast<std::size_t>(rows));  // squares
    std::vector<double> norms(static_cast<std::size_t>(rows));
    std::mutex mutex;
    const auto fail = [&](std::int64_t row, const std::string& text) {
      const std::lock_guard lock(mutex);
      result.finding = Finding::inexact;
      result.text = fmt::format(
          "in the timed launches (stopped in replay {}, launch {} of {}), output {}, (batch {}, head {}, row {}): {}",
          replays_ + 1, launches_, sets_.plan().launches, outputs_[i], row / w.len_q / w.heads, row / w.len_q % w.heads,
          row % w.len_q, text);
    };
    parallel_for(rows, 0, [&](std::int64_t row) {
      const RowIndex index{row / w.len_q / w.heads, row / w.len_q % w.heads, row % w.len_q};
      if (index.row >= scene.rows_of(index.batch)) return;  // an entry of fewer rows
      const std::size_t at = scene.o_index(index);
      double error = 0;
      double norm = 0;
      double worst = 0;
      double row_largest = 0;
      for (std::size_t begin = 0; begin < static_cast<std::size_t>(w.dim_v); begin += kAtOnce) {
        const std::size_t count = std::min(kAtOnce, static_cast<std::size_t>(w.dim_v) - begin);
        std::array<double, kAtOnce> want{};
        std::array<double, kAtOnce> got{};
        load_elements(w.dtype, base.at[i], at + begin, count, want.data());
        load_elements(w.dtype, trial.at[i], at + begin, count, got.data());
        for (std::size_t d = 0; d < count; ++d) {
          error += (got[d] - want[d]) * (got[d] - want[d]);
          norm += want[d] * want[d];
          worst = std::max(worst, std::abs(got[d] - want[d]));
          row_largest = std::max(row_largest, std::abs(want[d]));
        }
      }
      errors[static_cast<std::size_t>(row)] = error;
      norms[static_cast<std::size_t>(row)] = norm;
      const double limit = absolute * std::max(1.0, row_largest / largest);
      if (worst > limit) fail(row, fmt::format("{:.3g} from the base's output, allowed {:.3g}", worst, limit));
    });
    const double smallest = 0.1 * std::sqrt(std::accumulate(norms.begin(), norms.end(), 0.0) /
                                            static_cast<double>(std::max<std::int64_t>(1, rows)));
    for (std::int64_t row = 0; row < rows && result.finding == Finding::none; ++row) {
      const double norm = std::max(std::sqrt(norms[static_cast<std::size_t>(row)]), smallest);
      const double error = std::sqrt(errors[static_cast<std::size_t>(row)]);
      if (error > relative * norm)
        fail(row, fmt::format("{:.3g} of its norm from the base's output, allowed {:.3g}", error / norm, relative));
    }
    if (result.finding != Finding::none) return result;
  }
  return result;
}

}  // namespace heed::measure
