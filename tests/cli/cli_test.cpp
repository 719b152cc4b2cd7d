// The command line as a user meets it: what it prints, where, and with which exit code.
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>

#include "base/random.hpp"
#include "folders.hpp"
#include "kernels/contract.hpp"
#include "process/process.hpp"
#include "requirements.hpp"
#include "store/store.hpp"
#include "tensors/npy.hpp"
#include "tensors/safetensors.hpp"
#include "testing.hpp"
#include "workload/half.hpp"

namespace heed {
namespace {

using testing_support::TemporaryFolder;

constexpr double kLimit_s = 600;  // ten times what the longest command here takes on an idle machine

// stdout and stderr apart: "out" holds stdout, "err" stderr.
struct Printed {
  int code = -1;
  std::string out;
  std::string err;
};

Printed heed_command(const std::string& arguments, const std::string& environment = "") {
  const TemporaryFolder folder;
  const std::string command = environment + " " + std::string(testing_support::kHeedBinary) + " " + arguments + " >" +
                              folder.file("out") + " 2>" + folder.file("err");
  const ProcessResult result = run_process({"sh", "-c", command}, {}, kLimit_s);
  EXPECT_FALSE(result.timed_out) << arguments;
  return {result.signal != 0 ? 128 + result.signal : result.exit_code,
          read_file(folder.file("out"), ErrorCode::internal), read_file(folder.file("err"), ErrorCode::internal)};
}

// A failing command says one sentence on stderr, nothing on stdout, and exits with `code`.
void expect_refusal(const std::string& arguments, int code, const std::string& words,
                    const std::string& environment = "") {
  SCOPED_TRACE(arguments);
  const Printed run = heed_command(arguments, environment);
  EXPECT_EQ(run.code, code) << run.err;
  EXPECT_THAT(run.err, ::testing::HasSubstr(words));
  EXPECT_THAT(run.err, ::testing::StartsWith("heed: "));
  EXPECT_EQ(run.err.find("terminate called"), std::string::npos);
}

class Cli : public ::testing::Test {
 protected:
  [[nodiscard]] std::string db() const { return "--db " + folder_.file("a.db"); }
  [[nodiscard]] static std::string cache() { return "--cache " + testing_support::shared_cache().string(); }
  [[nodiscard]] std::string tiny_evolution(int trials = 3) const {
    return "evolve --shape b1h1l48d16:fp32 --device cpu --population 2 --no-peers --measure-limit 0.2 --trials " +
           std::to_string(trials) + " " + db() + " " + cache();
  }
  TemporaryFolder folder_;
};

TEST_F(Cli, LadderRefusesWhatItCannotClimb) {
  expect_refusal("ladder --rungs scalar,swizle", 2, "did you mean \"swizzle\"?");
  expect_refusal("ladder --shape b1h8", 2, "query length is missing");
  expect_refusal("ladder --device cpu", 1, "leave out --device cpu");
  EXPECT_THAT(heed_command("ladder --device cpu --json").out, ::testing::HasSubstr("\"no_device\""));
}

TEST_F(Cli, HelpAndVersion) {
  EXPECT_THAT(heed_command("--help").out, ::testing::HasSubstr("Examples:"));
  EXPECT_EQ(heed_command("--help").code, 0);
  EXPECT_THAT(heed_command("--version").out, ::testing::StartsWith("heed "));
  for (const char* command : {"evolve", "verify", "bench", "show", "runs", "replay", "families", "emit", "build",
                              "doctor", "selftest", "profile", "ladder", "report", "evidence", "run"}) {
    const Printed run = heed_command(std::string(command) + " --help");
    EXPECT_EQ(run.code, 0) << command;
    EXPECT_THAT(run.out, ::testing::AnyOf(::testing::HasSubstr("Example"), ::testing::HasSubstr("Exit code")))
        << command;
  }
}

TEST_F(Cli, WrongUsageExitsWithTwo) {
  expect_refusal("", 2, "subcommand");
  expect_refusal("evovle", 2, "did you mean \"evolve\"?");
  expect_refusal("evolve --no-such-option", 2, "--no-such-option");
  expect_refusal("evolve " + db(), 2, "no workload");
  expect_refusal("evolve --shape b1h8l0d64 " + db(), 2, "l=0 is not positive");
  expect_refusal("evolve --shape b1h8l-4d64 " + db(), 2, "l=-4 is not positive");
  expect_refusal("evolve --shape b1h8l99999999999999999999d64 " + db(), 2, "too large");
  expect_refusal("evolve --shape b1h9hkv2l8d64 " + db(), 2, "multiple of hkv");
  expect_refusal("evolve --shape banana " + db(), 2, "unknown dimension");
  expect_refusal("evolve --shape b1h1l8d16 --dtype fp8 " + db(), 2, "unknown dtype");
  expect_refusal("evolve --shape b1h1l8d16 --causal left " + db(), 2, "unknown mask");
  expect_refusal("evolve --shape b1h1l8d16 --scale -1 " + db(), 2, "finite and positive");
  expect_refusal("evolve --shape b1h1l8d16 --device tpu " + db(), 2, "unknown device");
  expect_refusal("evolve --shape b1h1l8d16 --family fwd_gpu --device cpu " + db() + " " + cache(), 2, "unknown family");
  expect_refusal("evolve --shape b1h1l8d16 --family fwd_cpu, --device cpu " + db() + " " + cache(), 2,
                 "unknown family \"\"");
  expect_refusal("evolve --shape b1h1l8d16 --family fwd_cpu,fwd_cpu --device cpu " + db() + " " + cache(), 2,
                 "fwd_cpu is named twice");
  expect_refusal("evolve --shape b1h1l8d16 --strategy luck --device cpu " + db() + " " + cache(), 2,
                 "unknown strategy");
  expect_refusal("evolve --shape b1h1l8d16 --trials 0 --device cpu " + db() + " " + cache(), 2, "--trials 0");
  expect_refusal("evolve --shape b1h1l8d16 --trials -3 --device cpu " + db() + " " + cache(), 2, "--trials -3");
  expect_refusal("evolve --shape b1h1l8d16 --trials many " + db(), 2, "many");
  expect_refusal("evolve --shape b1h1l8d16 --drafts 0 " + db(), 2, "--drafts");
  expect_refusal("evolve --resume 77 " + db(), 2, "there is no run 77");
  expect_refusal("bench fwd_cpu:blok_m=64 --shape b1h1l8d16 --device cpu " + cache(), 2, "did you mean \"block_m\"?");
  expect_refusal("bench fwd_cpu:block_m=63 --shape b1h1l8d16 --device cpu " + cache(), 2,
                 "knob block_m cannot be \"63\"");
  expect_refusal("families fwd_none", 2, "unknown family");
  expect_refusal("show", 2, "run");
  expect_refusal("replay x", 2, "x");
  expect_refusal("emit fwd_sm80 --shape b1h8l512d64 --arch sm_42", 2, "unknown GPU architecture");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("b.db")));
}

