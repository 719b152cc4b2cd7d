// Launches that a candidate leaves out where they are timed, of replays so long that a block has one.
#include <optional>
#include <string>

#include "measure/spot_check.hpp"
#include "testing.hpp"
#include "worker/cpu_entry.hpp"

namespace heed::worker {
namespace {

constexpr int kMeasurements = 5;
constexpr int kLaunches = kCpuLead + 2;  // outputs of the lead are those of the replay, for V is constant

// What measurements find of a body that is right for constant V, and is told `replay`, 0 for the lead, `launch` and
// `total`.
std::optional<measure::SpotFailure> spot_failure_of(const std::string& before) {
  const Workload w = parse_workload("b1h4l16d16:fp32");
  measure::TimedSets sets(w, {.sets = 3, .launches = kLaunches, .replays = 1, .outputs = kLaunches},
                          {.workspace_bytes = 0, .semaphores = 0}, 1, verify::InputClass::constant_v);
  const auto arena = std::make_shared<Arena>(sets.arena_bytes());
  Worker worker(DeviceKind::cpu, arena);
  worker.load(
      0,
      build_entry("struct Listed { heed::FeatureParams params; long long blocks; };\n"
                  "struct Shared { unsigned* command; unsigned* status; void* progress; const Listed* list; };\n"
                  "const char* at = reinterpret_cast<const char*>(reinterpret_cast<unsigned long>(params) / 64 "
                  "* 64);\n"
                  "while (*reinterpret_cast<const char* const*>(at) != at - 64) at -= 64;\n"
                  "const auto* shared = reinterpret_cast<const Shared*>(at);\n"
                  "const unsigned replay = shared->command[0] - 1, total = shared->command[1];\n"
                  "const auto launch = reinterpret_cast<const Listed*>(params) - shared->list;\n"
                  "(void)replay; (void)total; (void)launch;\n" +
                  before +
                  "float* o = static_cast<float*>(params->o) + block * 256;\n"
                  "const float* v = static_cast<const float*>(params->v) + block * 256;\n"
                  "for (int i = 0; i < 256; ++i) o[i] = v[i % 16];\n"),
      small_plan(1));
  worker.seal();
  sets.prepare(worker, {{0, small_plan(1)}}, 5);
  (void)worker.time(0, 1, sets.flips(2), 5);
  measure::SpotChecks checks(sets, worker, {0}, 0, 0, 5);
  return checks.finish();
}

TEST(LeftOutLaunches, TheLastOfAReplayIsSeenWhateverIsDrawn) {
  for (int i = 0; i < kMeasurements; ++i) {
    const auto failure = spot_failure_of("if (replay > 0 && launch + 1 == total) return;\n");
    ASSERT_TRUE(failure) << i;
    EXPECT_NE(failure->comparison.finding, Finding::none);
  }
}

TEST(LeftOutLaunches, NoneIsMissedWhereAllRun) {
  for (int i = 0; i < kMeasurements; ++i) {
    const auto failure = spot_failure_of("");
    EXPECT_FALSE(failure) << failure->comparison.text;
  }
}

}  // namespace
}  // namespace heed::worker
