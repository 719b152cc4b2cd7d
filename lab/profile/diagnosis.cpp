#include "profile/diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.hpp"

namespace heed::profile {
namespace {

// A unit that is busy for this share of the time leaves little to gain elsewhere (NVIDIA Nsight Compute calls a kernel
// bound by a unit from 60% of its peak). A floor is the least a unit can need, so half of the time is enough there.
constexpr double kBusyByCounter = 0.6;
constexpr double kBusyByFloor = 0.5;
constexpr double kLaunchBound = 0.7;      // share of the time that an empty kernel takes too
constexpr double kIdleBound = 0.3;        // processors without work
constexpr double kConflictBound = 0.25;   // shared-memory passes that only bank conflicts cost
constexpr double kConflictTraffic = 0.2;  // shared-memory use from which conflicts can be what matters
constexpr double kStallBound = 0.4;       // of all waiting
constexpr std::size_t kNamedStalls = 3;

int threads_per_processor(int compute_capability) {
  return compute_capability == 86 || compute_capability == 89 ? 1536 : 2048;
}
int blocks_per_processor(int compute_capability) {
  if (compute_capability == 86) return 16;
  return compute_capability == 89 ? 24 : 32;
}

std::string_view meaning_of(std::string_view stall) {
  if (stall == "long_scoreboard") return "loads from L2 or memory";
  if (stall == "short_scoreboard") return "shared memory or special functions";
  if (stall == "mio_throttle") return "a full queue to shared memory";
  if (stall == "lg_throttle") return "a full queue to L1";
  if (stall == "math_pipe_throttle") return "a busy arithmetic pipe";
  if (stall == "barrier") return "other warps at a barrier";
  if (stall == "wait") return "a fixed latency of the instruction before";
  if (stall == "no_instruction") return "instructions being fetched";
  if (stall == "drain") return "stores at the end";
  if (stall == "branch_resolving") return "a branch";
  if (stall == "gmma") return "warpgroup matrix products";
  if (stall == "dispatch_stall") return "the dispatcher";
  if (stall == "membar") return "a memory fence";
  if (stall == "imc_miss") return "constants";
  return "other causes";
}

std::string_view unit_of(Bound bound, bool gpu) {
  switch (bound) {
    case Bound::launch:
      return "the launch";
    case Bound::tensor:
      return "the tensor cores";
    case Bound::exponentials:
      return "the special-function unit";
    case Bound::fma:
      return gpu ? "the arithmetic pipes" : "the vector unit";
    case Bound::issue:
      return "the issue slots";
    case Bound::latency:
      return "latency";
    case Bound::shared_memory:
      return "shared memory";
    case Bound::l2:
      return gpu ? "the L2" : "the caches";
    case Bound::dram:
      return "the memory";
    case Bound::tail:
      return "processors without work";
    case Bound::unknown:
      return "nothing that is known";
  }
  return "?";
}

bool is_unit(Bound bound) {
  return bound != Bound::launch && bound != Bound::tail && bound != Bound::latency && bound != Bound::unknown;
}

double value_of(const std::vector<Share>& shares, Bound bound) {
  for (const Share& share : shares)
    if (share.bound == bound) return share.value;
  return 0;
}

std::string percent(double share) {
  return fmt::format("{:.0f}%", 100 * share);
}

std::vector<Share> shares_of(const Evidence& e, const Occupancy& occupancy) {
  std::vector<Share> shares;
  const auto add = [&](Bound bound, double value) {
    if (std::isfinite(value)) shares.push_back({bound, std::clamp(value, 0.0, 1.0)});
  };
  const bool gpu = e.device.kind == DeviceKind::cuda;
  const double launch = gpu ? e.floor.launch_us / e.us : 0;
  if (gpu && e.floor.launch_us > 0) add(Bound::launch, launch);
  double idle = occupancy.idle_share;
  if (e.counters) {
    const Counters& c = *e.counters;
    const auto add_percent = [&](Bound bound, const std::optional<double>& value) {
      if (value) add(bound, *value / 100);
    };
    add_percent(Bound::tensor, c.tensor_percent);
    add_percent(Bound::exponentials, c.xu_percent);
    if (c.fma_percent || c.alu_percent)
      add(Bound::fma, std::max(c.fma_percent.value_or(0), c.alu_percent.value_or(0)) / 100);
    add_percent(Bound::issue, c.issue_percent);
    add_percent(Bound::shared_memory, c.shared_percent);
    add_percent(Bound::l2, c.l2_percent);
    add_percent(Bound::dram, c.dram_percent);
    // What is idle beyond the launch itself: blocks of different lengths show only here.
    if (c.active_percent) idle = std::max(idle, 1 - *c.active_percent / 100 - launch);
  } else {
    add(gpu ? Bound::tensor : Bound::fma, e.floor.products_us / e.us);
    if (e.floor.exponentials_us > 0) add(Bound::exponentials, e.floor.exponentials_us / e.us);
    if (e.floor.bytes_us > 0)
      add(e.bytes <= static_cast<double>(e.device.cache_bytes) ? Bound::l2 : Bound::dram, e.floor.bytes_us / e.us);
  }
  add(Bound::tail, idle);
  double busiest = 0;
  for (const Share& share : shares)
    if (is_unit(share.bound)) busiest = std::max(busiest, share.value);
  if (gpu) add(Bound::latency, 1 - busiest);
  std::stable_sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) { return a.value > b.value; });
  return shares;
}

