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

constexpr double kMostCheckedBytes = 256e6;  // of sets looked at in one check, but one set at least
constexpr double kAllRowsFlops = 0.1e9;      // of the launches of all sets: up to there every row is recomputed
constexpr double kTurnedShare = 0.125;       // of the usual rows: of the launches in front of which a replay paused
constexpr double kOutlier = 32;
constexpr int kOutlierEvery = 16;
// The largest of many is about 4 sigma: 60, and 160, where e^160 is no fp32 number: without the maximum it overflows.
constexpr double kLargeScoreDeviations[] = {15, 40};
constexpr double kLargestScoreDeviation = 50;
constexpr double kLoudScoreDeviation = 64;  // one score in 12 overflows without the maximum
constexpr int kMostExponent = 8;            // of N(0, 1): 6 * 2^8 is far from 65504, for K and for the oracle's Q

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

float loudness(const Workload& w) {
  const double deviation = w.softmax_scale() * std::sqrt(static_cast<double>(w.dim));
  if (!(deviation > 0)) return 1;
  const int exponent = static_cast<int>(std::lround(std::log2(kLoudScoreDeviation / deviation)));
  return static_cast<float>(std::ldexp(1.0, std::clamp(exponent, 0, kMostExponent)));
}

}  // namespace

void SpotCheck::choose_outputs(Random& random) {
  looked_at_ = some_of(sets_.plan().sets, static_cast<double>(sets_.stride()), random);
  outputs_ = looked_at_;
  if (sets_.outputs() > sets_.plan().sets)
    outputs_ = some_of(sets_.outputs(), static_cast<double>(sets_.scene(0).o().bytes), random);
}

SpotCheck::SpotCheck(TimedSets& sets, std::uint64_t seed, WholePasses) : sets_(sets), seed_(seed) {
  Random random(seed);
  choose_outputs(random);
  launches_ = sets.plan().launches;
  totals_ = {sets.product()};
}

SpotCheck::SpotCheck(TimedSets& sets, std::uint64_t seed, const Choice& choice) : sets_(sets), seed_(seed) {
  const TimingPlan& plan = sets.plan();
  Random random(seed);
  choose_outputs(random);
  replays_ = static_cast<int>(random.below(static_cast<std::uint64_t>(plan.replays)));
  launches_ = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(plan.launches)));
  if (choice.is_whole) launches_ = plan.launches;
  std::optional<KeyScale> kind = choice.kind;
  if (!kind) kind = random.chance(0.5) ? KeyScale::ones : random.chance(0.5) ? KeyScale::large : KeyScale::outliers;
  // Quantised keys, and the oracle's Q, whose channels take the factors, have no room for more than signs.
  const Workload& w = sets.workload();
  const bool has_room = size_of(w.dtype_q()) > 1 && size_of(w.dtype_k()) > 1;
  if (!has_room || sets.inputs() != verify::InputClass::normal) kind = KeyScale::ones;
  const std::vector<float> scale = scales(w, *kind, random);
  for (int replay = 0; replay < replays_ + 2; ++replay) {
    totals_.push_back(scale);
    for (float& factor : totals_.back())
      if (random.chance(0.5)) factor = -factor;
  }
  if (kind == KeyScale::loud_keys) {
    changes_.loud = sets.some_key_rows(random);
    changes_.loudness = loudness(w);
  }
  for (int i = 0; i < std::min(choice.pauses, launches_ - 1); ++i)
    changes_.pauses.push_back(random.uniform() * (launches_ - 1));
  std::sort(changes_.pauses.begin(), changes_.pauses.end());
  for (std::int64_t d = 0; d < w.dim; ++d) changes_.turn.push_back(random.chance(0.5) ? -1.0F : 1.0F);
}

SpotCheck SpotCheck::of_whole_passes(TimedSets& sets, std::uint64_t seed) {
  return {sets, seed, WholePasses{}};
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
                                    sets_.image_bytes(), limit_s, changes_);
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

bool SpotCheck::is_turned(int writer, const worker::Stopped& stopped) const {
  if (writer < 0) return false;
  const int k = sets_.sources(writer).k;
  return std::count_if(stopped.turned.begin(), stopped.turned.end(),
                       [&](int launch) { return launch <= writer && sets_.sources(launch).k == k; }) %
             2 !=
         0;
}

// Q carries the factors of K, exactly.
const verify::Reference& SpotCheck::reference(int output, int writer, bool turned, double share) {
  const auto [at, is_new] = references_.try_emplace({output, writer, turned, share});
  if (!is_new) return at->second;
  const int launch = writer == kEarlier ? earlier_writer(output) : writer;
  worker::ChannelFactors factors = writer == kEarlier ? totals_.at(totals_.size() - 2) : totals_.back();
  for (std::size_t d = 0; turned && d < factors.size(); ++d) factors[d] *= changes_.turn[d];
  at->second = sets_.reference(launch, factors, substream(seed_, static_cast<std::uint64_t>(output)), changes_, share);
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

// One of the replay that was stopped, where there is any: the lead, whose launches are fewer, may be told from it.
std::size_t SpotCheck::with_rows(const worker::Worker& worker, const Image& image) const {
  std::size_t known = outputs_.size();
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const int by = writer(outputs_[i], image.stopped);
    if (by >= 0) return i;
    if (known == outputs_.size() && is_known(worker, outputs_[i], by)) known = i;
  }
  return known;
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
  // Of one output: the others are compared with another slot's, if that was stopped at the same launch. Where the
  // oracle costs little, of all: on a CPU small launches are seldom stopped alike.
  const bool all_rows = sets_.workload().flops() * static_cast<double>(outputs_.size()) <= kAllRowsFlops;
  const std::size_t one = with_rows(worker, image);
  const std::vector<int>& turned = image.stopped.turned;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const int by = writer(outputs_[i], image.stopped);
    const bool is_turn = std::find(turned.begin(), turned.end(), by) != turned.end();
    if (!is_known(worker, outputs_[i], by)) {
      if (by == kUnderWay || !is_in_place(worker) || is_poison(output_of(worker, image, i), sets_.scene(0).o().bytes))
        continue;
      result.finding = Finding::timed_output;
      result.text = "it was written before its launch began";
      return described(std::move(result), fmt::format("output {}", outputs_[i]), image);
    }
    const int set = sets_.sources(by == kEarlier ? earlier_writer(outputs_[i]) : by).q;
    const verify::Reference rows =
        all_rows || i == one || is_turn
            ? reference(outputs_[i], by, is_turned(by, image.stopped), all_rows || i == one ? 1 : kTurnedShare)
            : verify::Reference();
    result = described(verify::compare_outputs(sets_.scene(set), {output_of(worker, image, i)}, rows, false),
                       fmt::format("output {}", outputs_[i]), image);
    if (result.finding != Finding::none) return result;
  }
  return result;
}

}  // namespace heed::measure
