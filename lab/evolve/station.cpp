#include "evolve/station.hpp"

#include <fmt/format.h>

#include "base/random.hpp"
#include "device/processors.hpp"
#include "evolve/trials.hpp"

namespace heed::evolve {
namespace {

// Without readings and drafts, which stations do not look at: a run of thousands of trials is known to every device.
store::TrialRecord outline_of(const store::TrialRecord& trial) {
  store::TrialRecord outline = trial;
  outline.drafts.clear();
  outline.gate_checks = outline.samples = outline.clocks = outline.resources = outline.diagnosis = nullptr;
  return outline;
}

bool may_be_the_device(const store::TrialRecord& trial) {
  return trial.verdict == Verdict::crashed || trial.verdict == Verdict::timed_out ||
         trial.verdict == Verdict::launch_failed;
}

}  // namespace

class Station::Messages final : public Observer {
 public:
  explicit Messages(std::function<void(const std::string&)> say) : say_(std::move(say)) {}
  void message(const std::string& text) override { say_(text); }
  void generation_started(int, int, int) override {}
  void trial_finished(const store::TrialRecord&, double, int) override {}

 private:
  std::function<void(const std::string&)> say_;
};

Station::Station(const RunContext& run, DeviceOfRun device, trial::Built base, std::optional<double> self_spread,
                 std::function<void(const std::string&)> say, int lanes)
    : device_(std::move(device)),
      messages_(std::make_unique<Messages>(std::move(say))),
      context_(run.store, run.builder, run.device, run.options, run.trial_runner.options(), run.tensors, *messages_),
      base_(std::move(base)),
      self_spread_(self_spread),
      lanes_(lanes) {
  context_.run = run.run;
  context_.earlier_s = run.elapsed_s();
  context_.prepared_s = run.prepared_s;
  for (const store::TrialRecord& trial : run.trials) {
    context_.trials.push_back(outline_of(trial));
    context_.note_edits(trial);
  }
}

Station::~Station() = default;

std::shared_ptr<void> Station::bind_thread() {
  return std::make_shared<Placed>(device_.placement);
}

PreparedDevice Station::prepare() {
  const Turns::Turn turn(context_.turns);
  trial::TrialRunner& trial_runner = context_.trial_runner;
  trial_runner.set_base(base_);
  PreparedDevice about;
  about.reading.name = device_.name;
  if (self_spread_) {
    context_.self_spread = *self_spread_;
  } else {
    const trial::TrialRunner::SelfComparison& self = trial_runner.base_against_itself();
    context_.self_spread = self.spread;
    about.reading.us = self.pair.base_median_us;
    about.reading.self_ratio = self.pair.ratio;
  }
  about.reading.self_spread = context_.self_spread;
  about.reading.processors = processor_list(device_.placement.host);
  about.reading.processors_of_workers = processor_list(device_.placement.workers);
  drafting_.emplace(context_);
  about.can_draft = context_.options.strategy.drafts > 1;
  return about;
}

store::TrialRecord Station::judge(Job& job) {
  std::vector<Place> places;
  places.push_back(std::move(job.place));
  struct GiveBack {  // whatever is thrown: another device may judge the place
    std::vector<Place>& places;
    Job& job;
    ~GiveBack() { job.place = std::move(places.front()); }
  } const give_back{places, job};
  drafting_->draft(job.generation, job.knowledge->spaces, job.knowledge->individuals, places);
  for (Draft& draft : places.front().drafts) wait_for_build(context_, draft);
  const Turns::Turn turn(context_.turns);
  take_news();
  store::TrialRecord record =
      run_best_of(context_, static_cast<int>(context_.trials.size()), job.generation, places.front());
  record.place = job.place_number();
  record.device = device_.name;
  expect_to_live(record);
  return record;
}

// Where the device itself may be what failed, the base must still pass there; else the next trials would all be refused
// for what is not their fault.
void Station::expect_to_live(const store::TrialRecord& trial) {
  if (!may_be_the_device(trial)) return;
  const verify::GateReport report = context_.trial_runner.verify(base_, fresh_seed());
  if (!report.passed())
    throw Error(ErrorCode::no_device,
                fmt::format("after a trial that ended as {} ({}) the base does not pass there any more: {}",
                            to_string(trial.verdict), trial.reason.substr(0, 120), report.reason),
                device_.name);
}

void Station::learn(const store::TrialRecord& trial) {
  context_.note_edits(trial);  // at once: places that are proposed next may have these sources
  const std::lock_guard lock(news_mutex_);
  news_.push_back(outline_of(trial));
}

void Station::take_news() {
  const std::lock_guard lock(news_mutex_);
  for (store::TrialRecord& trial : news_) context_.trials.push_back(std::move(trial));
  news_.clear();
}

trial::Phases Station::phases() const {
  trial::Phases all = context_.trial_runner.phases();
  all += context_.draft_phases;
  return all;
}

}  // namespace heed::evolve
