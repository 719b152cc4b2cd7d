#include "plans.hpp"

#include <array>
#include <cstdlib>
#include <map>
#include <unordered_map>

namespace heed::torch {
namespace {

struct KeyHash {
  std::size_t operator()(const PlanKey& key) const { return key.hash(); }
};
using Entry = std::shared_ptr<PlanEntry>;

// A decoder asks for one plan a length; entries take some KB each. What is forgotten is planned again when it is seen.
constexpr std::size_t kMostEntries = 4096;

std::mutex& mutex() {
  static auto* const one = new std::mutex;  // outlives the threads that run while a process ends
  return *one;
}
std::unordered_map<PlanKey, Entry, KeyHash>& entries() {
  static auto* const all = new std::unordered_map<PlanKey, Entry, KeyHash>;
  return *all;
}
std::atomic<std::uint64_t> epoch{1};  // of entries that threads may keep

// PyTorch's threads share the tasks of a plan on a CPU, so that its number of threads holds for Heed too.
// https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html
void parallel_for(void*, int tasks, void (*task)(void*, int), void* argument) {
  struct Tasks {
    void (*task)(void*, int);
    void* argument;
  } all{task, argument};
  const Status status = libtorch().parallel_for(
      0, tasks, 1,
      [](std::int64_t begin, std::int64_t end, void* context) {
        const auto* const these = static_cast<const Tasks*>(context);
        for (std::int64_t i = begin; i < end; ++i) these->task(these->argument, static_cast<int>(i));
      },
      &all);
  if (status != 0) std::abort();  // tasks let nothing out
}

Entry made(const Call& call) {
  heed_options options;
  heed_options_init(&options);
  if (call.precision > 0) options.precision = heed_precision_name(static_cast<std::size_t>(call.precision - 1));
  if (call.problem.device_type == HEED_CPU) {
    std::uint32_t threads = 0;
    check(libtorch().thread_count(&threads), "asking for the number of threads");
    options.threads = static_cast<std::int32_t>(threads);
    options.parallel_for = parallel_for;
  }
  auto entry = std::make_shared<PlanEntry>(call.problem, options);
  if (entry->plan() != nullptr || !call.may_build || call.problem.device_type == HEED_CPU) return entry;
  // Files of programs for GPUs hold few that quantised inputs with features take.
  options.build = HEED_BUILD_WAIT;
  return std::make_shared<PlanEntry>(call.problem, options);
}

// Counts of plans that were forgotten, by workload, variant and precision. A decoder's lengths have no end: from here
// on they are counted as one.
constexpr std::size_t kMostForgotten = 16384;
std::map<std::pair<std::string, std::string>, PlanCount>& forgotten() {
  static auto* const all = new std::map<std::pair<std::string, std::string>, PlanCount>;
  return *all;
}

PlanCount count_of(const PlanEntry& entry) {
  return {text_of(entry.problem()), entry.info().variant, entry.info().origin, entry.info().reason,
          entry.info().precision,   entry.calls,          entry.nanoseconds};
}

void add(std::map<std::pair<std::string, std::string>, PlanCount>& all, PlanCount one) {
  if (one.calls == 0) return;
  PlanCount& place = all[{one.workload, one.variant + '\n' + one.precision}];
  one.calls += place.calls;
  one.nanoseconds += place.nanoseconds;
  place = std::move(one);
}

void forget_all() {
  for (const auto& [key, entry] : entries()) {
    if (entry->plan() == nullptr) continue;
    PlanCount one = count_of(*entry);
    if (forgotten().size() >= kMostForgotten) one.workload = "others";
    add(forgotten(), std::move(one));
  }
  entries().clear();
}

Entry found_or_made(const Call& call) {
  {
    const std::lock_guard lock(mutex());
    if (const auto at = entries().find(call.key); at != entries().end()) return at->second;
  }
  // Outside of the lock: it may take milliseconds, and what two threads make at a time is the same.
  const Entry entry = made(call);
  const std::lock_guard lock(mutex());
  if (entries().size() >= kMostEntries) forget_all();
  Entry& place = entries()[call.key];
  if (place == nullptr) place = entry;
  return place;
}

struct Kept {
  std::uint64_t epoch = 0;
  PlanKey key;
  Entry entry;
};

}  // namespace

PlanEntry::PlanEntry(const heed_problem& problem, const heed_options& options) : problem_(problem) {
  heed_plan_info_init(&info_);
  const heed_status status = heed_plan_create(&problem, &options, &plan_);
  if (status == HEED_OUT_OF_MEMORY || status == HEED_DRIVER_ERROR || status == HEED_INTERNAL)
    throw std::runtime_error(heed_last_error());
  if (status != HEED_OK)
    refused_ = heed_last_error();
  else if (heed_plan_get_info(plan_, &info_) != HEED_OK)
    throw std::runtime_error(heed_last_error());
}

PlanEntry::~PlanEntry() {
  heed_plan_destroy(plan_);
}

PlanEntry& entry_of(const Call& call) {
  constexpr std::size_t kPlaces = 128;  // 40 KB a thread
  static thread_local std::array<Kept, kPlaces> kept;
  Kept& place = kept[call.key.hash() % kPlaces];
  const std::uint64_t now = epoch.load(std::memory_order_acquire);
  if (place.epoch != now || !(place.key == call.key)) place = {now, call.key, found_or_made(call)};
  return *place.entry;
}

std::vector<PlanCount> plan_counts() {
  const std::lock_guard lock(mutex());
  auto all = forgotten();
  for (const auto& [key, entry] : entries())
    if (entry->plan() != nullptr) add(all, count_of(*entry));
  std::vector<PlanCount> counts;
  counts.reserve(all.size());
  for (auto& [key, one] : all) counts.push_back(std::move(one));
  return counts;
}

void reset_plan_counts() {
  const std::lock_guard lock(mutex());
  for (const auto& [key, entry] : entries()) entry->calls = entry->nanoseconds = 0;
  forgotten().clear();
}

void forget_plans() {
  const std::lock_guard lock(mutex());
  forget_all();
  ++epoch;
}

}  // namespace heed::torch