// Share of all waiting that is of the named kinds.
double stall_share(const std::vector<Stall>& stalls, std::initializer_list<std::string_view> kinds) {
  double all = 0;
  double these = 0;
  for (const Stall& stall : stalls) {
    all += stall.warps;
    if (std::find(kinds.begin(), kinds.end(), stall.reason) != kinds.end()) these += stall.warps;
  }
  return all > 0 ? these / all : 0;
}

Bound busiest_of(const std::vector<Share>& shares, std::initializer_list<Bound> among) {
  Bound best = *among.begin();
  for (const Bound bound : among)
    if (value_of(shares, bound) > value_of(shares, best)) best = bound;
  return best;
}

Bound decide(const Evidence& e, const std::vector<Share>& shares) {
  if (!(e.us > 0)) return Bound::unknown;
  if (value_of(shares, Bound::launch) >= kLaunchBound) return Bound::launch;
  if (value_of(shares, Bound::tail) >= kIdleBound) return Bound::tail;
  const double busy = e.counters ? kBusyByCounter : kBusyByFloor;
  for (const Share& share : shares)  // largest first
    if (is_unit(share.bound) && share.value >= busy) return share.bound;
  if (e.counters) {
    const Counters& c = *e.counters;
    if (c.conflict_share().value_or(0) >= kConflictBound && value_of(shares, Bound::shared_memory) >= kConflictTraffic)
      return Bound::shared_memory;
    if (stall_share(c.stalls, {"math_pipe_throttle"}) >= kStallBound)
      return busiest_of(shares, {Bound::tensor, Bound::fma, Bound::exponentials});
    // Both queues serve shared memory and special functions; the busier of the two is meant.
    if (stall_share(c.stalls, {"short_scoreboard", "mio_throttle"}) >= kStallBound)
      return busiest_of(shares, {Bound::shared_memory, Bound::exponentials});
    return Bound::latency;
  }
  return e.device.kind == DeviceKind::cuda ? Bound::latency : Bound::unknown;
}

std::string evidence_text(const Evidence& e, const Diagnosis& d) {
  const bool gpu = e.device.kind == DeviceKind::cuda;
  switch (d.bound) {
    case Bound::launch:
      return fmt::format("An empty kernel takes {:.2f} of its {:.2f} us.", e.floor.launch_us, e.us);
    case Bound::tail:
      if (!gpu)
        return fmt::format("{:.0f} blocks of work on {} threads leave {} of {} processors' time unused.",
                           d.occupancy.blocks, e.plan.threads, percent(value_of(d.shares, Bound::tail)),
                           e.device.processors);
      if (d.occupancy.blocks < e.device.processors)
        return fmt::format("Its {:.0f} blocks leave {} of {} multiprocessors without work.", d.occupancy.blocks,
                           percent(value_of(d.shares, Bound::tail)), e.device.processors);
      return fmt::format("Multiprocessors are without work for {} of the time: {:.0f} blocks in {:.2f} rounds of {}.",
                         percent(value_of(d.shares, Bound::tail)), d.occupancy.blocks, d.occupancy.rounds,
                         e.device.processors * d.occupancy.blocks_per_processor);
    case Bound::unknown:
      return e.us > 0 ? fmt::format("Its floor, {:.2f} us of {}, is {} of its time, and nothing else is measured here.",
                                    e.floor.us(), e.floor.bound(), percent(e.floor.us() / e.us))
                      : std::string("It was not measured.");
    case Bound::latency: {
      std::string text;
      for (const Share& share : d.shares)
        if (is_unit(share.bound)) {
          text = fmt::format("No unit is busy for more than {} of the time (the most: {}).", percent(share.value),
                             unit_of(share.bound, gpu));
          break;
        }
      return text + fmt::format(" {:.0f} warps a multiprocessor, {} blocks at once, limited by {}.",
                                d.occupancy.warps_per_processor, d.occupancy.blocks_per_processor, d.occupancy.limit);
    }
    case Bound::shared_memory:
      if (const auto conflicts = e.counters ? e.counters->conflict_share() : std::nullopt)
        return fmt::format("Shared memory is in use for {} of the time; {} of its passes are bank conflicts.",
                           percent(value_of(d.shares, d.bound)), percent(*conflicts));
      break;
    case Bound::tensor:
    case Bound::exponentials:
    case Bound::fma:
    case Bound::issue:
    case Bound::l2:
    case Bound::dram:
      break;
  }
  const std::string unit(unit_of(d.bound, gpu));
  return d.with_counters
             ? fmt::format("{}{} busy for {} of the time.", char(std::toupper(unit[0])),
                           unit.substr(1) + (unit.back() == 's' ? " are" : " is"), percent(value_of(d.shares, d.bound)))
             : fmt::format("The least that {} can take is {} of its {:.2f} us.", unit,
                           percent(value_of(d.shares, d.bound)), e.us);
}

