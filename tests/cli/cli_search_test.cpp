// Searches: what they store and print, how they are interrupted and resumed, and what becomes of their evidence.
#include <csignal>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "cli/command_line.hpp"

namespace heed {
namespace {

// A disk that fills up during a run: everything stored so far is there, and the run goes on when there is room.
TEST_F(Cli, AFullDiskStopsARunAndLosesNothing) {
  if (!run_process({"unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", folder_.path().string()}, {}, 20).ok())
    GTEST_SKIP() << "no file system can be mounted here";
  std::filesystem::create_directory(folder_.path() / "small");
  const std::string small = folder_.file("small");
  const std::string evolve =
      std::string(testing_support::kHeedBinary) +
      " evolve --shape b1h1l48d16:fp32 --device cpu --population 2 --no-peers --measure-limit 0.02 --trials 200 --db " +
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
  EXPECT_EQ(heed_command("evolve --resume 1 --measure-limit 0.02 --trials " + std::to_string(trials) + " " + db() +
                         " " + cache())
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
  // What the time went to is stored with the run.
  EXPECT_THAT(show.out, ::testing::HasSubstr("time      measuring "));
  const auto& time = json["result"]["time"];
  EXPECT_EQ(time["of"], "wall");
  double shares = 0;
  for (const char* key : {"measure", "gate", "screen", "idle"}) {
    EXPECT_GT(time[key].get<double>(), 0) << key;
    shares += time[key].get<double>();
  }
  EXPECT_NEAR(shares, 1, 1e-9);
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
        "bench --measure-limit 0.02 --shape b1h1l20d8:fp32 --device cpu --json " + cache()}) {
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
      "bench fwd_cpu:unit=vector,pack_gqa=off,tile_rows=12,tile_vectors=4 auto --measure-limit 0.02 --shape "
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

TEST_F(Cli, ComparisonsOfOneDeviceAreOneFileOfEvidence) {
  const std::string file = folder_.file("comparisons.json");
  const std::string bench = "bench --measure-limit 0.05 --device cpu --evidence " + file + " " + cache() + " --shape ";
  ASSERT_EQ(heed_command(bench + "b1h1l20d8:fp32").code, 0);
  ASSERT_EQ(heed_command(bench + "b1h1l20d8:fp32").code, 0);
  auto all = nlohmann::json::parse(read_file(file, ErrorCode::usage));
  EXPECT_EQ(all["what"], "comparisons");
  ASSERT_EQ(all["rows"].size(), 2U);
  EXPECT_EQ(all["rows"][1]["workload"], "b1h1l20d8:fp32");
  EXPECT_GT(all["rows"][1]["base_us"], 0.0);
  EXPECT_THAT(all["table"].get<std::string>(), ::testing::HasSubstr("b1h1l20d8:fp32"));
  all["source_digest"] = "0";
  write_file_atomically(file, all.dump(), ErrorCode::store);
  expect_refusal(bench + "b1h1l20d8:fp32", 2, "give --evidence another name");
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

// A bench of seven variants that is interrupted after its first one. `output` is its stdout, and without --json stderr
// as well.
ProcessResult interrupted_bench(const std::string& options) {
  const std::string script =
      "import signal, subprocess, sys\n"
      "p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)\n"
      "progress = p.stderr if '--json' in sys.argv else p.stdout\n"
      "for line in progress:\n"
      "    if progress is p.stdout: print(line, end='')\n"
      "    if line.startswith('1/7 '):\n"
      "        p.send_signal(signal.SIGINT)\n"
      "        break\n"
      "output, errors = p.communicate()\n"
      "print(output, end='')\n"
      "if progress is p.stdout: print(errors, end='')\n"
      "sys.exit(p.returncode)\n";
  std::vector<std::string> argv = {"python3", "-c", script, testing_support::kHeedBinary, "bench"};
  // Multiples of what a register tile holds with any vector unit.
  for (const char* knobs : {"64", "128", "192", "256", "512", "64,exp2=degree6", "128,exp2=degree6"})
    argv.push_back(std::string("fwd_cpu:block_m=") + knobs);
  for (const std::string& argument : split("--shape b1h1l64d16:fp32 --device cpu --measure-limit 0.5 " + options, ' '))
    argv.push_back(argument);
  return run_process(argv, {}, kLimit_s);
}

TEST_F(Cli, CtrlCLeavesWhatABenchMeasured) {
  const ProcessResult result = interrupted_bench(cache());
  EXPECT_EQ(result.exit_code, 130) << result.output;
  EXPECT_THAT(result.output, ::testing::HasSubstr("\nfwd_cpu_fp32_d16."));
  EXPECT_THAT(result.output, ::testing::Not(::testing::HasSubstr("7/7")));
  EXPECT_THAT(result.output, ::testing::HasSubstr("interrupted"));
}

TEST_F(Cli, AnInterruptedBenchPrintsOneDocument) {
  const ProcessResult result = interrupted_bench("--json " + cache());
  EXPECT_EQ(result.exit_code, 130) << result.output;
  const nlohmann::json document = nlohmann::json::parse(result.output, nullptr, false);
  ASSERT_TRUE(document.is_object()) << result.output;
  EXPECT_EQ(document["complete"], false);
  EXPECT_LT(document["rows"].size(), 7U);
}

}  // namespace
}  // namespace heed
