/// A search whose trials several devices of a kind judge, each beside the base on itself.
///
/// One run, one store, one population. Compilers are shared. Finalists, ablation and PyTorch are measured on the first
/// device, together, as those of every run.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "evolve/judge_pool.hpp"
#include "evolve/model_places.hpp"
#include "evolve/planner.hpp"
#include "evolve/run_context.hpp"
#include "evolve/station.hpp"

namespace heed::evolve {

/// Screenings of a draft in one round: those of later ones are built while another device may time something.
inline constexpr int kMostDraftsOnProcessors = kDraftsARound;

/// Places under way at a time on a GPU that is alone: one has the device, the others are built. A trial rests on all
/// but the last two before it; those of a generation of five that is proposed whole, with another one under way, on all
/// but three on average. A fourth would save 4% of a search, and its regret on recorded landscapes is larger.
inline constexpr int kPlacesOfOneGpu = 3;
/// Of each of several GPUs: a trial rests on none of all that are under way. With two, four GPUs made 64 trials a
/// minute where one made 27: drafts of a place are built in rounds, one after the other. Sixteen trials under way have
/// the regret of three on recorded landscapes (heed simulate --drafts 12 --noise 0.01 --under-way 16).
inline constexpr int kPlacesOfAGpu = 4;

/// How the trials of several places follow each other.
struct Pace {
  int lanes = 1;  ///< places under way at a time on each device
  bool is_steady =
      false;  ///< whether a place is proposed when one is finished; else a generation, which is built first
};
/// A GPU's trials are steady: each rests on as many before it as can be. On a CPU compilers would disturb what is
/// timed.
Pace pace_of(DeviceKind kind, std::size_t devices);

/// Refuses what several devices cannot share. @throws Error(usage)
void expect_shareable(const record::RunOptions& options, DeviceKind kind, std::size_t devices);

/// The device of a run that was given none to choose from.
DeviceOfRun only_device(const DeviceFacts& device);

class SharedSearch final : private PoolOwner {
 public:
  /// The trial runner of `run` has its base by now. @param floor_us as measured before the search
  SharedSearch(RunContext& run, std::vector<DeviceOfRun> devices, double floor_us);
  SharedSearch(RunContext& run, std::vector<DeviceOfRun> devices, double floor_us, Pace pace);

  /// Goes on behind the trials that are stored, whatever devices judged them.
  /// @throws Error(interrupted), Error(no_device) where all devices are lost
  void run();

 private:
  void prepared(std::size_t device, const PreparedDevice& about) override;
  void all_prepared() override;
  std::optional<Job> next(std::size_t device) override;
  void finished(std::size_t device, const Job& job, store::TrialRecord trial) override;
  void lost(std::size_t device, std::optional<Job> job, const std::string& why) override;
  void put_back(std::size_t device, Job job) override;
  void tick() override;
  [[nodiscard]] bool is_awaiting() const override;

  void replay();
  [[nodiscard]] Planner::Generation places_for(const Planner::Batch& batch, const std::vector<Proposal>& under_way);
  /// The next place, or the rest of a generation. @return whether there is an open place now
  bool propose();
  /// Begins conversations for the next places while devices are at others.
  void ask_ahead();
  void build_open();
  /// What models wrote is built when compilers disturb nothing.
  void open_written();
  [[nodiscard]] bool has_idle_devices();
  /// A trial that is finished: it gets its number.
  void add(store::TrialRecord trial);
  void end();
  void pass_on_messages();
  void say(std::size_t device, const std::string& text);
  void tell_devices();
  void note_in_base(const std::function<void(nlohmann::json&)>& note);

  RunContext& run_;
  double floor_us_;
  Pace pace_;
  KnownTrials known_trials_;
  Planner planner_;
  std::vector<Station*> stations_;  ///< those of `judges_`
  std::vector<DeviceStatus> statuses_;
  std::vector<std::unique_ptr<DeviceJudge>> judges_;
  std::size_t trials_before_ = 0;  ///< those of earlier processes
  double began_s_ = 0;             ///< when the first place was handed out
  bool is_over_ = false;
  std::mutex said_mutex_;
  std::deque<std::string> said_;
  std::unique_ptr<ModelPlaces> models_;  ///< null: knobs alone propose
};

}  // namespace heed::evolve