TEST_F(Cli, FailuresExitWithOne) {
  expect_refusal("runs " + db(), 1, "there is no database");
  expect_refusal("evolve --shape b1h1l8d16dv32 --device cpu " + db() + " " + cache(), 1, "value dim 32");
  expect_refusal("evolve --shape b1h1l8d2000 --device cpu " + db() + " " + cache(), 1, "head dim 2000");
  expect_refusal(
      "bench fwd_cpu:unit=vector,gqa=off,tile_rows=12,tile_vectors=4 --shape b1h1l8d16 --device cpu " + cache(), 1,
      "does not fit");
  expect_refusal("evolve --shape b1h1l8d16 --device cpu --compiler no-such-compiler " + db() + " " + cache(), 1,
                 "\"no-such-compiler\" is not on the PATH");
  expect_refusal("evolve --shape b1h1l8d16 --device cpu " + db() + " " + cache(), 1, "no C++ compiler on the PATH",
                 "PATH=/nonexistent");
  expect_refusal("evolve --shape b1h1l8d16 --device cpu --cache /dev/null/x " + db(), 1, "cannot create the folder");
  if (run_process({"nvidia-smi"}, {}, 20).ok()) return;
  expect_refusal("evolve --shape b1h1l8d16 --device cuda " + db() + " " + cache(), 1, "no GPU can be used");
  expect_refusal("selftest --device cuda " + cache(), 1, "no GPU can be used");
  expect_refusal("profile fwd_sm80 --shape b1h8l512d64 " + cache(), 1, "no GPU can be used");
}

TEST_F(Cli, BadTensorFilesAreNamed) {
  write_file_atomically(folder_.file("bad.safetensors"), "12345678901234567890", ErrorCode::internal);
  expect_refusal("evolve --qkv " + folder_.file("none.safetensors") + " " + db(), 1, "No such file");
  expect_refusal("evolve --qkv " + folder_.file("bad.safetensors") + " --device cpu " + db(), 1, "no safetensors file");
  expect_refusal("evolve --q " + folder_.file("bad.safetensors") + " " + db(), 2, "belong together");
  expect_refusal("evolve --qkv a --shape b1h1l8d16 " + db(), 1, "No such file");
  expect_refusal("verify --qkv a --q b " + cache(), 2, "not both");
}

TEST_F(Cli, BadDatabasesAreNamedAndKept) {
  const std::string junk(5000, 'x');
  write_file_atomically(folder_.file("a.db"), junk, ErrorCode::internal);
  expect_refusal("runs " + db(), 1, "corrupt or no SQLite database");
  expect_refusal(tiny_evolution(), 1, "corrupt or no SQLite database");
  EXPECT_EQ(read_file(folder_.file("a.db"), ErrorCode::internal), junk);
}

// A disk that fills up during a run: everything stored so far is there, and the run goes on when there is room.
TEST_F(Cli, AFullDiskStopsARunAndLosesNothing) {
  if (!run_process({"unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", folder_.path().string()}, {}, 20).ok())
    GTEST_SKIP() << "no file system can be mounted here";
  std::filesystem::create_directory(folder_.path() / "small");
  const std::string small = folder_.file("small");
  const std::string evolve =
      std::string(testing_support::kHeedBinary) +
      " evolve --shape b1h1l48d16:fp32 --device cpu --population 2 --no-peers --measure-limit 0.2 --trials 200 --db " +
      small + "/a.db " + cache();
  const ProcessResult result =
      run_process({"unshare", "-rm", "sh", "-c",
                   "mount -t tmpfs -o size=400k tmpfs " + small + " && " + evolve + "; code=$?; cp " + small +
                       "/a.db* " + folder_.path().string() + "; exit $code"},
                  {}, kLimit_s);
  EXPECT_EQ(result.exit_code, 1) << result.output.substr(result.output.size() > 500 ? result.output.size() - 500 : 0);
  EXPECT_THAT(result.output, ::testing::HasSubstr("stored"));
  const auto run = nlohmann::json::parse(heed_command("show 1 --json " + db()).out);
  const auto stored = run["trials"].size();
  EXPECT_GE(stored, 1U);
  EXPECT_LT(stored, 200U);
  const int trials = static_cast<int>(stored) + 2;
  EXPECT_EQ(heed_command("evolve --resume 1 --measure-limit 0.2 --trials " + std::to_string(trials) + " " + db() + " " +
                         cache())
                .code,
            0);
  const auto resumed = nlohmann::json::parse(heed_command("show 1 --json " + db()).out);
  ASSERT_GE(static_cast<int>(resumed["trials"].size()), trials);  // the ablation may add some
  for (std::size_t i = 0; i < stored; ++i) EXPECT_EQ(resumed["trials"][i]["id"], run["trials"][i]["id"]);
}

