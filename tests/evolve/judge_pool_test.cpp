// Devices that share places, by stand-ins that say when and how each place ends.
#include <atomic>
#include <csignal>
#include <map>
#include <set>
#include <thread>

#include "evolve/judge_pool.hpp"
#include "evolve/turns.hpp"
#include "testing.hpp"

namespace heed::evolve {
namespace {

// Judges what its script says of a place; others pass.
class Scripted final : public DeviceJudge {
 public:
  using Script = std::function<void(const Job&)>;
  explicit Scripted(std::string name, Script script = {}, int lanes = 1)
      : name_(std::move(name)), script_(std::move(script)), lanes_(lanes) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] int lanes() const override { return lanes_; }
  [[nodiscard]] std::shared_ptr<void> bind_thread() override { return nullptr; }
  PreparedDevice prepare() override {
    if (refuses) throw Error(ErrorCode::unsupported, "too little memory");
    return {.reading = {.name = name_}};
  }
  store::TrialRecord judge(Job& job) override {
    if (script_) script_(job);
    store::TrialRecord trial;
    trial.device = name_;
    trial.place = job.index;
    return trial;
  }
  bool refuses = false;

 private:
  std::string name_;
  Script script_;
  int lanes_;
};

// Hands out `places` places, those that come back first.
class Counting : public PoolOwner {
 public:
  explicit Counting(int places) : places_(places) {}
  void prepared(std::size_t device, const PreparedDevice&) override { ready.insert(device); }
  void all_prepared() override { EXPECT_TRUE(judged.empty()); }
  std::optional<Job> next(std::size_t) override {
    if (!back_.empty()) {
      Job job = std::move(back_.back());
      back_.pop_back();
      return job;
    }
    if (next_ == places_) return std::nullopt;
    Job job;
    job.index = next_++;
    return job;
  }
  void finished(std::size_t device, const Job& job, store::TrialRecord trial) override {
    EXPECT_EQ(trial.place, job.index);
    EXPECT_TRUE(judged.emplace(job.index, device).second) << job.index << " twice";
    if (on_finished) on_finished();
  }
  void lost(std::size_t device, std::optional<Job> job, const std::string& why) override {
    reasons[device] = why;
    if (job) strikes[job->index] = job->devices_lost;
    if (job) put_back(device, std::move(*job));
  }
  void put_back(std::size_t, Job job) override { back_.push_back(std::move(job)); }
  void tick() override {}

  std::map<int, std::size_t> judged;  ///< places, and who judged them
  std::set<std::size_t> ready;
  std::map<std::size_t, std::string> reasons;
  std::map<int, int> strikes;
  std::function<void()> on_finished;

