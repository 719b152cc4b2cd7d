// What the time of a run went to.
#include "record/time_shares.hpp"

#include <thread>

#include "testing.hpp"

namespace heed::record {
namespace {

trial::Phases some_phases() {
  trial::Phases phases;
  phases.gate = {.wall_s = 4, .busy_s = 1, .recorded_s = 0.5};
  phases.screen = {.wall_s = 1, .busy_s = 0.5, .recorded_s = 0};
  phases.measure = {.wall_s = 3, .busy_s = 2.5, .recorded_s = 0};
  return phases;
}

TEST(TimeShares, OfAGpuAreItsOwnTime) {
  const trial::Shares s = trial::shares_of(some_phases(), 10, true);
  EXPECT_DOUBLE_EQ(s.gate, 0.1);
  EXPECT_DOUBLE_EQ(s.screen, 0.05);
  EXPECT_DOUBLE_EQ(s.measure, 0.25);
  EXPECT_DOUBLE_EQ(s.idle, 0.6);
  EXPECT_DOUBLE_EQ(s.waiting, 0.2);  // outside all phases
}

TEST(TimeShares, OfACpuAreTheWallClockOfPhases) {
  const trial::Shares s = trial::shares_of(some_phases(), 10, false);
  EXPECT_DOUBLE_EQ(s.gate, 0.4);
  EXPECT_DOUBLE_EQ(s.screen, 0.1);
  EXPECT_DOUBLE_EQ(s.measure, 0.3);
  EXPECT_NEAR(s.idle, 0.2, 1e-12);
  EXPECT_NEAR(s.waiting, s.idle, 1e-12);
}

// A worker is not believed more time than has passed, and no share is negative or above 1.
TEST(TimeShares, NoClockIsBelievedTooMuch) {
  trial::Phases phases = some_phases();
  phases.gate.busy_s = 1000;
  phases.screen.busy_s = -3;
  const trial::Shares s = trial::shares_of(phases, 5, true);  // of 8 s at least, which the phases took
  EXPECT_DOUBLE_EQ(s.gate, 0.5);
  EXPECT_DOUBLE_EQ(s.screen, 0);
  EXPECT_NEAR(s.gate + s.screen + s.measure + s.idle, 1, 1e-12);
  EXPECT_DOUBLE_EQ(s.waiting, 0);
  EXPECT_DOUBLE_EQ(trial::shares_of({}, 0, true).idle, 1);
}

TEST(TimeShares, APhaseWithinAnotherIsCountedOnce) {
  trial::PhaseClock clock;
  {
    const trial::Phase measure(clock, &trial::Phases::measure, "a");
    clock.busy->us += 1e6;
    {
      const trial::Phase gate(clock, &trial::Phases::gate, "b");
      clock.busy->us += 2e6;
      clock.busy->recorded_us += 1e6;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  { const trial::Phase screening(clock, &trial::Phases::screen, "c"); }
  clock.busy->us += 1e6;  // of no phase
  EXPECT_DOUBLE_EQ(clock.times.measure.busy_s, 3);
  EXPECT_DOUBLE_EQ(clock.times.measure.recorded_s, 1);
  EXPECT_GE(clock.times.measure.wall_s, 0.002);
  EXPECT_EQ(clock.times.gate.wall_s, 0);
  EXPECT_EQ(clock.times.screen.busy_s, 0);
  EXPECT_GT(clock.times.screen.wall_s, 0);
}

TEST(TimeShares, JsonHoldsSharesAndWhatTheyAreMadeOf) {
  TimeShares time;
  time.of_gpu = true;
  time.phases = some_phases();
  time.seconds = 10;
  time.elsewhere_s = 7;
  const nlohmann::json told = to_json(time);
  EXPECT_EQ(told["of"], "gpu");
  EXPECT_DOUBLE_EQ(told["measure"].get<double>(), 0.25);
  EXPECT_DOUBLE_EQ(told["phases"]["gate"]["recorded_s"].get<double>(), 0.5);
  EXPECT_FALSE(told.contains("no_records"));
  EXPECT_TRUE(told["parts"].empty());
  time.parts = {{"base", 1.5}, {"search", 8}};
  time.builds = {.made = 2, .made_s = 3.5, .waited_s = 1};
  time.builds += {.made = 1, .made_s = 1.5, .waited_s = 0.5};
  const nlohmann::json more = to_json(time);
  EXPECT_EQ(more["parts"],
            nlohmann::json::parse(R"([{"part": "base", "seconds": 1.5}, {"part": "search", "seconds": 8.0}])"));
  EXPECT_EQ(more["builds"], nlohmann::json::parse(R"({"made": 3, "made_s": 5.0, "waited_s": 1.5})"));
  time.of_gpu = false;
  time.no_records = "CUPTI was not found";
  EXPECT_EQ(to_json(time)["of"], "wall");
  EXPECT_EQ(to_json(time)["no_records"], "CUPTI was not found");
}

}  // namespace
}  // namespace heed::record