TEST_F(Cli, EvolveShowRunsAndReplay) {
  const Printed evolve = heed_command(tiny_evolution(4) + " --drafts 2");
  ASSERT_EQ(evolve.code, 0) << evolve.err;
  EXPECT_THAT(evolve.out, ::testing::HasSubstr("of 2 drafts: "));
  EXPECT_THAT(evolve.out, ::testing::HasSubstr("4 trials and 6 drafts"));
  EXPECT_THAT(evolve.out, ::testing::HasSubstr("4/4"));
  EXPECT_THAT(evolve.out, ::testing::HasSubstr("champion"));
  EXPECT_THAT(heed_command("runs " + db()).out, ::testing::HasSubstr("b1h1l48d16:fp32"));
  const Printed show = heed_command("show 1 " + db());
  EXPECT_EQ(show.code, 0);
  EXPECT_THAT(show.out, ::testing::HasSubstr("lineage of trial"));
  EXPECT_THAT(show.out, ::testing::HasSubstr("generation"));
  const auto json = nlohmann::json::parse(heed_command("show 1 --json " + db()).out);
  EXPECT_EQ(json["trials"].size(), 4U);
  EXPECT_EQ(json["trials"][3]["drafts"].size(), 2U);
  EXPECT_EQ(json["state"], "finished");
  // A trial, not the champion: on a busy machine every finalist may be refused for its time.
  const Printed replay =
      heed_command("replay " + std::to_string(json["trials"][0]["id"].get<int>()) + " " + db() + " " + cache());
  EXPECT_THAT(replay.out, ::testing::HasSubstr("the machine code is the same"));
  EXPECT_TRUE(replay.code == 0 || replay.code == 1);
  expect_refusal("replay 999 " + db(), 2, "there is no trial 999");
  expect_refusal("evolve --resume 1 " + db() + " " + cache(), 2, "run 1 is finished");
  expect_refusal("evolve --resume 1 --shape b1h1l8d16 " + db() + " " + cache(), 2, "leave out --shape");
}

// A search that begins with what an earlier one found tries that behind the default.
TEST_F(Cli, EvolveBeginsWithAKnownChampion) {
  const std::string file = folder_.file("champions.json");
  const auto know = [&](const std::string& workload, const std::string& arch, const std::string& variant) {
    const nlohmann::json entry = {{"workload", workload}, {"arch", arch}, {"variant", variant}};
    write_file_atomically(file, nlohmann::json{{"what", "champions"}, {"champions", {entry}}}.dump(),
                          ErrorCode::internal);
    return " --from " + file;
  };
  const auto evolved = [&](const std::string& from) {
    const Printed run = heed_command(tiny_evolution(2) + " --json" + from);
    EXPECT_EQ(run.code, 0) << run.err;
    return std::pair{nlohmann::json::parse(run.out), run.err};
  };
  const auto [plain, silent] = evolved(know("b1h1l48d17:fp32", "x86_64", "fwd_cpu"));
  EXPECT_THAT(silent, ::testing::HasSubstr("names no champion of b1h1l48d16:fp32"));
  const std::string arch = plain["device"]["arch"];
  const std::string variant = plain["trials"][1]["config"];
  EXPECT_NE(plain["trials"][1]["operation"], "recall");
  const auto [again, told] = evolved(know("b1h1l48d16:fp32", arch, variant));
  EXPECT_EQ(again["trials"][1]["operation"], "recall") << told;
  EXPECT_EQ(again["trials"][1]["config"], variant);
  const std::string tiny = tiny_evolution(2);
  expect_refusal(tiny + know("b1h1l48d16:fp32", arch, "fwd_cpu:block_m=-1"), 2, "block_m");
  expect_refusal(tiny + know("b1h1l48d16:fp32", arch, "fwd_sm80"), 2, "name it with --family, too");
  expect_refusal(tiny + " --from " + folder_.file("nowhere"), 2, "nowhere");
  write_file_atomically(file, "{", ErrorCode::internal);
  expect_refusal(tiny + " --from " + file, 2, "is no JSON");
  write_file_atomically(file, "[]", ErrorCode::internal);
  expect_refusal(tiny + " --from " + file, 2, "holds no champions");
  expect_refusal("evolve --resume 1 --from " + file + " " + db() + " " + cache(), 2, "leave out --from");
}

TEST_F(Cli, EvidenceHasItsSchema) {
  ASSERT_EQ(heed_command(tiny_evolution(2) + " --evidence " + folder_.file("e/x.json")).code, 0);
  const auto json = nlohmann::json::parse(read_file(folder_.file("e/x.json"), ErrorCode::internal));
  EXPECT_EQ(json["schema"], 1);
  for (const char* key : {"device", "arch", "driver", "clocks_mhz", "heed", "source_digest", "referee", "peer", "rows"})
    EXPECT_TRUE(json.contains(key)) << key;
  for (const auto& row : json["rows"])
    for (const char* key :
         {"workload", "causal", "variant", "mode", "heed_us", "tflops", "floor_us", "max_abs_err", "rel_rms_err"})
      EXPECT_TRUE(row.contains(key)) << key;
}

TEST_F(Cli, ReportWritesAPage) {
  ASSERT_EQ(heed_command(tiny_evolution(2)).code, 0);
  const std::string page = folder_.file("pages/run.html");
  const Printed run = heed_command("report 1 -o " + page + " " + db());
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, page + ": run 1\n");
  EXPECT_THAT(read_file(page, ErrorCode::internal), ::testing::HasSubstr("</html>"));
  const auto json = nlohmann::json::parse(heed_command("report 1 --json -o " + page + " " + db()).out);
  EXPECT_EQ(json["finished"], true);
  expect_refusal("report 9 -o " + page + " " + db(), 2, "there is no run 9");
  expect_refusal("report 1 -o /dev/null/run.html " + db(), 1, "cannot create the folder");
  expect_refusal("report 1 -o " + folder_.path().string() + " " + db(), 1, "it is a folder");
  expect_refusal("report 1 --db " + folder_.file("none.db"), 1, "there is no database");
  ASSERT_TRUE(run_process({"python3", "-c",
                           "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(\"update runs set state = "
                           "'interrupted', result = 'null'\"); c.commit()",
                           folder_.file("a.db")},
                          {}, 20)
                  .ok());
  EXPECT_THAT(heed_command("report 1 -o " + page + " " + db()).out, ::testing::HasSubstr("not finished"));
}

