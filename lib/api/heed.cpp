// The C interface: exceptions become codes, sentences go to a text of the calling thread.
#include "heed/heed.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>

#include "api/listed_plan.hpp"
#include "api/plan.hpp"
#include "api/precision.hpp"
#include "api/status.hpp"
#include "compile/embedded.hpp"
#include "dispatch/built_programs.hpp"
#include "quantise/modes.hpp"

namespace {

using heed::Error;
using heed::ErrorCode;
using heed::api::copy_text;
using heed::api::guarded;
using heed::api::last_error;

constexpr std::uint64_t kAlive = 0x68656564'706c616e;  // "heedplan"

template <typename Struct>
Struct sized() {
  Struct fresh{};
  fresh.struct_size = sizeof(Struct);
  return fresh;
}

}  // namespace

struct heed_plan {
  std::atomic<std::uint64_t> state{kAlive};
  std::unique_ptr<heed::api::Plan> plan;
};

namespace {

// Handles of destroyed plans stay for a while, so that a late use of one is told instead of reading freed memory.
class Quarantine {
 public:
  void add(heed_plan* plan) {
    const std::lock_guard lock(mutex_);
    held_.emplace_back(plan);
    if (held_.size() > kMost) held_.pop_front();
  }

 private:
  static constexpr std::size_t kMost = 1024;
  std::mutex mutex_;
  std::deque<std::unique_ptr<heed_plan>> held_;
};

Quarantine& quarantine() {
  static auto* const all = new Quarantine;  // outlives every plan that a static object destroys
  return *all;
}

const heed::api::Plan& alive(const heed_plan* plan) {
  if (plan == nullptr) throw Error(ErrorCode::usage, "the plan is null; heed_plan_create makes one");
  if (plan->state != kAlive) throw Error(ErrorCode::usage, "the plan was destroyed, or is none");
  return *plan->plan;
}

}  // namespace

