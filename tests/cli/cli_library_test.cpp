// heed library: what it passes on a CPU, what it refuses, and on the stand-in for the CUDA driver, whose kernels
// compute nothing, that it says so; heed prebuild.
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "command_line.hpp"
#include "jit/build.hpp"
#include "jit/toolchain.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;

constexpr const char* kShape = "b1h2l33k40d16:fp32";

class CliLibrary : public Cli {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(stub())) stub_is_there_ = false;
  }
  static std::filesystem::path stub() {
    return std::filesystem::path(testing_support::kHeedBinary).parent_path() / "tests" / "stub";
  }
  // With the stand-in for the driver, and a compute-sanitizer that runs what it is given, or ends with `verdict`.
  [[nodiscard]] std::string on_stub(const std::string& verdict = "") const {
    const std::string script = "#!/bin/sh\nwhile [ \"$1\" != \"--print-limit\" ]; do shift; done; shift 2\n\"$@\"\n";
    const std::string saying =
        "#!/bin/sh\necho '========= Invalid __global__ read of size 2 bytes'\nexit " + verdict + "\n";
    const std::string path = folder_.file("compute-sanitizer");
    write_file_atomically(path, verdict.empty() ? script : saying, ErrorCode::internal);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return "LD_LIBRARY_PATH=" + stub().string() + ":$LD_LIBRARY_PATH PATH=" + folder_.path().string() + ":$PATH";
  }
  [[nodiscard]] static bool has_nvrtc() {
    try {
      (void)jit::describe_nvrtc();
      return true;
    } catch (const Error&) {
      return false;
    }
  }
  static nlohmann::json evidence_in(const std::string& path) {
    return nlohmann::json::parse(read_file(path, ErrorCode::internal));
  }
  bool stub_is_there_ = true;
};

TEST_F(CliLibrary, CasesPassOnACpuAndLeaveEvidence) {
  const std::string path = folder_.file("cases.json");
  const Printed run = heed_command(std::string("library cases --device cpu --shapes ") + kShape +
                                   ",b2h2l20k30d16:fp32:sinks " + cache() + " --evidence " + path);
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  const nlohmann::json evidence = evidence_in(path);
  for (const char* key :
       {"schema", "what", "device", "arch", "driver", "heed", "source_digest", "referee", "date", "table"})
    EXPECT_TRUE(evidence.contains(key)) << key;
  EXPECT_EQ(evidence["what"], "library_cases");
  EXPECT_EQ(evidence["complete"], true);
  ASSERT_EQ(evidence["rows"].size(), 1U);
  EXPECT_EQ(evidence["rows"][0]["cases_passed"], 2);
  EXPECT_EQ(evidence["rows"][0]["families"]["fwd_cpu"], 2);
}

TEST_F(CliLibrary, CasesRunWhatAFileOfProgramsHas) {
  const std::string programs = folder_.file("a.programs");
  const Printed built =
      heed_command("programs build --arch native --dtypes fp32 --dims 32 --masks none --samples 2 --most 1 " + cache() +
                   " -o " + programs);
  ASSERT_EQ(built.code, 0) << built.err;
  const Printed run = heed_command(std::string("library cases --json --device cpu --shapes ") + kShape +
                                   ",b1h2l33d16:fp16 --programs " + programs + " " + cache());
  EXPECT_EQ(run.code, 0) << run.err;
  const nlohmann::json row = nlohmann::json::parse(run.out)["rows"][0];
  EXPECT_EQ(row["cases_passed"], 1);
  EXPECT_EQ(row["cases_refused"], 1) << "no program computes fp16";
}

TEST_F(CliLibrary, WrongOutputFailsUnderEveryTool) {
  if (!stub_is_there_) GTEST_SKIP() << "built without CUDA support";
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  const std::string path = folder_.file("cases.json");
  const std::string command =
      "library cases --device cuda --families fwd_sm80 --shapes b1h2l64d64,b1h1l33d80:fp32 --sanitize " + cache() +
      " --evidence " + path;
  const Printed run = heed_command(command, on_stub());
  EXPECT_EQ(run.code, 1) << run.out << run.err;
  nlohmann::json evidence = evidence_in(path);
  ASSERT_EQ(evidence["rows"].size(), 5U) << run.err;
  for (const nlohmann::json& row : evidence["rows"]) {
    EXPECT_EQ(row["passed"], false) << row;
    EXPECT_EQ(row["cases_passed"], 0) << row;
    EXPECT_EQ(row["cases_refused"], 1) << row;
    ASSERT_EQ(row["failures"].size(), 1U) << row;
    EXPECT_EQ(row["failures"][0]["workload"], "b1h2l64d64:fp16");
  }
  // Rows that the file has are not measured again; those it lacks are.
  evidence["rows"].erase(2);
  write_file_atomically(path, evidence.dump(), ErrorCode::internal);
  EXPECT_EQ(heed_command(command + " --resume", on_stub("99")).code, 1);
  const nlohmann::json rows = evidence_in(path)["rows"];
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_EQ(rows[1]["tool"], "memcheck");
  EXPECT_EQ(rows[4]["tool"], "racecheck");
  EXPECT_THAT(rows[4]["reason"].get<std::string>(), HasSubstr("Invalid __global__ read"));
  evidence["source_digest"] = "of other sources";
  write_file_atomically(path, evidence.dump(), ErrorCode::internal);
  expect_refusal(command + " --resume", 2, "its \"source_digest\" is another", on_stub());
}