TEST_F(Cli, EvidenceIsListed) {
  const std::string file = folder_.file("e/x.json");
  const Printed run = heed_command(tiny_evolution(2) + " --evidence " + file);
  ASSERT_EQ(run.code, 0) << run.err;
  const Printed list = heed_command("evidence " + folder_.file("e"));
  EXPECT_EQ(list.code, 0) << list.err;
  EXPECT_THAT(list.out, ::testing::HasSubstr("current"));
  const auto json = nlohmann::json::parse(heed_command("evidence --json " + folder_.file("e")).out);
  EXPECT_EQ(json["files"][0]["current"], true);
  write_file_atomically(folder_.file("e/broken.json"), "{", ErrorCode::internal);
  // Other sources that are built into the same machine code have the same programs; other machine code is stale.
  const auto state = [&] {
    const Printed built = heed_command("evidence --build --json " + folder_.file("e") + " " + cache());
    const auto listed = nlohmann::json::parse(built.out)["files"][1];  // behind broken.json
    return std::pair{listed["current"].get<bool>(), listed["programs"] == 1 && listed["same_programs"] == 1};
  };
  auto evidence = nlohmann::json::parse(read_file(file, ErrorCode::internal));
  ASSERT_EQ(evidence["programs"].size(), 1U);
  EXPECT_EQ(state(), (std::pair{true, false}));
  evidence["source_digest"] = "0123456789abcdef";
  evidence["family_digests"]["fwd_cpu"] = "0123456789abcdef";
  write_file_atomically(file, evidence.dump(), ErrorCode::internal);
  EXPECT_EQ(state(), (std::pair{false, true}));
  evidence["programs"].front() = "0123456789abcdef";
  write_file_atomically(file, evidence.dump(), ErrorCode::internal);
  EXPECT_EQ(state(), (std::pair{false, false}));
  const Printed broken = heed_command("evidence " + folder_.file("e"));
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.out, ::testing::HasSubstr("unreadable"));
  EXPECT_THAT(broken.out, ::testing::HasSubstr("x.json       evolve")) << "the others are listed all the same";
  expect_refusal("evidence " + folder_.file("nowhere"), 2, "there is no folder");
  expect_refusal("evidence --jobs 2", 2, "--build");
}

TEST_F(Cli, SelftestComparesAKernelWithItself) {
  const std::string file = folder_.file("aa.json");
  const Printed run =
      heed_command("selftest --device cpu --aa 2 --measure-limit 0.1 --json --evidence " + file + " " + cache());
  EXPECT_TRUE(run.code == 0 || run.code == 1) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["what"], "selftest_aa");
  EXPECT_EQ(json["rows"][0]["comparisons"], 2);
  EXPECT_EQ(json["rows"][0]["ratios"].size(), 2U);
  EXPECT_THAT(json["rows"][0]["config"].get<std::string>(), ::testing::StartsWith("fwd_cpu:"));
  EXPECT_EQ(json["programs"][json["rows"][0]["variant"].get<std::string>()].get<std::string>().size(), 32U);
  EXPECT_EQ(nlohmann::json::parse(read_file(file, ErrorCode::internal)), json);
  expect_refusal("selftest --device cpu --aa 0 " + cache(), 2, "--aa 0");
  expect_refusal("selftest --device cpu --aa many " + cache(), 2, "many");
  expect_refusal("selftest --device cpu --evidence /dev/null/x.json " + cache(), 1, "cannot create the folder");
}

TEST_F(Cli, JsonIsAloneOnStdout) {
  const Printed evolve = heed_command(tiny_evolution(2) + " --json");
  ASSERT_EQ(evolve.code, 0);
  EXPECT_EQ(nlohmann::json::parse(evolve.out)["trials"].size(), 2U);
  EXPECT_THAT(evolve.err, ::testing::HasSubstr("generation 0"));
  for (const std::string& arguments :
       {std::string("families --json"), "runs --json " + db(), "doctor --json " + db() + " " + cache(),
        "verify --shape b1h1l20d8:fp32 --device cpu --json " + cache(),
        "bench --measure-limit 0.2 --shape b1h1l20d8:fp32 --device cpu --json " + cache()}) {
    const Printed run = heed_command(arguments);
    EXPECT_EQ(run.code, 0) << arguments << run.err;
    EXPECT_FALSE(nlohmann::json::parse(run.out, nullptr, false).is_discarded()) << arguments;
  }
  const Printed error = heed_command("evolve --shape b1h8l0d64 --json " + db());
  EXPECT_EQ(nlohmann::json::parse(error.out)["error"]["code"], "invalid_workload");
  EXPECT_EQ(error.code, 2);
}

TEST_F(Cli, BenchGoesOnAfterAVariantThatCannotBe) {
  const Printed run = heed_command(
      "bench fwd_cpu:unit=vector,gqa=off,tile_rows=12,tile_vectors=4 fwd_cpu --measure-limit 0.2 --shape "
      "b1h1l20d8:fp32 --device cpu "
      "--json " +
      cache());
  EXPECT_EQ(run.code, 1) << run.err;
  EXPECT_THAT(run.err, ::testing::HasSubstr("does not fit"));
  const auto rows = nlohmann::json::parse(run.out)["rows"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["verdict"], "illegal");
  EXPECT_EQ(rows[1]["verdict"], "ok");
}

TEST_F(Cli, ResumeOnAnotherDeviceOrByAnotherRefereeIsRefused) {
  ASSERT_EQ(heed_command(tiny_evolution(2)).code, 0);
  const auto sql = [&](const std::string& statement) {
    return run_process({"python3", "-c",
                        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit()",
                        folder_.file("a.db"), statement},
                       {}, 20)
        .ok();
  };
  ASSERT_TRUE(sql("update runs set options = json_remove(options, '$.referee'), state = 'interrupted'"));
  expect_refusal("evolve --resume 1 --trials 4 " + db() + " " + cache(), 1, "was judged by referee 1");
  ASSERT_TRUE(sql("update runs set device = json_set(device, '$.name', 'Another CPU')"));
  expect_refusal("evolve --resume 1 --trials 4 " + db() + " " + cache(), 1, "was made on Another CPU");
  ASSERT_TRUE(sql("update runs set device_kind = 'cuda'"));
  expect_refusal("evolve --resume 1 --trials 4 --device cpu " + db() + " " + cache(), 1,
                 "times of different devices do not mix");
}

