// heed evolve --workloads: the calls that a model made, each workload a run of its own.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/files.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/book_add.hpp"
#include "cli/evolve.hpp"
#include "compile/embedded.hpp"
#include "evolve/division.hpp"
#include "evolve/run_context.hpp"
#include "json/text.hpp"
#include "measure/floor.hpp"
#include "process/interrupt.hpp"
#include "process/shell_word.hpp"
#include "record/calls.hpp"
#include "report/outcome.hpp"
#include "report/workloads.hpp"

namespace heed::cli {
namespace {

using report::WorkloadRow;

struct Job {
  record::RunOptions options;
  std::string families;  ///< as the store spells them
  std::string refusal;   ///< why no family runs the workload
  evolve::Part part;
  std::int64_t finished_run = 0;  ///< that there is already; 0: none
  WorkloadRow row;
};

// A run that another device, other sources or another referee decided, or the user's own tensors, is none of these.
std::int64_t finished_run_of(const Job& job, const Workshop& shop) {
  const std::vector<store::RunRecord> runs = shop.store->runs();
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    const nlohmann::json& asked = run->options;
    if (run->state != store::RunState::finished || run->workload != to_string(job.options.workload) ||
        run->families != job.families || run->device_kind != to_string(shop.device.kind) ||
        run->device.value("name", std::string()) != shop.device.name ||
        run->device.value("arch", std::string()) != shop.device.arch ||
        run->source_digest != compile::source_digest() || report::referee_of(*run) != kReferee ||
        !asked.value("tensors", nlohmann::json::array()).empty())
      continue;
    // A search may end before its trials: it has seen all configs, or its time was over.
    const bool asked_for_as_many = asked.value("trials", 0) >= job.part.trials;
    const bool in_time = asked.value("budget_s", 0.0) == 0 || job.options.budget_s > 0;
    if ((asked_for_as_many && in_time) || static_cast<int>(shop.store->trials(run->id).size()) >= job.part.trials)
      return run->id;
  }
  return 0;
}

// @throws Error(usage) for families that there are not
Job job_of(const EvolveOptions& o, const record::Calls& calls, const Workshop& shop) {
  Job job;
  job.options = new_run(o, calls.workload, shop.device);
  job.row = {.workload = to_string(calls.workload), .calls = calls.calls, .seconds = calls.seconds};
  try {
    std::vector<std::string> names;
    for (const Family* family : evolve::families_for(job.options, shop.device)) names.emplace_back(family->name());
    job.families = join(names, ",");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    job.refusal = error.what();
  }
  return job;
}

void divide_trials(const EvolveOptions& o, std::vector<Job>& jobs, const DeviceFacts& device) {
  std::vector<evolve::Offer> offers;
  for (const Job& job : jobs) {
    const Workload& workload = job.options.workload;
    evolve::Offer offer{.calls = static_cast<double>(job.row.calls),
                        .seconds = job.row.seconds,
                        .flops = workload.flops(),
                        .refused = !job.refusal.empty()};
    if (!offer.refused)
      offer.floor_s = measure::floor_of(measure::peak_of(device, workload, device.processors), workload, 0).us() * 1e-6;
    offers.push_back(offer);
  }
  const std::vector<evolve::Part> parts = evolve::divide(offers, o.trials);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    Job& job = jobs[i];
    job.part = parts[i];
    job.options.trials = job.row.trials = parts[i].trials;
    job.row.gain = parts[i].share;
    if (parts[i].why == evolve::NoTrials::refused)
      job.row.skipped = job.refusal;
    else if (parts[i].why == evolve::NoTrials::too_small)
      job.row.skipped =
          fmt::format("a share of {:.2g}% of the gain is worth no trial of {}", 100 * parts[i].share, o.trials);
    else if (parts[i].why == evolve::NoTrials::too_few)
      job.row.skipped = fmt::format("--trials {} leaves none after the workloads of larger shares", o.trials);
  }
  // Largest first, then those without trials as they were.
  std::vector<Job> ordered;
  for (const std::size_t i : evolve::by_trials(parts)) ordered.push_back(std::move(jobs[i]));
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i].trials == 0) ordered.push_back(std::move(jobs[i]));
  jobs = std::move(ordered);
}

// What goes on with this command, for a shell. Workloads of finished runs are not repeated.
std::string same_command(const EvolveOptions& o) {
  const EvolveOptions usual;
  std::string command = "heed evolve --workloads " + shell_word(o.workloads);
  const auto add = [&](const char* option, const std::string& value, const std::string& otherwise) {
    if (value != otherwise) command += fmt::format(" {} {}", option, shell_word(value));
  };
  add("--trials", std::to_string(o.trials), std::to_string(usual.trials));
  add("--budget", fmt::format("{}", o.budget_s), fmt::format("{}", usual.budget_s));
  add("--family", o.family, usual.family);
  add("--hold", o.hold, usual.hold);
  add("--population", std::to_string(o.population), std::to_string(usual.population));
  add("--drafts", std::to_string(o.drafts), std::to_string(usual.drafts));
  add("--strategy", o.strategy, usual.strategy);
  add("--islands", std::to_string(o.islands), std::to_string(usual.islands));
  add("--seed", std::to_string(o.seed), std::to_string(usual.seed));
  add("--python", o.python, usual.python);
  if (o.no_peers) command += " --no-peers";
  if (o.no_profile) command += " --no-profile";
  return command + shared_options(o);
}

