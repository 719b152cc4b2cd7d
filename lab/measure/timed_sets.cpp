#include "measure/timed_sets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/parallel.hpp"
#include "base/random.hpp"
#include "measure/floor.hpp"

namespace heed::measure {
namespace {

constexpr double kWarmShare = 0.4;  // of the last-level cache: the rest for outputs on their way and everyone else
constexpr double kColdMultiple = 3.0;
constexpr int kMostWarmSets = 10;  // 10 sets give 100 different launches
// A replay has 4 us (H200) between its first and its last event that are no launch's: with 4 launches 1 us each.
constexpr double kMostLaunches = 100;
constexpr double kMostImageBytes = 4e9;
// On a CPU. A reading passes over all sets twice, and every set is made and looked at: 4096 of the smallest workloads
// take 12 s of a run, 1024 take 3. With 32 MB of cache workloads below 94 KB stay partly in it.
constexpr double kMostColdSets = 1024;
constexpr std::int64_t kMostKeyRows = 2048;  // that a spot check makes loud in all sets
constexpr std::uint64_t kComparedBytes = 64 << 10;
constexpr double kOracleFlops = 0.1e9;        // for one set's outputs; rows beyond it are drawn anew for every check
constexpr std::int64_t kQueryAlignment = 16;  // of TMA, and of the widest loads

// How often Q can be moved on by a head of keys until one meets its keys again. Where heads of a row lie side by side
// the entries of a batch do not count: a row further is the same head.
std::int64_t most_moves(const Workload& w) {
  if (w.quantised && w.quantised->q) return 1;  // its factors lie elsewhere
  if (w.dim * static_cast<std::int64_t>(size_of(w.dtype_q())) % kQueryAlignment != 0) return 1;
  return w.layout == Layout::bhld && !w.ragged ? w.batch * w.heads_kv : w.heads_kv;
}

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + 4095) / 4096 * 4096;
}

}  // namespace