class Interrupted : public Cli, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Signals, Interrupted, ::testing::Values("SIGINT", "SIGHUP"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(Interrupted, LeavesAResumableRun) {
  // A background job of a shell ignores SIGINT, so the run is started by Python, which does not.
  const std::string script =
      "import signal, subprocess, sys, time\n"
      "p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)\n"
      "seen = 0\n"
      "for line in p.stdout:\n"
      "    print(line, end='')\n"
      "    seen += '/500' in line\n"
      "    if seen == 3: p.send_signal(signal." +
      std::string(GetParam()) +
      "); seen += 1\n"
      "sys.exit(p.wait())\n";
  std::vector<std::string> argv = {"python3", "-c", script, testing_support::kHeedBinary};
  for (const std::string& argument : split(tiny_evolution(500), ' ')) argv.push_back(argument);
  const ProcessResult result = run_process(argv, {}, kLimit_s);
  EXPECT_EQ(result.exit_code, 130) << result.output;
  EXPECT_THAT(result.output,
              ::testing::HasSubstr("heed evolve --resume 1 --db " + folder_.file("a.db") + " --device cpu --cache "));
  const auto before = nlohmann::json::parse(heed_command("show 1 --json " + db()).out);
  EXPECT_EQ(before["state"], "interrupted");
  const auto stored = before["trials"].size();
  EXPECT_GE(stored, 3U);
  EXPECT_EQ(heed_command("evolve --resume 1 --trials " + std::to_string(stored + 2) + " " + db() + " " + cache()).code,
            0);
  EXPECT_EQ(nlohmann::json::parse(heed_command("show 1 --json " + db()).out)["trials"].size(), stored + 2);
}

// Found out before the search, which writes no run.
TEST_F(Cli, EvidenceThatCannotBeWrittenIsRefusedAtOnce) {
  std::filesystem::create_directory(folder_.path() / "folder");
  write_file_atomically(folder_.path() / "plain", "a file", ErrorCode::internal);
  expect_refusal(tiny_evolution() + " --evidence " + folder_.file("folder"), 1, "is a folder");
  expect_refusal(tiny_evolution() + " --evidence " + folder_.file("plain/x.json"), 1, "plain");
  expect_refusal(tiny_evolution() + " --evidence /proc/x.json", 1, "/proc/x.json");
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "a.db"));
}

TEST_F(Cli, CtrlCLeavesWhatABenchMeasured) {
  const std::string script =
      "import signal, subprocess, sys\n"
      "p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)\n"
      "for line in p.stdout:\n"
      "    print(line, end='')\n"
      "    if line.startswith('1/7 '): p.send_signal(signal.SIGINT)\n"
      "sys.exit(p.wait())\n";
  std::vector<std::string> argv = {"python3", "-c", script, testing_support::kHeedBinary, "bench"};
  for (const int block : {32, 64, 96, 128, 192, 256, 512}) argv.push_back("fwd_cpu:block_m=" + std::to_string(block));
  for (const std::string& argument : split("--shape b1h1l64d16:fp32 --device cpu --measure-limit 0.5 " + cache(), ' '))
    argv.push_back(argument);
  const ProcessResult result = run_process(argv, {}, kLimit_s);
  EXPECT_EQ(result.exit_code, 130) << result.output;
  EXPECT_THAT(result.output, ::testing::HasSubstr("\nfwd_cpu_fp32_d16."));
  EXPECT_THAT(result.output, ::testing::Not(::testing::HasSubstr("7/7")));
  EXPECT_THAT(result.output, ::testing::HasSubstr("interrupted"));
}

TEST_F(Cli, EmitPrintsWhatIsCompiled) {
  const Printed cpu = heed_command("emit fwd_cpu:block_m=64 --shape b1h1l20d8:fp32");
  EXPECT_THAT(cpu.out, ::testing::HasSubstr(".block_m = 64"));
  const Printed gpu = heed_command("emit fwd_sm80 --shape b1h8l512d64:bf16:top-left --arch sm_80");
  EXPECT_THAT(gpu.out, ::testing::HasSubstr("heed::Element::bf16, .head_dim = 64, .mask = heed::MaskKind::causal"));
  const Printed automatic = heed_command("emit auto --shape b1h8l512d64 --arch sm_90a");
  EXPECT_THAT(automatic.out, ::testing::HasSubstr("kernels/sm90/split/"));
  expect_refusal("emit fwd_sm80:stages=4,block_n=128,kv_groups=2 --shape b1h8l512d64 --arch sm_89", 1,
                 "illegal on sm_89");
  expect_refusal("emit fwd_sm70 --shape b1h8l512d64", 2, "unknown family");
}

TEST_F(Cli, BuildDeliversABinaryAndItsLaunch) {
  const Printed cpu = heed_command("build fwd_cpu:block_m=64 --shape b2h3l100d16:fp32 --json -o " +
                                   folder_.file("v/k.so") + " " + cache());
  ASSERT_EQ(cpu.code, 0) << cpu.err;
  const auto json = nlohmann::json::parse(cpu.out);
  EXPECT_EQ(read_file(json["file"].get<std::string>(), ErrorCode::internal).substr(1, 3), "ELF");
  EXPECT_EQ(json["grid"], nlohmann::json({12, 1, 1}));
  EXPECT_EQ(json["entry"], "heed_forward");
  EXPECT_EQ(json["workload"], "b2h3l100d16:fp32");
  EXPECT_THAT(json["text"].get<std::string>(), ::testing::HasSubstr("block_m=64,"));
  EXPECT_GT(json["floor"]["us"].get<double>(), 0);
  EXPECT_EQ(json["contract"]["size"], sizeof(ForwardParams));
  EXPECT_EQ(json["contract"]["offsets"]["scale"], offsetof(ForwardParams, scale));
  EXPECT_EQ(json["source_digest"].get<std::string>().size(), 16U);

  expect_refusal("build fwd_cpu --shape b1h1l8d16", 2, "give a variant with --shape and -o FILE");
  expect_refusal("build fwd_cpu -o " + folder_.file("x"), 2, "no workload");
  expect_refusal("build fwd_none --shape b1h1l8d16 -o " + folder_.file("x"), 2, "unknown family");
  expect_refusal("build auto --device cpu --arch sm_80 --shape b1h1l8d16 -o " + folder_.file("x"), 2,
                 "leave it out with --device cpu");
  expect_refusal("build auto --arch sm_42 --shape b1h1l8d16 -o " + folder_.file("x"), 2, "unknown GPU architecture");
  expect_refusal("build auto --arch sm_89 --shape b1h8l512d256 -o " + folder_.file("x"), 1, "head dim 256");
  expect_refusal("build fwd_cpu --shape b1h1l8d16 -o /dev/null/x " + cache(), 1, "/dev/null");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("x")));
}

