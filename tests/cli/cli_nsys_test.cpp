// heed profile --nsys with a shell script in the place of Nsight Systems.
#include "command_line.hpp"

#include <nlohmann/json.hpp>

namespace heed {
namespace {

class CliNsys : public Cli {
 protected:
  // @param rows of the export, behind its first line
  void install(const std::string& rows, const std::string& on_profile = "touch \"$recording.nsys-rep\"") {
    write_file_atomically(folder_.file("rows.csv"), "Start (ns),Duration (ns),CorrId,Device,Name\n" + rows,
                          ErrorCode::internal);
    write_file_atomically(folder_.file("nsys"),
                          "#!/bin/sh\ncommand=$1\nwhile [ $# -gt 0 ]; do\n  case $1 in -o) recording=$2 ;; --output) "
                          "exports=$2 ;; esac\n  shift\ndone\ncase $command in\nprofile) " +
                              on_profile + " ;;\nstats) cp " + folder_.file("rows.csv") +
                              " \"${exports}_cuda_gpu_trace.csv\" ;;\nesac\n",
                          ErrorCode::internal);
    std::filesystem::permissions(folder_.file("nsys"), std::filesystem::perms::owner_all);
  }
  [[nodiscard]] std::string with_nsys() const { return "PATH=" + folder_.path().string() + ":$PATH"; }
  static constexpr const char* kCommand = "profile fwd_sm80:kv_groups=4 --shape b1h8l512d64 --causal top-left --nsys";
  static constexpr const char* kRows =
      "0,1000,1,GPU,heed_forward\n3000,1000,2,GPU,heed_forward\n3500,1000,3,GPU,[CUDA memcpy Device-to-Host]\n";
};

TEST_F(CliNsys, WithoutNsysTheCommandIsPrinted) {
  if (!find_program("nsys").empty()) GTEST_SKIP() << "there is one";
  const Printed run = heed_command(kCommand);
  EXPECT_EQ(run.code, 0) << run.err;
  for (const char* part : {"nsys profile -t cuda,nvtx ", "--cuda-graph-trace=node", " bench ", "kv_groups=4",
                           "--against", "--shape b1h8l512d64:fp16:causal_top_left --device cuda\n", "-o heed_timeline"})
    EXPECT_THAT(run.out, ::testing::HasSubstr(part));
  EXPECT_EQ(run.out.find('\n'), run.out.size() - 1);
  EXPECT_THAT(run.err, ::testing::HasSubstr("nsys is not on the PATH, so the command was not run"));
  const auto parsed = nlohmann::json::parse(heed_command(std::string(kCommand) + " --json").out);
  EXPECT_EQ(parsed["ran"], false);
  EXPECT_THAT(parsed["reason"].get<std::string>(), ::testing::HasSubstr("not on the PATH"));
}

TEST_F(CliNsys, TheRecordingIsSummarised) {
  install(kRows);
  const std::string report = folder_.file("kept.nsys-rep");
  const Printed run = heed_command(std::string(kCommand) + " --nsys-report " + report, with_nsys());
  EXPECT_EQ(run.code, 0) << run.err;
  for (const char* part : {"2 kernels, 1 copies", "copies took 0.000 s; beside 50.0% of that time a kernel ran",
                           "heed_forward after heed_forward", "2.00", "no range of NVTX was recorded"})
    EXPECT_THAT(run.out, ::testing::HasSubstr(part));
  EXPECT_TRUE(std::filesystem::exists(report));
  const Printed machine = heed_command(std::string(kCommand) + " --json", with_nsys());
  const auto parsed = nlohmann::json::parse(machine.out);
  EXPECT_EQ(parsed["ran"], true);
  EXPECT_EQ(parsed["timeline"]["kernels"], 2);
  EXPECT_NEAR(parsed["timeline"]["own_gaps"]["median_us"].get<double>(), 2, 1e-9);
  EXPECT_NEAR(parsed["timeline"]["overlap_share"].get<double>(), 0.5, 1e-9);
}

TEST_F(CliNsys, FailuresAreSentences) {
  install("", "echo 'no permission'; exit 4");
  expect_refusal(kCommand, 1, "Nsight Systems failed recording (exit code 4): no permission", with_nsys());
  install("");
  expect_refusal(kCommand, 1, "the timeline holds no kernel", with_nsys());
  install("0,1000,1,GPU,\"void k<");
  expect_refusal(kCommand, 1, "it is truncated", with_nsys());
  expect_refusal("profile fwd_cpu --shape b1h8l512d64 --nsys", 2, "--nsys is for GPU kernels");
  expect_refusal("profile fwd_sm80 --shape b1h8l512d64 --nsys --ncu", 2, "excludes");
  expect_refusal("profile fwd_sm80 --shape b1h8l512d64 --nsys-report x", 2, "--nsys");
  expect_refusal(std::string(kCommand) + " --nsys-report /dev/null/x", 1, "/dev/null", with_nsys());
}

}  // namespace
}  // namespace heed