TEST_F(CliLibrary, CasesAreRefusedBeforeTheyRun) {
  expect_refusal("library cases --device cpu", 2, "no workloads: give --cases FILE");
  expect_refusal("library cases --device cpu --cases /no/such/file", 2, "/no/such/file");
  expect_refusal("library cases --device cpu --shapes b1h2l64", 2, "b1h2l64");
  expect_refusal(std::string("library cases --device cpu --families fwd_none --shapes ") + kShape, 2, "unknown family");
  expect_refusal(std::string("library cases --device cpu --sanitize --shapes ") + kShape, 1, "an NVIDIA GPU");
  expect_refusal(std::string("library cases --device cpu --evidence /proc/none/a.json --shapes ") + kShape, 1,
                 "/proc/none");
  EXPECT_EQ(heed_command(std::string("library cases --device cpu --resume --shapes ") + kShape).code, 2);
  EXPECT_EQ(heed_command("library").code, 2);
}

TEST_F(CliLibrary, ThreadsPassOnACpu) {
  const std::string path = folder_.file("threads.json");
  const Printed run = heed_command(
      std::string("library threads --device cpu --threads 3 --streams 2 --round 2 --seconds 0.1 --shapes ") + kShape +
      " " + cache() + " --evidence " + path);
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  const nlohmann::json evidence = evidence_in(path);
  EXPECT_EQ(evidence["what"], "library_threads");
  EXPECT_EQ(evidence["options"]["streams"], 2);
  ASSERT_EQ(evidence["rows"].size(), 1U);
  EXPECT_EQ(evidence["rows"][0]["threads"], 3);
  EXPECT_EQ(evidence["rows"][0]["differed"], 0);
  EXPECT_GE(evidence["rows"][0]["looks"].get<int>(), 6);
}

TEST_F(CliLibrary, ThreadsSayWhatIsWrong) {
  EXPECT_EQ(heed_command("library threads --device cpu --threads 0").code, 2);
  EXPECT_EQ(heed_command("library threads --device cpu --seconds -1").code, 2);
  expect_refusal(
      std::string("library threads --device cpu --threads 1 --shapes ") + kShape + ",b1h2l20d16:fp32 " + cache(), 2,
      "1 threads cannot run 2 plans");
  if (!stub_is_there_ || !has_nvrtc()) return;
  const Printed run =
      heed_command("library threads --json --device cuda --seconds 0.1 --shapes b1h2l64d64 " + cache(), on_stub());
  EXPECT_EQ(run.code, 1) << run.err;
  for (const nlohmann::json& row : nlohmann::json::parse(run.out)["rows"])
    EXPECT_THAT(row["failure"].get<std::string>(), HasSubstr("by itself: ")) << row;
}

TEST_F(CliLibrary, TimesAreBesideAWorkersAndAnArenas) {
  const std::string path = folder_.file("times.json");
  const std::string command = "library times --device cpu --measure-limit 0.1 " + cache() + " --evidence " + path;
  Printed run = heed_command(command + " --limit 1000 --shapes " + kShape);
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  nlohmann::json evidence = evidence_in(path);
  EXPECT_EQ(evidence["what"], "library_times");
  const nlohmann::json row = evidence["rows"][0];
  EXPECT_GT(row["worker_us"].get<double>(), 0);
  EXPECT_GT(row["library_us"].get<double>(), 0);
  EXPECT_FALSE(row.contains("arena_us"));
  // A time of an arena that no worker can have.
  const std::string arena = folder_.file("arena.json");
  nlohmann::json stored = {
      {"what", "arena"},
      {"device", evidence["device"]},
      {"rows", {{{"mode", "graph_warm"}, {"workload", kShape}, {"config", row["config"]}, {"heed_us", 1e9}}}}};
  write_file_atomically(arena, stored.dump(), ErrorCode::internal);
  run = heed_command(command + " --limit 1000 --arena " + arena);
  EXPECT_EQ(run.code, 1) << run.out << run.err;
  EXPECT_GT(evidence_in(path)["rows"][0]["arena_difference"].get<double>(), 1000);
  stored["device"] = "another";
  write_file_atomically(arena, stored.dump(), ErrorCode::internal);
  expect_refusal(command + " --arena " + arena, 2, "was measured on another");
  for (const char* text : {"{}", "[1]", "nothing", R"({"what": 3, "rows": []})"}) {
    write_file_atomically(arena, text, ErrorCode::internal);
    expect_refusal(command + " --arena " + arena, 2, "is no evidence of an arena");
  }
  write_file_atomically(arena, R"({"what": "arena", "device": 3, "rows": [3]})", ErrorCode::internal);
  expect_refusal(command + " --arena " + arena, 2, "was measured on another device");
  for (const char* text : {"{}", "nothing", R"({"what": 3})", R"({"what": "library", "rows": [3]})"}) {
    write_file_atomically(arena, text, ErrorCode::internal);
    expect_refusal("library host --show " + arena, 2, "is not what heed library host --evidence writes");
  }
  expect_refusal(command, 2, "nothing to time");
  expect_refusal(command + " --shapes b1h2l33d16:fp32:sinks", 1, "has features");
}