 private:
  int places_;
  int next_ = 0;
  std::vector<Job> back_;
};

using Devices = std::vector<std::unique_ptr<DeviceJudge>>;

Devices devices_of(std::vector<Scripted*> all) {
  Devices devices;
  for (Scripted* one : all) devices.emplace_back(one);
  return devices;
}

TEST(JudgePool, EveryPlaceIsJudgedOnce) {
  for (const int lanes : {1, 2}) {
    const Devices devices = devices_of({new Scripted("a", {}, lanes), new Scripted("b", {}, lanes), new Scripted("c")});
    Counting owner(40);
    judge_on(devices, owner);
    EXPECT_EQ(owner.judged.size(), 40U);
    EXPECT_EQ(owner.ready.size(), 3U);
    EXPECT_TRUE(owner.reasons.empty());
  }
}

// No device waits for another one: while the first is at its place, the second judges all others.
TEST(JudgePool, ASlowDeviceHoldsNobodyUp) {
  std::atomic<int> others{0};
  const Devices devices = devices_of({new Scripted("slow",
                                                   [&](const Job&) {
                                                     while (others < 9) std::this_thread::yield();
                                                   }),
                                      new Scripted("fast", [&](const Job&) { ++others; })});
  Counting owner(10);
  judge_on(devices, owner);
  EXPECT_EQ(owner.judged.size(), 10U);
  std::size_t of_slow = 0;
  for (const auto& [place, device] : owner.judged) of_slow += device == 0 ? 1 : 0;
  EXPECT_EQ(of_slow, 1U);
}

TEST(JudgePool, ADeviceThatDiesCostsItsPlaceAlone) {
  std::atomic<int> judged{0};
  const Devices devices = devices_of({new Scripted("dies",
                                                   [&](const Job&) {
                                                     if (judged++ == 2) throw std::runtime_error("fell off the bus");
                                                   }),
                                      new Scripted("lives", [&](const Job&) {
                                        while (judged < 3) std::this_thread::yield();
                                      })});
  Counting owner(60);
  judge_on(devices, owner);
  EXPECT_EQ(owner.judged.size(), 60U);
  EXPECT_EQ(owner.reasons, (std::map<std::size_t, std::string>{{0, "fell off the bus"}}));
  ASSERT_EQ(owner.strikes.size(), 1U);
  EXPECT_EQ(owner.strikes.begin()->second, 1);
  EXPECT_EQ(owner.judged.at(owner.strikes.begin()->first), 1U) << "the other one judged its place";
}

TEST(JudgePool, ADeviceThatCannotBePreparedIsLeftOut) {
  auto* refused = new Scripted("refused");
  refused->refuses = true;
  const Devices devices = devices_of({refused, new Scripted("lives")});
  Counting owner(5);
  judge_on(devices, owner);
  EXPECT_EQ(owner.judged.size(), 5U);
  EXPECT_EQ(owner.reasons.at(0), "too little memory");
  EXPECT_EQ(owner.ready, std::set<std::size_t>{1});
}

TEST(JudgePool, WithoutDevicesLeftTheSearchEnds) {
  const auto dies = [](const Job&) { throw Error(ErrorCode::internal, "an illegal address"); };
  const Devices devices = devices_of({new Scripted("a", dies), new Scripted("b", dies)});
  Counting owner(5);
  try {
    judge_on(devices, owner);
    FAIL() << "nobody was left";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::no_device);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("no device of the run is left"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("an illegal address"));
  }
  EXPECT_EQ(owner.reasons.size(), 2U);
}

// Whoever decides may fail, as a disk that is full: all threads end.
TEST(JudgePool, AnErrorOfTheOwnerEndsAll) {
  const Devices devices = devices_of({new Scripted("a"), new Scripted("b", {}, 2)});
  Counting owner(100);
  owner.on_finished = [&] {
    if (owner.judged.size() == 4) throw Error(ErrorCode::store, "the disk is full");
  };
  EXPECT_THROW(judge_on(devices, owner), Error);
  EXPECT_EQ(owner.judged.size(), 4U);
}

// Places that somebody writes while no device has anything to do.
TEST(JudgePool, PlacesThatAreAwaitedKeepTheSearchOpen) {
  struct Awaiting final : Counting {
    using Counting::Counting;
    std::optional<Job> next(std::size_t device) override {
      return is_awaiting() ? std::nullopt : Counting::next(device);
    }
    void tick() override { ++ticks; }
    [[nodiscard]] bool is_awaiting() const override { return ticks < 3; }
    int ticks = 0;
  };
  const Devices devices = devices_of({new Scripted("a"), new Scripted("b")});
  Awaiting owner(4);
  judge_on(devices, owner);
  EXPECT_EQ(owner.judged.size(), 4U);
}

TEST(JudgePool, NoPlacesNoWork) {
  const Devices devices = devices_of({new Scripted("a")});
  Counting owner(0);
  judge_on(devices, owner);
  EXPECT_TRUE(owner.judged.empty());
}

TEST(Turns, AreHadInTheOrderInWhichTheyAreAskedFor) {
  Turns turns;
  std::vector<int> order;
  std::vector<std::thread> threads;
  {
    const Turns::Turn first(turns);
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        const Turns::Turn turn(turns);
        order.push_back(i);
      });
      while (turns.waiting() < static_cast<std::uint64_t>(i) + 1) std::this_thread::yield();
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace heed::evolve
