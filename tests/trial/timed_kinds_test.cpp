// Honest kernels of every kind of problem pass where they are timed: spot checks know what each launch reads and
// writes.
#include <algorithm>

#include "measure/spot_check.hpp"
#include "measure/timed_sets.hpp"
#include "trial/quick_trials.hpp"
#include "variant/family.hpp"

namespace heed::trial {
namespace {

using testing_support::builder;

// So many stops: each is at a random place, half of them with factors of K besides signs.
constexpr int kMeasurements = 4;

class TimedKinds : public ::testing::TestWithParam<const char*> {};

TEST_P(TimedKinds, AnHonestKernelPassesBesideItself) {
  const Workload workload = parse_workload(GetParam());
  const DeviceFacts device = cpu_facts();
  const Family& family = find_family("fwd_cpu");
  const Variant variant = make_variant(family, family.default_config(workload, device), workload);
  const jit::BuildOutcome build = builder().build(
      {.device = DeviceKind::cpu, .arch = device.arch, .source = variant.unit(), .entry = "heed_forward"});
  ASSERT_TRUE(build.artifact) << build.log;
  const LaunchPlan plan = variant.plan(workload, device);
  const auto launches = static_cast<int>(std::min<std::int64_t>(12, measure::most_launches(workload, 3)));
  measure::TimedSets sets(workload, {.sets = 3, .launches = launches, .replays = 2}, LaunchMemory::of(plan), 7);
  const auto arena = std::make_shared<worker::Arena>(sets.arena_bytes());
  worker::Worker worker(DeviceKind::cpu, arena);
  worker.load(0, build.artifact->path.string(), plan);
  worker.load(1, build.artifact->path.string(), plan);
  worker.seal();
  sets.prepare(worker, {{0, plan}, {1, plan}}, 10);
  for (int i = 0; i < kMeasurements; ++i) {
    measure::SpotChecks checks(sets, worker, {0, 1}, 0, 0, 10);
    const auto failure = checks.finish();
    EXPECT_FALSE(failure) << failure->comparison.text;
    (void)worker.time(0, 1, sets.flips(2), 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, TimedKinds,
                         ::testing::Values("b1h8hkv2l1k1500d64:bf16",                     // split keys
                                           "b2h4hkv2l1k600d64:bf16:page=64:key_lengths",  // unused pages
                                           "b3h4hkv2l40k60d64:fp32:causal_bottom_right:blhd:ragged:softcap=20:sinks",
                                           "b3h4hkv2l33k70d64:fp16:causal_bottom_right:window=30:alibi:ragged:page=16",
                                           "b2h2l48k64d64:fp16:dropout=0.2",
                                           "b1h4hkv1l4k300d64:bf16:quantised=kv/int8/token:page=16",
                                           "b2h2l64k96d64:fp32:causal_top_left:prefix=20:relative=32/128:bias=fp32/bk",
                                           "b1h2l256d64:fp16:blocks=64/window1+global1",
                                           "b1h4l48d64:fp32:out_norm=1e-6/h:out_gate=head"),
                         [](const auto& kind) { return "Kind" + std::to_string(kind.index); });

}  // namespace
}  // namespace heed::trial