extern "C" {

uint32_t heed_version(void) {
  static const std::uint32_t version = [] {
    unsigned parts[3] = {};
    int part = 0;
    for (const char* c = HEED_VERSION; *c != '\0' && part < 3; ++c)
      if (*c == '.')
        ++part;
      else
        parts[part] = 10 * parts[part] + static_cast<unsigned>(*c - '0');
    return 10000 * parts[0] + 100 * parts[1] + parts[2];
  }();
  return version;
}

const char* heed_source_digest(void) {
  static const std::string* const digest = [] {
    auto* const text = new std::string;
    (void)guarded([&] { *text = heed::compile::source_digest(); });
    return text;
  }();
  return digest->c_str();
}

const char* heed_status_name(int status) {
  switch (status) {
    case HEED_OK:
      return "HEED_OK";
    case HEED_INVALID_ARGUMENT:
      return "HEED_INVALID_ARGUMENT";
    case HEED_INVALID_PROBLEM:
      return "HEED_INVALID_PROBLEM";
    case HEED_UNSUPPORTED:
      return "HEED_UNSUPPORTED";
    case HEED_NO_DEVICE:
      return "HEED_NO_DEVICE";
    case HEED_BAD_PROGRAMS:
      return "HEED_BAD_PROGRAMS";
    case HEED_DRIVER_ERROR:
      return "HEED_DRIVER_ERROR";
    case HEED_OUT_OF_MEMORY:
      return "HEED_OUT_OF_MEMORY";
    case HEED_INTERNAL:
      return "HEED_INTERNAL";
  }
  return "unknown status";
}

const char* heed_precision_name(size_t index) {
  const auto modes = heed::quantise::modes();
  return index < modes.size() ? modes[index].name.data() : nullptr;
}

const char* heed_last_error(void) {
  return last_error().c_str();
}

void heed_problem_init(heed_problem* problem) {
  if (problem == nullptr) return;
  *problem = sized<heed_problem>();
  problem->abi_version = HEED_ABI_VERSION;
  problem->batch = problem->heads = problem->heads_kv = problem->len_q = problem->len_k = 1;
  problem->dim = problem->dim_v = 64;
  problem->window_left = problem->window_right = -1;
}
void heed_tensors_init(heed_tensors* tensors) {
  if (tensors != nullptr) *tensors = sized<heed_tensors>();
}
void heed_options_init(heed_options* options) {
  if (options != nullptr) *options = sized<heed_options>();
}
void heed_plan_info_init(heed_plan_info* info) {
  if (info != nullptr) *info = sized<heed_plan_info>();
}

heed_status heed_plan_create(const heed_problem* problem, const heed_options* options, heed_plan** plan) {
  return guarded([&] {
    if (plan == nullptr) throw Error(ErrorCode::usage, "there is nowhere to put the plan: the third argument is null");
    *plan = nullptr;
    auto made = std::make_unique<heed_plan>();
    made->plan = heed::api::make_plan(heed::api::read_problem(problem), heed::api::read_options(options));
    *plan = made.release();
  });
}

heed_status heed_plan_get_info(const heed_plan* plan, heed_plan_info* info) {
  return guarded([&] {
    if (info == nullptr || info->struct_size != sizeof(heed_plan_info))
      throw Error(ErrorCode::usage, "the info is null, or was not set with heed_plan_info_init");
    alive(plan).info(*info);
  });
}

heed_status heed_plan_prepare(const heed_plan* plan, void* workspace, void* stream) {
  return guarded([&] { alive(plan).prepare(workspace, stream); });
}

heed_status heed_plan_run_many(const heed_plan* plan, const heed_tensors* tensors, size_t count, void* workspace,
                               void* stream, uint32_t flags, double* microseconds) {
  return guarded([&] {
    const heed::api::Plan& p = alive(plan);
    if ((flags & ~HEED_RUN_DEPENDENT) != 0)
      throw Error(ErrorCode::usage, fmt::format("flags {:#x} of a run are unknown", flags & ~HEED_RUN_DEPENDENT));
    if (tensors == nullptr && count > 0 && !p.problem().is_empty) throw Error(ErrorCode::usage, "the tensors are null");
    const double us = count == 0 ? 0 : p.run(tensors, count, workspace, stream, flags);
    if (microseconds != nullptr) *microseconds = us;
  });
}

heed_status heed_plan_run(const heed_plan* plan, const heed_tensors* tensors, void* workspace, void* stream) {
  return heed_plan_run_many(plan, tensors, 1, workspace, stream, 0, nullptr);
}

void heed_plan_destroy(heed_plan* plan) {
  if (plan == nullptr) return;
  std::uint64_t alive_state = kAlive;
  if (!plan->state.compare_exchange_strong(alive_state, 0)) return;
  plan->plan.reset();
  (void)guarded([&] { quarantine().add(plan); });
}

size_t heed_wait_for_builds(double seconds) {
  std::size_t left = 0;
  (void)guarded([&] { left = heed::dispatch::BuiltPrograms::wait(seconds > 0 ? std::min(seconds, 1e6) : 0); });
  return left;
}

size_t heed_problem_text(const heed_problem* problem, char* text, size_t bytes) {
  std::string all;
  (void)guarded([&] { all = heed::to_string(heed::api::read_problem(problem).workload); });
  copy_text(all, text, bytes);
  return all.size();
}

size_t heed_explain(const heed_problem* problem, const heed_options* options, char* text, size_t bytes) {
  std::string all;
  const heed_status status = guarded([&] {
    const heed::api::Problem read = heed::api::read_problem(problem);
    heed::api::Options chosen = heed::api::read_options(options);
    chosen.build = HEED_BUILD_OFF;  // it says what there is
    all = fmt::format("problem   {}\n", heed::to_string(read.workload));
    if (read.is_empty) {
      all += "runs      nothing: there is nothing to compute\n";
      return;
    }
    const heed::DeviceFacts device = heed::api::facts_of_device(read);
    all += fmt::format("device    {} ({})\n", device.name, device.arch);
    if (!chosen.precision.empty()) all += heed::api::precision_lines(chosen.precision);
    const heed::api::Choice choice = [&] {
      if (!chosen.precision.empty()) return heed::api::decide_precision(read, chosen, device).choice;
      if (auto listed = heed::api::decide_listed(read, chosen, device)) return std::move(listed->choice);
      return heed::api::decide(read, chosen, device).choice;
    }();
    if (choice.variant.family == nullptr) {
      all += "runs      nothing: there is nothing to compute\n";
      return;
    }
    all += fmt::format("runs      {}\nfrom      {}\nbecause   {}\n", heed::describe(choice.variant), choice.origin,
                       choice.reason);
  });
  if (status != HEED_OK) all += fmt::format("refused   {}: {}\n", heed_status_name(status), last_error());
  copy_text(all, text, bytes);
  return all.size();
}
}