TEST_F(Cli, BuildForAGpuNeedsNone) {
  const auto build = [&](const std::string& variant) {
    return heed_command("build " + variant + " --arch sm_90a --shape b1h8l512d64 --json -o " + folder_.file("k.cubin") +
                        " " + cache());
  };
  const Printed portable = build("fwd_sm80");
  if (portable.code != 0 && portable.err.find("nvrtc") != std::string::npos) HEED_LACKS("nvrtc", portable.err);
  ASSERT_EQ(portable.code, 0) << portable.err;
  auto json = nlohmann::json::parse(portable.out);
  EXPECT_EQ(read_file(folder_.file("k.cubin"), ErrorCode::internal).substr(1, 3), "ELF");
  EXPECT_EQ(json["grid"], nlohmann::json({16, 8, 1}));
  EXPECT_EQ(json["device"]["arch"], "sm_90a");
  EXPECT_EQ(json["max_shared_bytes"], 227 * 1024);
  EXPECT_EQ(json["counters"], 0);
  EXPECT_TRUE(json["boxes"].is_null());
  EXPECT_EQ(json["dependent"], false);
  EXPECT_FALSE(json.contains("floor"));  // an architecture has no clock
  EXPECT_FALSE(json.contains("made_for"));

  const Printed hopper = build("auto");  // tensor maps, a cluster and a dependent launch
  ASSERT_EQ(hopper.code, 0) << hopper.err;
  json = nlohmann::json::parse(hopper.out);
  EXPECT_EQ(json["family"], "fwd_sm90_split");
  EXPECT_EQ(json["made_for"], "Hopper");
  EXPECT_EQ(json["grid"], nlohmann::json({16, 8, 1}));
  EXPECT_EQ(json["cluster"], 2);
  EXPECT_EQ(json["boxes"]["q_rows"], 64);
  EXPECT_EQ(json["boxes"]["l2_bytes"], 256);
  EXPECT_EQ(json["dependent"], true);
  EXPECT_TRUE(json["o_strides"].is_null());

  const Printed dense = build("fwd_sm90_split:specialize=shape,o_layout=dense,gqa=on");
  ASSERT_EQ(dense.code, 0) << dense.err;
  EXPECT_EQ(nlohmann::json::parse(dense.out)["o_strides"], nlohmann::json({8 * 512 * 64, 512 * 64, 64}));

  const Printed decode = heed_command("build auto --arch sm_90a --shape b8h32hkv4l1k8192d128 --json -o " +
                                      folder_.file("d.cubin") + " " + cache());
  ASSERT_EQ(decode.code, 0) << decode.err;
  EXPECT_EQ(nlohmann::json::parse(decode.out)["family"], "fwd_sm90_decode");
  EXPECT_EQ(nlohmann::json::parse(decode.out)["boxes"]["l2_bytes"], 0);
  EXPECT_THAT(nlohmann::json::parse(decode.out)["made_for"].get<std::string>(), ::testing::HasSubstr("few queries"));
}

TEST_F(Cli, BuildOfAListSaysWhatItCannotHave) {
  write_file_atomically(folder_.file("list"),
                        "# a comment\nb1h1l40d16:fp32 fwd_cpu\n\nb1h2l80d16:fp32\tauto  # the same binary\nb1h1l8d16 "
                        "fwd_sm80\n",
                        ErrorCode::internal);
  const std::string arguments =
      "build --device cpu --list " + folder_.file("list") + " --into " + folder_.file("into") + " " + cache();
  const Printed run = heed_command(arguments + " --json");
  ASSERT_EQ(run.code, 0) << run.err;
  const auto builds = nlohmann::json::parse(run.out)["builds"];
  ASSERT_EQ(builds.size(), 3U);
  EXPECT_EQ(builds[0]["file"], builds[1]["file"]);
  EXPECT_NE(builds[0]["grid"], builds[1]["grid"]);
  EXPECT_THAT(builds[2]["refused"].get<std::string>(), ::testing::HasSubstr("it runs on NVIDIA GPUs"));
  EXPECT_FALSE(builds[2].contains("file"));
  EXPECT_THAT(heed_command(arguments).out, ::testing::HasSubstr("b1h1l8d16:fp16  -  "));

  write_file_atomically(folder_.file("list"), "b1h1l8d16\n", ErrorCode::internal);
  expect_refusal(arguments, 2, "list:1: a line is a workload and a variant");
  write_file_atomically(folder_.file("list"), "banana auto\n", ErrorCode::internal);
  expect_refusal(arguments, 2, "unknown dimension");
  expect_refusal("build --list none --into " + folder_.file("into"), 1, "none");
  expect_refusal("build --list none", 2, "--list FILE with --into FOLDER");
}

TEST_F(Cli, VerifyFailsWhenAVariantFails) {
  EXPECT_EQ(heed_command("verify fwd_cpu --shape b1h1l64d16:fp32 --device cpu " + cache()).code, 0);
  const Printed wrong = heed_command("verify fwd_cpu:exp2=degree3 --shape b1h1l64d16:fp32 --device cpu " + cache());
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.out, ::testing::HasSubstr("inexact"));
  EXPECT_EQ(heed_command("verify auto --shape b1h1l64d16:fp32 --device cpu " + cache()).code, 0);
  expect_refusal("verify auto --shape b1h1l64d513:fp32 --device cpu " + cache(), 1, "fwd_cpu: head dim 513 is over");
}

