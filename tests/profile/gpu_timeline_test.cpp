// Timelines out of Nsight Systems' exports, and a stand-in for the program itself.
#include "profile/gpu_timeline.hpp"

#include "base/files.hpp"
#include "device/device.hpp"
#include "profile/nsys.hpp"
#include "testing.hpp"

namespace heed::profile {
namespace {

using testing_support::expect_error;
using testing_support::TemporaryFolder;

// As nsys 2025 writes them; columns that nobody reads are empty.
constexpr const char* kGpuTrace =
    "Start (ns),Duration (ns),CorrId,GrdX,Bytes (MB),Device,Strm,Name\n"
    "1000,1000,1,,4.0,GPU (0),7,[CUDA memcpy Host-to-Device]\n"
    "1500,1000,2,8,,GPU (0),7,heed_forward\n"
    "4500,1000,3,8,,GPU (0),7,heed_forward\n"
    "5500,500,4,,,GPU (0),7,[CUDA memset]\n"
    "7500,1500,5,8,,GPU (0),7,\"void fill<int, (bool)1>(int *, \"\"x\"\")\"\n"
    "9000,2000,6,8,,GPU (0),7,heed_forward\n";
constexpr const char* kRangeTrace =
    "Start (ns),End (ns),Duration (ns),DurChild (ns),Name,PID,TID,RangeStack\n"
    "0,3000,3000,0,\"heed:gate fwd_sm80:block_m=64,x=1\",1,1,:1\n"
    "4000,6000,2000,0,heed:gate fwd_sm80,1,1,:2\n"
    "6000,21000,15000,0,heed:measure fwd_sm80,1,1,:3\n"
    "21000,22000,1000,0,:other,1,1,:4\n";

TEST(GpuTimeline, NumbersAreThoseOfTheExport) {
  const TimelineSummary s = summarise({read_gpu_trace(kGpuTrace), read_range_trace(kRangeTrace)}, "heed_forward");
  EXPECT_EQ(s.kernels, 4U);
  EXPECT_EQ(s.copies, 1U);
  EXPECT_EQ(s.sets, 1U);
  EXPECT_NEAR(s.seconds, 10e-6, 1e-12);     // 1000 to 11000 ns
  EXPECT_NEAR(s.busy_share, 0.65, 1e-9);    // 1000-2500, 4500-6000, 7500-11000
  EXPECT_NEAR(s.kernel_share, 0.55, 1e-9);  // 1500-2500, 4500-5500, 7500-11000
  EXPECT_NEAR(s.copy_seconds, 1e-6, 1e-12);
  EXPECT_NEAR(s.overlap_share, 0.5, 1e-9);  // 1500-2000
  EXPECT_EQ(s.gaps.count, 3U);              // 2, 2 and 0 us
  EXPECT_NEAR(s.gaps.median_us, 2, 1e-9);
  EXPECT_NEAR(s.gaps.lower_quartile_us, 1, 1e-9);
  EXPECT_NEAR(s.gaps.upper_quartile_us, 2, 1e-9);
  EXPECT_NEAR(s.gaps.largest_us, 2, 1e-9);
  EXPECT_EQ(s.own_gaps.count, 1U);  // the third follows another kernel
  ASSERT_EQ(s.ranges.size(), 3U);
  EXPECT_EQ(s.ranges[0].name, "measure");
  EXPECT_NEAR(s.ranges[0].busy_seconds, 3.5e-6, 1e-12);
  EXPECT_EQ(s.ranges[1].name, "gate");
  EXPECT_EQ(s.ranges[1].count, 2U);
  EXPECT_NEAR(s.ranges[1].seconds, 5e-6, 1e-12);
  EXPECT_NEAR(s.ranges[1].busy_seconds, 3e-6, 1e-12);
  EXPECT_EQ(s.ranges[2].name, "other");
  EXPECT_EQ(s.ranges[2].busy_seconds, 0);
}

TEST(GpuTimeline, NamesKeepTheirCommasAndQuotes) {
  EXPECT_EQ(read_gpu_trace(kGpuTrace)[4].name, "void fill<int, (bool)1>(int *, \"x\")");
  EXPECT_EQ(read_range_trace(kRangeTrace)[0].name, "gate fwd_sm80:block_m=64,x=1");
  EXPECT_EQ(read_gpu_trace("Start (ns),Duration (ns),Name\r\n1,2,k\r\n")[0].name, "k");
}

TEST(GpuTimeline, KernelsOfTwoGpusHaveNoGapBetweenThem) {
  const GpuTimeline two{read_gpu_trace("Start (ns),Duration (ns),Device,Name\n0,1000,a,k\n500,1000,b,k\n3000,1000,a,k\n"
                                       "1500,500,b,k\n"),
                        {}};
  const TimelineSummary s = summarise(two, "k");
  EXPECT_EQ(s.own_gaps.count, 2U);
  EXPECT_NEAR(s.own_gaps.largest_us, 2, 1e-9);
  EXPECT_NEAR(s.own_gaps.median_us, 1, 1e-9);
  EXPECT_TRUE(s.ranges.empty());
}

TEST(GpuTimeline, NoKernelIsASentence) {
  expect_error(ErrorCode::invalid_input, "holds no kernel", [] { (void)summarise({}, "k"); });
  expect_error(ErrorCode::invalid_input, "holds no kernel", [] {
    (void)summarise({read_gpu_trace("Start (ns),Duration (ns),Name\n0,1,[CUDA memset]\n"), {}}, "k");
  });
}

TEST(GpuTimeline, WhatIsCutOrNoReportIsASentence) {
  const auto refused = [](const std::string& csv, const std::string& words) {
    expect_error(ErrorCode::invalid_input, words, [&] { (void)read_gpu_trace(csv); });
  };
  refused("", "it is empty");
  refused("no report\n", "names no column \"Start (ns)\"");
  refused("Start (us),Duration (us),Name\n1,2,k\n", "names no column \"Start (ns)\"");
  refused("Start (ns),Duration (ns),Name\n1,2\n", "line 2 has 2 fields where the first has 3: it is truncated");
  refused("Start (ns),Duration (ns),Name\n1,2,\"void k<in", "a quote of line 2 does not end: it is truncated");
  refused("Start (ns),Duration (ns),Name\n1,x,k\n", "has \"x\" for Duration (ns), which is no whole number");
  refused("Start (ns),Duration (ns),Name\n1,-2,k\n", "line 2 ends before it begins");
  // Wherever the export is cut, it is read or refused, and never read as longer than it is.
  const std::string whole = kGpuTrace;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    try {
      EXPECT_LE(read_gpu_trace(whole.substr(0, at)).size(), 6U);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    }
  }
  expect_error(ErrorCode::invalid_input, "nvtx_pushpop_trace of Nsight Systems cannot be read",
               [] { (void)read_range_trace("Start (ns),Name\n"); });
}

// A shell script in the place of nsys: `profile` leaves a recording, `stats` exports, both as a test wants it.
class NsysStandIn : public ::testing::Test {
 protected:
  void install(const std::string& on_profile, const std::string& on_stats) {
    write_file_atomically(folder_.file("gpu.csv"), kGpuTrace, ErrorCode::internal);
    write_file_atomically(folder_.file("ranges.csv"), kRangeTrace, ErrorCode::internal);
    write_file_atomically(folder_.file("nsys"),
                          "#!/bin/sh\necho \"$@\" >> " + folder_.file("asked") + "\ncase $1 in\nprofile) " +
                              on_profile + " ;;\nstats) " + on_stats + " ;;\nesac\n",
                          ErrorCode::internal);
    std::filesystem::permissions(folder_.file("nsys"), std::filesystem::perms::owner_all);
  }
  GpuTimeline recorded(double limit_s = 20) {
    const Workload workload = parse_workload("b1h8l512d64:bf16");
    const Variant variant = parse_variant("fwd_sm80:kv_groups=2", workload, gpu_limits("sm_90a"));
    return record_timeline(folder_.file("nsys"),
                           nsys_command("/opt/heed", variant, workload, folder_.file("recording")),
                           folder_.file("recording"), folder_.path(), limit_s);
  }
  [[nodiscard]] std::string leaves() const { return "touch " + folder_.file("recording.nsys-rep"); }
  [[nodiscard]] std::string exports() const {
    return "cp " + folder_.file("gpu.csv") + " " + folder_.file("timeline_cuda_gpu_trace.csv") + "; cp " +
           folder_.file("ranges.csv") + " " + folder_.file("timeline_nvtx_pushpop_trace.csv");
  }
  TemporaryFolder folder_;
};

TEST_F(NsysStandIn, RecordsTheVariantAgainstItselfAndReadsBothExports) {
  install(leaves(), exports());
  const GpuTimeline timeline = recorded();
  EXPECT_EQ(timeline.activities.size(), 6U);
  EXPECT_EQ(timeline.ranges.size(), 4U);
  const std::string asked = read_file(folder_.file("asked"), ErrorCode::internal);
  const Workload workload = parse_workload("b1h8l512d64:bf16");
  const std::string name = describe(parse_variant("fwd_sm80:kv_groups=2", workload, gpu_limits("sm_90a")));
  EXPECT_THAT(asked, ::testing::StartsWith("profile -t cuda,nvtx "));
  EXPECT_THAT(asked, ::testing::HasSubstr(" /opt/heed bench " + name + " --against " + name +
                                          " --shape b1h8l512d64:bf16 --device cuda\n"));
  EXPECT_THAT(asked, ::testing::HasSubstr("stats --report cuda_gpu_trace --report nvtx_pushpop_trace --format csv"));
}

TEST_F(NsysStandIn, FailuresAreSentences) {
  install("echo 'a driver that nobody knows'; exit 3", exports());
  expect_error(ErrorCode::unsupported, "failed recording (exit code 3): a driver that nobody knows",
               [&] { (void)recorded(); });
  install("true", exports());
  expect_error(ErrorCode::invalid_input, "has left no recording at", [&] { (void)recorded(); });
  install(leaves(), "exit 1");
  expect_error(ErrorCode::unsupported, "failed exporting (exit code 1): it printed nothing", [&] { (void)recorded(); });
  install("kill -9 $$", exports());
  expect_error(ErrorCode::unsupported, "was ended by signal 9 while recording", [&] { (void)recorded(); });
  install("sleep 30", exports());
  expect_error(ErrorCode::unsupported, "did not end recording within", [&] { (void)recorded(0.2); });
  std::filesystem::remove(folder_.file("nsys"));
  expect_error(ErrorCode::unsupported, "Nsight Systems", [&] { (void)recorded(); });
}

TEST_F(NsysStandIn, ReportsThatAreSkippedAreEmpty) {
  install(leaves(), "echo 'SKIPPED: it does not contain CUDA trace data.'");
  const GpuTimeline timeline = recorded();
  EXPECT_TRUE(timeline.activities.empty());
  expect_error(ErrorCode::invalid_input, "holds no kernel", [&] { (void)summarise(timeline, "k"); });
}

}  // namespace
}  // namespace heed::profile