std::vector<int> permutation(int count, Random& random) {
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

std::int64_t most_launches(const Workload& workload, int sets) {
  return static_cast<std::int64_t>(sets) * sets * most_moves(workload);
}

TimingPlan plan_timing(const Workload& workload, const DeviceFacts& device, Caches caches, double most_block_us) {
  const double bytes = std::max(1.0, workload.bytes());
  const double cache = device.cache_bytes > 0 ? static_cast<double>(device.cache_bytes) : 32e6;
  const bool gpu = device.kind == DeviceKind::cuda;
  const double most_sets = std::clamp(std::floor(kMostImageBytes / bytes), 2.0, gpu ? kMostImageBytes : kMostColdSets);
  TimingPlan plan;
  if (caches == Caches::warm) {
    plan.sets =
        static_cast<int>(std::clamp(std::floor(kWarmShare * cache / bytes), 2.0, static_cast<double>(kMostWarmSets)));
  } else {
    plan.sets = static_cast<int>(std::clamp(std::ceil(kColdMultiple * cache / bytes), 2.0, most_sets));
  }
  // About 1 ms a replay on a GPU, where one launch may be 2 µs; 10 ms on a CPU. Guessed from a third of the peak; the
  // guess only decides how long a reading takes.
  const double guess_us = 3 * floor_of(peak_of(device, workload, device.processors), workload, gpu ? 1.0 : 0.0).us();
  const double replay_us = gpu ? 1000 : 10000;
  // At least two rounds over the sets: what an output holds when it is written again was computed from other inputs, so
  // that a candidate which recognises its own last output finds nothing it could leave there.
  const double least_launches = 2.0 * plan.sets;
  const double most = std::min(kMostLaunches, static_cast<double>(most_launches(workload, plan.sets)));
  plan.launches =
      static_cast<int>(std::clamp(std::round(replay_us / guess_us), least_launches, std::max(least_launches, most)));
  if (!gpu && caches == Caches::warm) plan.outputs = plan.launches;
  const double block_us = std::min(2 * replay_us, most_block_us);
  plan.replays = static_cast<int>(std::clamp(block_us / (guess_us * plan.launches), 1.0, 10.0));
  return plan;
}

TimedSets::TimedSets(const Workload& workload, const TimingPlan& plan, const LaunchMemory& memory, std::uint64_t seed,
                     verify::InputClass inputs)
    : workload_(workload), plan_(plan), memory_(memory), inputs_(inputs), seed_(seed) {
  // Each set here, once more in the arena, and there a copy to look at afterwards. Other outputs are in the arena
  // alone.
  const double output_bytes =
      static_cast<double>(workload.batch * workload.heads * workload.len_q * workload.dim_v) * size_of(workload.dtype);
  require_memory(3.0 * plan.sets * static_cast<double>(verify::image_bytes(workload, memory, 0)) +
                     2.0 * static_cast<double>(own_outputs()) * output_bytes,
                 fmt::format("timing {} sets of the workload's tensors", plan.sets));
  LaunchPlan launch;
  launch.workspace_bytes = memory.workspace_bytes;
  launch.semaphores = memory.semaphores;
  verify::SceneOptions options;
  options.with_lse = false;  // what a plain SDPA call asks for
  options.page_seed = seed;  // sets lend each other K and V
  HEED_CHECK(plan.launches <= most_launches(workload, plan.sets));
  options.repeated_query_heads = (plan.launches - 1) / plan.sets / plan.sets * (workload.heads / workload.heads_kv);
  for (int set = 0; set < plan.sets; ++set) {
    const std::uint64_t set_seed = substream(seed, static_cast<std::uint64_t>(set));
    scenes_.emplace_back(workload, verify::make_inputs(workload, inputs, set_seed), launch, set_seed, options);
  }
  stride_ = whole_pages(scenes_.front().image().size());
  output_stride_ = whole_pages(verify::kGuardBytes + scenes_.front().o().bytes + verify::kGuardBytes);
  Random random(substream(seed, 200));
  order_ = permutation(plan.sets, random);
  if (own_outputs() > 0) output_order_ = permutation(outputs(), random);
  for (std::uint64_t i = 0; i < own_outputs(); ++i) {
    std::vector<std::byte>& guards = guards_.emplace_back(output_stride_ - scenes_.front().o().bytes);
    for (std::byte& byte : guards) byte = static_cast<std::byte>(random.next());
  }
}

TimedSets::Sources TimedSets::sources(int launch) const {
  const int sets = plan_.sets;
  const int round = launch / sets;
  const int cycle = round / sets;
  const auto at = [&](int place) { return order_[static_cast<std::size_t>(place % sets)]; };
  const std::int64_t moved = cycle * (workload_.heads / workload_.heads_kv) * scenes_.front().q().strides.head;
  const int q = at(launch);
  const int output = output_order_.empty() ? q : output_order_[static_cast<std::size_t>(launch) % output_order_.size()];
  return {q,
          at(launch + round),
          at(launch + 2 * round + cycle),
          q,
          output,
          static_cast<std::uint64_t>(moved) * size_of(workload_.dtype_q())};
}

std::uint64_t TimedSets::output_offset(int output) const {
  if (output < plan_.sets) return offset_of(output) + scene(output).o().offset;
  return set_bytes() + output_stride_ * static_cast<std::uint64_t>(output - plan_.sets) + verify::kGuardBytes;
}

double TimedSets::untimed_bytes() const {
  return static_cast<double>(plan_.replays + 1) * plan_.sets * static_cast<double>(scenes_.front().k().bytes) +
         static_cast<double>(image_bytes());
}

void TimedSets::prepare(worker::Worker& worker, const std::vector<std::pair<int, LaunchPlan>>& slots, double limit_s,
                        worker::Follow follow) {
  HEED_CHECK(worker.arena().size() >= arena_bytes());
  // What base and candidate share and write: neither finds anything of the other's.
  std::vector<worker::Range> poisoned;
  std::vector<worker::ChannelRange> keys;
  product_.assign(static_cast<std::size_t>(workload_.dim), 1.0F);
  // Before every look at a draft: 20 MB and more, which take one processor a tenth of the look.
  parallel_for(plan_.sets, 0, [&](std::int64_t at) {
    const auto set = static_cast<int>(at);
    const std::vector<std::byte>& image = scene(set).image();
    std::memcpy(worker.arena().data() + offset_of(set), image.data(), image.size());
    const std::vector<std::byte> slack = slack_of(set);
    std::copy(slack.begin(), slack.end(), worker.arena().data() + offset_of(set) + image.size());
  });
  for (int set = 0; set < plan_.sets; ++set) {
    const verify::Scene& scene = scenes_[static_cast<std::size_t>(set)];
    for (const verify::Place& place : {scene.o(), scene.workspace()})
      if (place.bytes > 0) poisoned.push_back({offset_of(set) + place.offset, place.bytes});
    keys.push_back(channels_of(scene.k(), workload_.dtype_k(), offset_of(set) + scene.k().offset));
  }
  for (int output = plan_.sets; output < outputs(); ++output) {
    const std::vector<std::byte>& guards = guards_[static_cast<std::size_t>(output - plan_.sets)];
    std::byte* const o = worker.arena().data() + output_offset(output);
    std::copy(guards.begin(), guards.begin() + verify::kGuardBytes, o - verify::kGuardBytes);
    std::copy(guards.begin() + verify::kGuardBytes, guards.end(), o + scenes_.front().o().bytes);
    poisoned.push_back({output_offset(output), scenes_.front().o().bytes});
  }
  std::vector<std::pair<int, std::vector<worker::Launch>>> launches;
  for (const auto& [slot, plan] : slots) {
    HEED_CHECK(plan.supports_pdl || follow != worker::Follow::dependent);
    HEED_CHECK(memory_.holds(LaunchMemory::of(plan)));
    std::vector<worker::Launch> list;
    for (int n = 0; n < plan_.launches; ++n) {
      const Sources from = sources(n);
      worker::Launch launch = scenes_.front().launch();
      const worker::Launch& base = scenes_.front().launch();  // all sets have the same layout
      launch.q = offset_of(from.q) + base.q + from.q_bytes;
      launch.k = offset_of(from.k) + base.k;
      launch.v = offset_of(from.v) + base.v;
      launch.o = output_offset(from.output);
      for (std::uint64_t worker::Launch::*at : worker::kFeatureAddresses)
        if (base.*at != worker::kNull) launch.*at = offset_of(from.q) + base.*at;
      if (base.k_scales != worker::kNull) launch.k_scales = offset_of(from.k) + base.k_scales;
      if (base.v_scales != worker::kNull) launch.v_scales = offset_of(from.v) + base.v_scales;
      launch.workspace = plan.workspace_bytes > 0 ? offset_of(from.workspace) + base.workspace : worker::kNull;
      launch.semaphores = plan.semaphores > 0 ? offset_of(from.workspace) + base.semaphores : worker::kNull;
      const auto& of_q = scene(from.q).launch().shape;
      launch.shape.dropout_seed = of_q.dropout_seed;
      launch.shape.dropout_offset = of_q.dropout_offset;
      launch.shape.dropout_first_entry = of_q.dropout_first_entry;
      launch.take(plan);
      list.push_back(launch);
    }
    launches.emplace_back(slot, std::move(list));
  }
  worker.prepare(0, image_bytes(), launches, poisoned, keys, limit_s, follow);
}

std::vector<worker::ChannelFactors> TimedSets::flips(int count) {
  std::vector<worker::ChannelFactors> totals(static_cast<std::size_t>(count));
  Random random(fresh_seed());
  for (worker::ChannelFactors& factors : totals)
    for (std::size_t d = 0; d < product_.size(); ++d) factors.push_back(random.chance(0.5) ? -1.0F : 1.0F);
  return factors_to(totals);
}

std::vector<worker::ChannelFactors> TimedSets::factors_to(const std::vector<worker::ChannelFactors>& totals) {
  std::vector<worker::ChannelFactors> result;
  for (const worker::ChannelFactors& total : totals) {
    worker::ChannelFactors& factors = result.emplace_back();
    for (std::size_t d = 0; d < product_.size(); ++d) factors.push_back(total[d] / product_[d]);
    product_ = total;
  }
  return result;
}

worker::ChannelRange TimedSets::channels_of(const verify::Place& place, Dtype dtype, std::uint64_t offset) const {
  return {offset, place.bytes / size_of(dtype), static_cast<int>(workload_.dim), dtype};
}

std::vector<worker::ChannelRange> TimedSets::some_key_rows(Random& random) const {
  const verify::Place& k = scenes_.front().k();
  const std::uint64_t row_bytes = size_of(workload_.dtype_k()) * static_cast<std::uint64_t>(workload_.dim);
  const std::uint64_t rows = k.bytes / row_bytes;
  const std::int64_t wanted = std::clamp<std::int64_t>(2 * workload_.batch * workload_.heads_kv, 1,
                                                       std::max<std::int64_t>(1, kMostKeyRows / plan_.sets));
  std::vector<worker::ChannelRange> ranges;
  for (int set = 0; set < plan_.sets; ++set) {
    std::set<std::uint64_t> chosen;
    for (std::int64_t i = 0; i < wanted; ++i) chosen.insert(random.below(rows));
    for (const std::uint64_t row : chosen)
      ranges.push_back({offset_of(set) + k.offset + row * row_bytes, static_cast<std::uint64_t>(workload_.dim),
                        static_cast<int>(workload_.dim), workload_.dtype_k()});
  }
  return ranges;
}

verify::Reference TimedSets::reference(int launch, const worker::ChannelFactors& factors, std::uint64_t seed,
                                       const worker::KeyChanges& changes, double share) const {
  const Sources from = sources(launch);
  const verify::Scene& of_q = scene(from.q);
  const std::byte* const begin = of_q.image().data() + of_q.q().offset + from.q_bytes;
  std::vector<std::byte> q(begin, begin + of_q.q().bytes);
  worker::multiply_channels(q.data(), channels_of(of_q.q(), workload_.dtype_q(), 0), factors);
  HostTensors tensors = of_q.tensors();
  tensors.q = q.data();
  const HostTensors of_k = scene(from.k).tensors();
  const HostTensors of_v = scene(from.v).tensors();
  tensors.k = of_k.k;
  const std::uint64_t k_at = offset_of(from.k) + scene(from.k).k().offset;
  std::vector<std::byte> k;
  for (worker::ChannelRange row : changes.loud) {
    if (row.offset < k_at || row.offset - k_at >= scene(from.k).k().bytes) continue;
    if (k.empty()) {
      const std::byte* const own = scene(from.k).image().data() + scene(from.k).k().offset;
      k.assign(own, own + scene(from.k).k().bytes);
      tensors.k = k.data();
    }
    row.offset -= k_at;
    worker::multiply_channels(k.data(), row, worker::ChannelFactors(factors.size(), changes.loudness));
  }
  tensors.v = of_v.v;
  tensors.k_scales = of_k.k_scales;
  tensors.v_scales = of_v.v_scales;
  return verify::make_reference(workload_, tensors, verify::choose_rows(workload_, share * kOracleFlops, seed));
}

// In pieces that stay in a core's cache.
verify::Comparison TimedSets::check_keys(int set, const std::byte* after, const worker::ChannelFactors& factors) const {
  const verify::Place& k = scene(set).k();
  const std::byte* const own = scene(set).image().data() + k.offset;
  const std::uint64_t row = size_of(workload_.dtype_k()) * static_cast<std::uint64_t>(workload_.dim);
  const std::uint64_t piece = std::max<std::uint64_t>(1, kComparedBytes / row) * row;
  std::vector<std::byte> expected(std::min(piece, k.bytes));
  for (std::uint64_t begin = 0; begin < k.bytes; begin += piece) {
    const std::uint64_t bytes = std::min(piece, k.bytes - begin);
    std::memcpy(expected.data(), own + begin, bytes);
    worker::ChannelRange range = channels_of(k, workload_.dtype_k(), 0);
    range.elements = bytes / size_of(workload_.dtype_k());
    worker::multiply_channels(expected.data(), range, factors);
    const std::byte* const is = after + k.offset + begin;
    if (std::memcmp(expected.data(), is, bytes) == 0) continue;
    const auto at = std::mismatch(is, is + bytes, expected.begin()).first - is;
    return {Finding::input_modified,
            fmt::format("it changed its input K at byte {}", begin + static_cast<std::uint64_t>(at)),
            {}};
  }
  return {};
}

verify::Comparison TimedSets::check_memory(int set, const std::byte* after, const worker::ChannelFactors& factors,
                                           bool under_way, Reach reach) const {
  if (reach == Reach::all)
    if (verify::Comparison keys = check_keys(set, after, factors); keys.finding != Finding::none) return keys;
  const verify::Scene::ForbiddenWrite forbidden_write =
      scene(set).forbidden_write(after, {.inputs = reach == Reach::but_inputs, .keys = true, .semaphores = under_way});
  if (forbidden_write.finding != Finding::none) return {forbidden_write.finding, forbidden_write.text, {}};
  const std::vector<std::byte> slack = slack_of(set);
  if (std::equal(slack.begin(), slack.end(), after + scene(set).image().size())) return {};
  return {Finding::wrote_outside, "it wrote outside its outputs, behind the set", {}};
}

std::vector<std::byte> TimedSets::slack_of(int set) const {
  std::vector<std::byte> slack(stride_ - scene(set).image().size());
  Random random(substream(seed_, 300 + static_cast<std::uint64_t>(set)));
  for (std::byte& byte : slack) byte = static_cast<std::byte>(random.next());
  return slack;
}

verify::Comparison TimedSets::check_guards(const std::byte* image) const {
  for (int output = plan_.sets; output < outputs(); ++output) {
    const std::vector<std::byte>& guards = guards_[static_cast<std::size_t>(output - plan_.sets)];
    const std::byte* const o = image + output_offset(output);
    const auto behind = guards.begin() + verify::kGuardBytes;
    if (!std::equal(guards.begin(), behind, o - verify::kGuardBytes) ||
        !std::equal(behind, guards.end(), o + scenes_.front().o().bytes))
      return {Finding::wrote_outside, fmt::format("it wrote outside its outputs, beside output {}", output), {}};
  }
  return {};
}

std::vector<std::byte> TimedSets::take_buffer() {
  if (spare_.empty()) return {};
  std::vector<std::byte> buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

}  // namespace heed::measure