TEST_F(Cli, ProfileDiagnosesWithoutCounters) {
  const std::string svg = folder_.file("roofline.svg");
  const Printed text =
      heed_command("profile fwd_cpu:threads=1 --shape b1h1l48d16:fp32 --roofline " + svg + " " + cache());
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, ::testing::HasSubstr("no hardware counters: "));
  EXPECT_THAT(text.out, ::testing::HasSubstr("(without counters)"));
  EXPECT_TRUE(
      run_process({"python3", "-c", "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])", svg}, {}, 20).ok());
  const Printed json = heed_command("profile fwd_cpu --shape b1h1l48d16:fp32 --json " + cache());
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_GT(parsed["us"].get<double>(), 0);
  EXPECT_EQ(parsed["diagnosis"]["with_counters"], false);
  EXPECT_TRUE(parsed["diagnosis"]["shares"].contains("fma"));
  EXPECT_EQ(parsed["programs"].size(), 1U);
  EXPECT_TRUE(parsed["programs"].contains(parsed["variant"].get<std::string>()));
}

TEST_F(Cli, ProfileSaysWhyThereAreNoCounters) {
  const std::string cpu = "profile fwd_cpu --shape b1h1l48d16:fp32 " + cache() + " --cupti ";
  const bool built =
      heed_command(cpu + "/nonexistent/libcupti.so").err.find("built without CUPTI") == std::string::npos;
  expect_refusal(cpu + "/nonexistent/libcupti.so", 1, built ? "No such file" : "built without CUPTI");
  write_file_atomically(folder_.file("libcupti.so"), "no library", ErrorCode::internal);
  expect_refusal(cpu + folder_.file("libcupti.so"), 1, built ? "CUPTI was not found" : "built without CUPTI");
  expect_refusal(cpu + "libm.so.6", 1, built ? "lacks cuptiGetVersion" : "built without CUPTI");
  expect_refusal("profile fwd_cpu:exp2=degree3 --shape b1h1l64d16:fp32 " + cache(), 1, "does not pass the gate");
  expect_refusal("profile fwd_cpu --shape b1h1l48d16:fp32 --roofline /dev/null/x.svg " + cache(), 1, "/dev/null");
  expect_refusal("profile fwd_none --shape b1h1l48d16:fp32", 2, "unknown family");
  expect_refusal("profile", 2, "no workload");
}

TEST_F(Cli, ProfilePrintsTheNsightComputeCommand) {
  const Printed run = heed_command("profile fwd_sm80:kv_groups=4 --shape b1h8l512d64 --causal top-left --ncu");
  EXPECT_EQ(run.code, 0) << run.err;
  for (const char* part :
       {"ncu ", "--clock-control none", "--target-processes all", "--kernel-name heed_forward",
        "--section SpeedOfLight", " verify 'fwd_sm80:", "kv_groups=4", "--shape 'b1h8l512d64:fp16:causal_top_left'"})
    EXPECT_THAT(run.out, ::testing::HasSubstr(part));
  expect_refusal("profile fwd_cpu --shape b1h8l512d64 --ncu", 2, "runs on the CPU");
  EXPECT_THAT(heed_command("profile --shape b8h32hkv4l1k8192d128 --ncu").out,
              ::testing::HasSubstr("'fwd_sm90_decode:"));
}

TEST_F(Cli, DoctorNamesWhatIsMissing) {
  const Printed run = heed_command("doctor " + db() + " " + cache());
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.out, ::testing::HasSubstr("C++ compiler"));
  EXPECT_THAT(run.out, ::testing::ContainsRegex("(ok|--) +counters "));
  const Printed broken = heed_command("doctor " + db() + " --cache /dev/null/x", "PATH=/nonexistent");
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.out, ::testing::HasSubstr("so: nothing can be built"));
}

// Each fault of a machine fails the line it belongs to, and the command.
TEST_F(Cli, DoctorFailsWhereARunWould) {
  const auto failed = [&](const std::string& arguments, const std::string& limits) {
    const TemporaryFolder folder;
    const std::string command = limits + std::string(testing_support::kHeedBinary) + " doctor --json --device cpu " +
                                arguments + " >" + folder.file("out") + " 2>" + folder.file("err");
    const ProcessResult result = run_process({"sh", "-c", command}, {}, kLimit_s);
    const nlohmann::json printed =
        nlohmann::json::parse(read_file(folder.file("out"), ErrorCode::internal), nullptr, false);
    EXPECT_TRUE(printed.is_object()) << command << read_file(folder.file("err"), ErrorCode::internal);
    if (!printed.is_object()) return std::set<std::string>{};
    EXPECT_EQ(printed["usable"].get<bool>(), result.exit_code == 0);
    return printed["failed"].get<std::set<std::string>>();
  };
  EXPECT_EQ(failed(db() + " " + cache(), ""), std::set<std::string>{});
  EXPECT_EQ(failed(db() + " " + cache(), "ulimit -n 40; ").count("files"), 1U);
  EXPECT_EQ(failed(db() + " " + cache() + " --compiler no-such-compiler", ""),
            (std::set<std::string>{"C++ compiler", "CPU kernel"}));
  EXPECT_EQ(failed("--db " + folder_.path().string() + " " + cache(), ""), std::set<std::string>{"database"});
  EXPECT_EQ(failed(db() + " --cache /proc/heed", ""), (std::set<std::string>{"CPU kernel", "cache"}));
}