// What two searches found, without their searches.
TEST_F(CliLibrary, NeighboursAreBesideTheBestOfASearch) {
  const std::string programs = folder_.file("a.programs");
  ASSERT_EQ(
      heed_command(
          "programs build --no-champions --arch native --dtypes fp32 --dims 32 --masks none --samples 2 --most 1 " +
          cache() + " -o " + programs)
          .code,
      0);
  const Printed facts = heed_command("doctor --json " + db() + " --device cpu");
  const Printed found = heed_command("library cases --json --device cpu --shapes b1h1l16d32:fp32 " + cache());
  ASSERT_EQ(found.code, 0) << found.err;
  const nlohmann::json header = nlohmann::json::parse(found.out);
  const auto entry = [&](const char* workload) {
    return nlohmann::json{{"workload", workload}, {"arch", header["arch"]}, {"device", header["device"]}};
  };
  nlohmann::json champions = {{"schema", 1},
                              {"what", "champions"},
                              {"champions", nlohmann::json::array()},
                              {"unbeaten", nlohmann::json::array()}};
  champions["unbeaten"].push_back(entry("b1h2l65d32:fp32"));
  champions["champions"].push_back(entry("b1h2l97d32:fp32"));
  champions["champions"][0]["variant"] = "fwd_cpu:unit=vector,threads=1";
  const std::string path = folder_.file("found.json");
  write_file_atomically(path, champions.dump(), ErrorCode::internal);
  const std::string evidence = folder_.file("neighbours.json");
  const std::string command = "library neighbours --device cpu --measure-limit 0.1 --launch-limit 300 --programs " +
                              programs + " " + cache() + " --champions " + path + " --evidence " + evidence;
  const Printed run = heed_command(command + " --limit 1000");
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  const nlohmann::json document = evidence_in(evidence);
  EXPECT_EQ(document["what"], "library_neighbours");
  ASSERT_EQ(document["rows"].size(), 2U);
  for (const nlohmann::json& row : document["rows"]) EXPECT_EQ(row["step"], "rule") << row;
  champions["champions"][0]["device"] = champions["unbeaten"][0]["device"] = "another";
  write_file_atomically(path, champions.dump(), ErrorCode::internal);
  expect_refusal(command, 2, "holds no search on");
  expect_refusal("library neighbours --device cpu --champions /no/such/file", 2, "/no/such/file");
}

TEST_F(CliLibrary, PrebuildBuildsAheadWithoutAGpu) {
  expect_refusal("prebuild --arch sm_90a --shapes b1h2l64", 2, "b1h2l64");
  expect_refusal("prebuild --arch sm_1 --shapes b1h2l64d64", 2, "sm_1");
  if (!has_nvrtc()) HEED_LACKS("nvrtc", "there is no NVRTC");
  const std::string built = folder_.file("built");
  const Printed run = heed_command("prebuild --arch sm_80 --shapes b1h2l64d64", "HEED_BUILT_PROGRAMS=" + built);
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(built)) ++files;
  EXPECT_EQ(files, 1U);
  // Rows of these head dims are padded, as libheed does; of those beyond all programs it says so.
  const Printed padded = heed_command("prebuild --arch sm_80 --shapes b1h2l64d64dv32", "HEED_BUILT_PROGRAMS=" + built);
  EXPECT_EQ(padded.code, 0) << padded.out << padded.err;
  EXPECT_THAT(padded.out + padded.err, HasSubstr("was there, for rows that are padded to 64 elements"));
  const Printed wide = heed_command("prebuild --arch sm_80 --shapes b1h2l64d600", "HEED_BUILT_PROGRAMS=" + built);
  EXPECT_EQ(wide.code, 1);
  EXPECT_THAT(wide.out + wide.err, HasSubstr("head dim 600 is not supported"));
}

}  // namespace
}  // namespace heed