std::string text_of(const Evidence& e, const Diagnosis& d) {
  const bool gpu = e.device.kind == DeviceKind::cuda;
  std::string text = d.bound == Bound::unknown ? std::string("Not known what bounds it")
                                               : fmt::format("Bound by {}", unit_of(d.bound, gpu));
  text += fmt::format("{}. {}", d.with_counters ? "" : " (without counters)", evidence_text(e, d));
  if (!d.stalls.empty()) {
    std::vector<std::string> causes;
    for (const Stall& stall : d.stalls)
      causes.push_back(fmt::format("{} {} ({})", percent(stall_share(e.counters->stalls, {stall.reason})),
                                   meaning_of(stall.reason), stall.reason));
    text += fmt::format(" Warps wait for: {}.", join(causes, ", "));
  }
  std::vector<std::string> others;
  for (const Share& share : d.shares)
    if (share.bound != d.bound && is_unit(share.bound) && share.value >= 0.01)
      others.push_back(fmt::format("{} {}", unit_of(share.bound, gpu), percent(share.value)));
  if (!others.empty()) text += fmt::format(" Besides: {}.", join(others, ", "));
  if (e.us > 0 && d.bound != Bound::unknown)
    text += fmt::format(" Floor {:.2f} us ({}), {} of its time.", e.floor.us(), e.floor.bound(),
                        percent(e.floor.us() / e.us));
  if (e.resources.spill_store_bytes > 0)
    text += fmt::format(" Registers spill: {} bytes a thread.", e.resources.spill_store_bytes);
  if (d.bound != Bound::unknown)
    text += d.knobs.empty() ? std::string(" No knob of this family acts on that.")
                            : fmt::format(" Knobs that act on it: {}.", join(d.knobs, ", "));
  return text;
}

}  // namespace

Occupancy occupancy_of(const LaunchPlan& plan, const jit::Resources& resources, const DeviceFacts& device) {
  Occupancy o;
  o.blocks = static_cast<double>(plan.grid[0]) * plan.grid[1] * plan.grid[2];
  const int processors = std::max(1, device.processors);
  if (device.kind == DeviceKind::cpu) {
    o.blocks_per_processor = 1;
    o.limit = "threads";
    const int used = std::clamp(static_cast<int>(plan.threads), 1, processors);
    o.rounds = o.blocks / used;
    o.idle_share = 1 - o.blocks / (std::ceil(o.rounds) * processors);
    return o;
  }
  const int threads = std::max(1, static_cast<int>(plan.threads));
  const int warps = (threads + 31) / 32;
  o.blocks_per_processor = blocks_per_processor(device.compute_capability);
  o.limit = "blocks";
  const auto limit_to = [&](std::int64_t blocks, const char* what) {
    if (blocks >= o.blocks_per_processor) return;
    o.blocks_per_processor = static_cast<int>(std::max<std::int64_t>(1, blocks));
    o.limit = what;
  };
  limit_to(threads_per_processor(device.compute_capability) / (warps * 32), "threads");
  if (resources.registers > 0)  // given to warps in units of 256, that is 8 a thread
    limit_to(65536 / (static_cast<std::int64_t>(warps) * 32 * ((resources.registers + 7) / 8 * 8)), "registers");
  if (device.shared_bytes_per_processor > 0)  // 1 KiB of each block is the runtime's
    limit_to(device.shared_bytes_per_processor / (plan.shared_bytes + resources.static_shared_bytes + 1024),
             "shared memory");
  const double places = static_cast<double>(processors) * o.blocks_per_processor;
  o.rounds = o.blocks / places;
  o.warps_per_processor = std::min<double>(o.blocks_per_processor, std::ceil(o.blocks / processors)) * warps;
  if (o.blocks < processors)
    o.idle_share = 1 - o.blocks / processors;
  else if (o.rounds > 1)
    o.idle_share = 1 - o.rounds / std::ceil(o.rounds);
  return o;
}

Diagnosis diagnose(const Evidence& evidence, const std::vector<Knob>& knobs) {
  Diagnosis d;
  d.with_counters = evidence.counters.has_value();
  d.occupancy = occupancy_of(evidence.plan, evidence.resources, evidence.device);
  if (evidence.us > 0) d.shares = shares_of(evidence, d.occupancy);
  d.bound = decide(evidence, d.shares);
  if (evidence.counters) {
    d.stalls = evidence.counters->stalls;
    if (d.stalls.size() > kNamedStalls) d.stalls.resize(kNamedStalls);
  }
  d.knobs = knobs_acting_on(knobs, d.bound);
  d.text = text_of(evidence, d);
  return d;
}

}  // namespace heed::profile
