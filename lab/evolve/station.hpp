/// A device of several: its trial runners, and what it knows of the run.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "evolve/devices.hpp"
#include "evolve/drafting.hpp"
#include "evolve/judge_pool.hpp"
#include "evolve/run_context.hpp"

namespace heed::evolve {

/// Drafts, gates and measures places beside the base on its own device, which it gates and compares with itself there.
/// On a GPU several places are under way: while some wait for compilers another one has the device, which gates and
/// times one thing at a time (RunContext::turns). On a CPU it is one, and everything is built before anything is timed.
class Station final : public DeviceJudge {
 public:
  /// @param run of the whole: what it was asked for, the options of its trial runner, and the trials there are by now
  /// @param base of the run, built
  /// @param self_spread of the base on this device, where the run has recorded it
  /// @param say told, from any thread, what happens here
  /// @param lanes places under way at a time
  Station(const RunContext& run, DeviceOfRun device, trial::Built base, std::optional<double> self_spread,
          std::function<void(const std::string&)> say, int lanes);
  ~Station() override;

  [[nodiscard]] std::string name() const override { return device_.name; }
  [[nodiscard]] int lanes() const override { return lanes_; }
  [[nodiscard]] std::shared_ptr<void> bind_thread() override;
  PreparedDevice prepare() override;
  store::TrialRecord judge(Job& job) override;

  /// A trial that was stored, of whatever device. From any thread.
  void learn(const store::TrialRecord& trial);
  /// What its time went to. When its threads have ended.
  [[nodiscard]] trial::Phases phases() const;
  [[nodiscard]] record::BuildTimes builds() const { return context_.builds.times(); }
  [[nodiscard]] double seconds() const { return context_.elapsed_s() - context_.earlier_s; }

 private:
  class Messages;
  void take_news();
  void expect_to_live(const store::TrialRecord& trial);

  DeviceOfRun device_;
  std::unique_ptr<Messages> messages_;
  RunContext context_;
  trial::Built base_;
  std::optional<double> self_spread_;
  int lanes_;
  std::optional<Drafting> drafting_;
  std::mutex news_mutex_;
  std::vector<store::TrialRecord> news_;
};

}  // namespace heed::evolve