class Workloads {
 public:
  Workloads(const EvolveOptions& o, const Workshop& shop, std::vector<Job>& jobs) : o_(o), shop_(shop), jobs_(jobs) {
    for (Job& job : jobs_) {
      if (job.part.trials == 0) continue;
      ++with_trials_;
      if (!o_.again) job.finished_run = finished_run_of(job, shop_);
    }
  }

  // @return the exit code
  int run() {
    for (std::size_t i = 0; i < with_trials_; ++i) {
      remark(o_.machine.json, fmt::format("workload {} of {}: {}, {} trials, {:.0f}% of the gain", i + 1, with_trials_,
                                          jobs_[i].row.workload, jobs_[i].part.trials, 100 * jobs_[i].part.share));
      try {
        check_interrupt();
        one(i);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::interrupted) throw_interrupted(i, error);
        if (error.code() == ErrorCode::store) throw;
        // Another workload may do: a fault of the compiler or the device is reported again where none does.
        jobs_[i].row.failed = error.what();
        remark(true, fmt::format("heed: {}: {}", jobs_[i].row.workload, error.what()));
        exit_code_ = 1;
      }
    }
    return exit_code_;
  }

 private:
  void one(std::size_t i) {
    Job& job = jobs_[i];
    if (job.finished_run > 0) {
      remark(o_.machine.json, fmt::format("  already run {}; --again repeats it", job.finished_run));
      job.row.reused = true;
      finish(job, *shop_.store->find_run(job.finished_run));
      return;
    }
    if (o_.budget_s > 0) {
      const double left_s =
          o_.budget_s - std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
      if (left_s <= 0) {
        job.row.skipped = fmt::format("the {:g} s of --budget are over", o_.budget_s);
        return;
      }
      std::vector<int> to_come;
      for (std::size_t j = i; j < with_trials_; ++j)
        if (jobs_[j].finished_run == 0) to_come.push_back(jobs_[j].part.trials);
      job.options.budget_s = evolve::time_of_first(left_s, to_come);
    }
    finish(job, evolve_one(o_, shop_, job.options, nullptr, std::nullopt));
  }

  void finish(Job& job, const store::RunRecord& run) {
    job.row.run = run;
    job.row.trials_made = shop_.store->trials(run.id).size();
    ++finished_;
    if (o_.into_book) exit_code_ = std::max(exit_code_, add_to_book(o_, run, shop_));
  }

  [[noreturn]] void throw_interrupted(std::size_t at, const Error& error) const {
    throw Error(ErrorCode::interrupted,
                fmt::format("workload {} of {}: {}\n{} of {} workloads are finished{}. The rest: {}", at + 1,
                            with_trials_, error.what(), finished_, with_trials_,
                            o_.into_book ? ", with champions in the book" : "", same_command(o_)));
  }

  const EvolveOptions& o_;
  const Workshop& shop_;
  std::vector<Job>& jobs_;  ///< those with trials first
  std::size_t with_trials_ = 0;
  std::size_t finished_ = 0;
  int exit_code_ = 0;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

// @throws Error(usage) where no kernel has the form of any call
record::RecordedCalls recorded_calls(const std::string& path) {
  record::RecordedCalls recorded = record::parse_calls(read_file(path, ErrorCode::usage), path);
  if (!recorded.calls.empty()) return recorded;
  std::vector<std::string> reasons;
  for (const record::OtherCalls& other : recorded.others)
    if (std::find(reasons.begin(), reasons.end(), other.reason) == reasons.end()) reasons.push_back(other.reason);
  throw Error(ErrorCode::usage,
              fmt::format("{} has no row that kernels can be evolved for{}{}", path,
                          reasons.empty() ? "; the model made no call of attention" : ": ", join(reasons, "; ")),
              path);
}

}  // namespace

int evolve_workloads(const EvolveOptions& o) {
  const record::RecordedCalls recorded = recorded_calls(o.workloads);
  if (o.trials < 1)
    throw Error(ErrorCode::usage, fmt::format("--trials {} makes no run; at least 1 is needed", o.trials),
                std::to_string(o.trials));
  if (o.into_book) dispatch::expect_writable_book(book_path(o.book));
  const Workshop shop(o);
  const std::string here = shop.device.kind == DeviceKind::cpu ? "cpu" : shop.device.name;
  if (!recorded.device.empty() && recorded.device != here)
    remark(o.machine.json,
           fmt::format("the calls of {} were recorded on {}; this device is {}, where their times, which "
                       "trials are divided by, may be others",
                       o.workloads, recorded.device, here));
  std::vector<Job> jobs;
  for (const record::Calls& calls : recorded.calls) jobs.push_back(job_of(o, calls, shop));
  if (std::all_of(jobs.begin(), jobs.end(), [](const Job& job) { return !job.refusal.empty(); }))
    throw Error(ErrorCode::unsupported, jobs.front().refusal, jobs.front().row.workload);
  divide_trials(o, jobs, shop.device);
  const int exit_code = Workloads(o, shop, jobs).run();

  std::vector<WorkloadRow> rows;
  for (Job& job : jobs) rows.push_back(std::move(job.row));
  for (const record::OtherCalls& other : recorded.others)
    rows.push_back(
        {.workload = other.workload, .calls = other.calls, .seconds = other.seconds, .skipped = other.reason});
  if (o.machine.json) {
    print(json_text(report::workloads_json(rows), 1) + "\n");
    return exit_code;
  }
  print("\n" + report::workloads_text(rows));
  return exit_code;
}

}  // namespace heed::cli