// A kernel on one's own tensors: against NumPy's layout of the output, and the reference of Heed.
TEST_F(Cli, RunWritesTheOutputOfOnesOwnTensors) {
  const Workload w = parse_workload("b2h4hkv2l33k40d16:fp32");
  const auto tensor = [](std::vector<std::int64_t> shape, float phase) {
    HostTensor t{.dtype = Dtype::fp32, .shape = std::move(shape), .bytes = {}};
    std::int64_t count = 1;
    for (const std::int64_t extent : t.shape) count *= extent;
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = std::sin(phase + 1.7F * static_cast<float>(i));
      t.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return t;
  };
  const HostTensor q = tensor({2, 33, 4, 16}, 0.1F);
  const HostTensor k = tensor({2, 40, 2, 16}, 0.2F);
  const HostTensor v = tensor({2, 40, 2, 16}, 0.3F);
  const std::string in = folder_.file("in.safetensors");
  const std::string out = folder_.file("out.safetensors");
  write_safetensors(in, {{"q", q}, {"k", k}, {"v", v}});
  const std::string options = " --layout blhd --causal bottom-right --scale 0.3 --device cpu --measure-limit 0.2 ";
  const Printed run = heed_command("run --qkv " + in + " -o " + out + options + "--json " + cache());
  ASSERT_EQ(run.code, 0) << run.err;
  const nlohmann::json printed = nlohmann::json::parse(run.out);
  EXPECT_EQ(printed["workload"], "b2h4hkv2l33k40d16:fp32:causal_bottom_right:blhd:scale=0.3");
  EXPECT_GT(printed["us"].get<double>(), 0);
  EXPECT_LT(printed["error"]["max_abs"].get<double>(), 1e-4);
  EXPECT_EQ(printed["rows_checked"], 2 * 4 * 33);

  Workload causal = w;
  causal.mask = Mask::causal_bottom_right;
  causal.scale = 0.3;
  causal.layout = Layout::blhd;
  const HostTensors tensors = {
      q.bytes.data(),           k.bytes.data(), v.bytes.data(), {33 * 4 * 16, 16, 4 * 16}, {40 * 2 * 16, 16, 2 * 16},
      {40 * 2 * 16, 16, 2 * 16}};
  const std::vector<RowIndex> rows = all_rows(causal);
  const ReferenceRows expected = reference_attention(causal, tensors, rows);
  const SafetensorsFile file(out);
  EXPECT_EQ(file.describe("o").shape, (std::vector<std::int64_t>{2, 33, 4, 16}));
  EXPECT_EQ(file.describe("lse").shape, (std::vector<std::int64_t>{2, 4, 33}));
  const std::string o = file.bytes_of("o");
  const std::string lse = file.bytes_of("lse");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RowIndex& r = rows[i];
    const auto place = static_cast<std::size_t>(((r.batch * 33 + r.row) * 4 + r.head) * 16);
    for (std::size_t d = 0; d < 16; ++d)
      ASSERT_NEAR(load_element(Dtype::fp32, o.data(), place + d), expected.out[i * 16 + d], 1e-4);
    ASSERT_NEAR(load_element(Dtype::fp32, lse.data(), static_cast<std::size_t>((r.batch * 4 + r.head) * 33 + r.row)),
                expected.lse[i], 1e-4);
  }

  for (const auto& [name, t] : {std::pair{"q.npy", q}, {"k.npy", k}, {"v.npy", v}}) write_npy(folder_.file(name), t);
  const std::string npy = "run fwd_cpu --q " + folder_.file("q.npy") + " --k " + folder_.file("k.npy") + " --v " +
                          folder_.file("v.npy") + " -o " + folder_.file("o.npy") + options + cache();
  const Printed plain = heed_command(npy + " --no-check");
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out, ::testing::HasSubstr("not checked"));
  EXPECT_EQ(NpyFile(folder_.file("o.npy"), "o").bytes(), o);
}

TEST_F(Cli, RunRefusesBeforeItWorks) {
  const auto tensor = [](Dtype dtype) {
    return HostTensor{.dtype = dtype, .shape = {1, 1, 4, 8}, .bytes = std::string(32 * size_of(dtype), '\0')};
  };
  const std::string in = folder_.file("in.safetensors");
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    write_safetensors(in, {{"q", tensor(dtype)}, {"k", tensor(dtype)}, {"v", tensor(dtype)}});
    expect_refusal("run --qkv " + in + " -o " + in + " --device cpu " + cache(), 2, "is the file of the tensors");
    expect_refusal("run --qkv " + in + " -o " + folder_.path().string() + "/./in.safetensors --device cpu " + cache(),
                   2, "is the file of the tensors");
    expect_refusal("run --qkv " + in + " -o out.bin --device cpu " + cache(), 2, "must end in .safetensors");
    expect_refusal("run --qkv " + in + " -o /dev/null/x.npy --device cpu " + cache(), dtype == Dtype::bf16 ? 2 : 1,
                   dtype == Dtype::bf16 ? "no bf16" : "cannot create the folder");
  }
  expect_refusal("run -o out.npy --shape b1h1l8d16 --device cpu " + cache(), 2, "no tensors: give --qkv");
  expect_refusal("run --qkv " + in + " --device cpu " + cache(), 2, "--output");
  expect_refusal("run fwd_none --qkv " + in + " -o " + folder_.file("o.safetensors") + " --device cpu " + cache(), 2,
                 "unknown family");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("o.safetensors")));
}

// Bytes changed anywhere in a database: what is printed is JSON, or an error.
TEST_F(Cli, ADamagedDatabaseNeverPrintsWhatIsNoJson) {
  ASSERT_EQ(heed_command(tiny_evolution(2)).code, 0);
  {
    store::Store store(folder_.file("a.db"));
    store.database().execute("PRAGMA wal_checkpoint(TRUNCATE)");
  }
  const std::string whole = read_file(folder_.file("a.db"), ErrorCode::internal);
  Random random(7);
  for (int round = 0; round < 40; ++round) {
    std::string bytes = whole;
    for (int i = 0; i < 1 + round % 8; ++i)
      bytes[100 + random.below(bytes.size() - 100)] = static_cast<char>(random.below(256));
    write_file_atomically(folder_.file("a.db"), bytes, ErrorCode::internal);
    for (const std::string& command : {"show 1 --json " + db(), "runs --json " + db()}) {
      const Printed run = heed_command(command);
      EXPECT_FALSE(nlohmann::json::parse(run.out, nullptr, false).is_discarded()) << round << run.out.substr(0, 300);
      EXPECT_TRUE(run.code == 0 || run.code == 1 || run.code == 2) << run.code;
      EXPECT_EQ(run.err.find("terminate called"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace heed
