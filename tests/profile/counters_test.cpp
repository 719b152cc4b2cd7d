// Counters without a GPU: which metrics chips have, what becomes of values, and how their absence is told.
#include "profile/counters.hpp"

#include <set>

#include "device/device.hpp"
#include "process/process.hpp"
#include "profile/collect.hpp"
#include "profile/roofline.hpp"
#include "testing.hpp"

namespace heed::profile {
namespace {

using testing_support::expect_error;
using testing_support::TemporaryFolder;

// CUPTI knows the metrics of every chip without having one.
TEST(Metrics, AreKnownForTheChipsWeBuildFor) {
  try {
    (void)describe_cupti();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  for (const char* chip : {"GA100", "GA102", "AD104", "GH100"}) {
    const MetricSchedule schedule = schedule_metrics({}, chip, metric_choices());
    EXPECT_EQ(schedule.chip, chip);
    EXPECT_GE(schedule.passes, 1U);
    EXPECT_LE(schedule.passes, 60U);
    for (const std::string& key : schedule.missing) EXPECT_EQ(key, "stall_gmma") << chip << " lacks " << key;
  }
  EXPECT_EQ(schedule_metrics({}, "AD104", metric_choices()).metrics.at("tensor_percent"),
            "sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_active");
  expect_error(ErrorCode::unsupported, "cuptiProfilerHostInitialize failed: CUPTI_ERROR_INVALID_CHIP_NAME",
               [] { schedule_metrics({}, "XX100", metric_choices()); });
  expect_error(ErrorCode::unsupported, "none of the metrics",
               [] { schedule_metrics({}, "GH100", {{"x", {"no__such_metric.sum"}}}); });
  const MetricSchedule some =
      schedule_metrics({}, "GH100", {{"x", {"no__such_metric.sum"}}, {"y", {"no.such", "sm__cycles_elapsed.max"}}});
  EXPECT_EQ(some.missing, std::vector<std::string>{"x"});
  EXPECT_EQ(some.metrics.at("y"), "sm__cycles_elapsed.max");
}

TEST(Metrics, ALibraryThatIsNoneIsNamed) {
  try {
    (void)describe_cupti();
  } catch (const Error& error) {
    if (std::string(error.what()).find("built without") != std::string::npos) GTEST_SKIP() << error.what();
  }
  const TemporaryFolder folder;
  write_file_atomically(folder.file("libcupti.so"), "text", ErrorCode::internal);
  expect_error(ErrorCode::unsupported, folder.file("libcupti.so"), [&] { describe_cupti(folder.file("libcupti.so")); });
  expect_error(ErrorCode::unsupported, "lacks cuptiGetVersion", [] { describe_cupti("libm.so.6"); });
  expect_error(ErrorCode::unsupported, "nonexistent", [] { schedule_metrics("/nonexistent/x.so", "GH100", {}); });
}

TEST(Counters, AreTakenByTheirKeys) {
  CounterReading reading;
  reading.values = {{"tensor_percent", 31.5}, {"duration_us", 9250},       {"shared_wavefronts", 1000},
                    {"registers", 168},       {"stall_barrier", 0.5},      {"shared_bank_conflicts", 250},
                    {"stall_wait", 2},        {"stall_long_scoreboard", 0}};
  const Counters c = counters_of(reading);
  EXPECT_EQ(c.tensor_percent, 31.5);
  EXPECT_EQ(c.duration_us, 9.25);
  EXPECT_EQ(c.registers, 168);
  EXPECT_EQ(c.conflict_share(), 0.25);
  EXPECT_FALSE(c.dram_bytes.has_value());
  ASSERT_EQ(c.stalls.size(), 2U);
  EXPECT_EQ(c.stalls[0].reason, "wait");
  EXPECT_FALSE(Counters{}.conflict_share().has_value());
  std::set<std::string> keys;
  for (const MetricChoice& choice : metric_choices()) {
    EXPECT_TRUE(keys.insert(choice.key).second);
    EXPECT_FALSE(choice.names.empty());
  }
}

TEST(Collect, ACpuHasNoneAndSaysSo) {
  const Workload workload = parse_workload("b1h1l32d16:fp32");
  const Reading reading = collect({}, {}, workload, cpu_facts(), {});
  EXPECT_FALSE(reading.counters.has_value());
  EXPECT_THAT(reading.reason, ::testing::HasSubstr("GPU"));
}

TEST(Collect, WithoutADriverTheReasonIsTold) {
  if (probe_cuda().facts) GTEST_SKIP() << "this machine has a GPU";
  const Workload workload = parse_workload("b1h1l64d64");
  const Reading reading = collect({}, {}, workload, gpu_limits("sm_90a"), {});
  EXPECT_FALSE(reading.counters.has_value());
  EXPECT_FALSE(reading.reason.empty());
}

TEST(Roofline, IsXmlWithEveryRoofAndPoint) {
  Roofline r;
  r.title = "a<b & c>d";
  r.peak_flops = 1e15;
  r.roofs = {{"DRAM", 4.8e12, 250}, {"L2", 1.6e13, 64}};
  r.flops = 9.7e13;
  const std::string text = svg(r);
  for (const char* words : {"DRAM 4.8 TB/s", "L2 16 TB/s", "1 PFLOP/s", "reached 97 TFLOP/s, 9.7% of the peak",
                            "a&lt;b &amp; c&gt;d", "250 a byte of DRAM"})
    EXPECT_THAT(text, ::testing::HasSubstr(words));
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf"), std::string::npos);
  const TemporaryFolder folder;
  for (const Roofline& one :
       {r, Roofline{}, Roofline{.title = {}, .peak_flops = 1e9, .roofs = {{"x", 0, 3}}, .flops = 1e8}}) {
    write_file_atomically(folder.file("r.svg"), svg(one), ErrorCode::internal);
    const ProcessResult parsed = run_process(
        {"python3", "-c", "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])", folder.file("r.svg")}, {}, 20);
    if (!parsed.started) GTEST_SKIP() << "no python3";
    EXPECT_TRUE(parsed.ok()) << parsed.output;
  }
}

TEST(Ncu, TheCommandRunsExactlyThisKernel) {
  const Workload workload = parse_workload("b1h8l512d64:bf16");
  const Variant variant = parse_variant("fwd_sm80:kv_groups=2", workload, gpu_limits("sm_90a"));
  const std::string command = ncu_command("/opt/heed", variant, workload);
  EXPECT_THAT(command, ::testing::StartsWith("ncu --target-processes all --clock-control none"));
  EXPECT_THAT(command,
              ::testing::HasSubstr(" /opt/heed verify '" + describe(variant) + "' --shape 'b1h8l512d64:bf16'"));
}

}  // namespace
}  // namespace heed::profile
