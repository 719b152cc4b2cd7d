// heed evolve --workloads: a run for each workload of a model, divided trials, reuse of finished runs, and refusals.
#include <csignal>
#include <nlohmann/json.hpp>

#include "cli/command_line.hpp"
#include "dispatch/book.hpp"
#include "store/store.hpp"

namespace heed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json row(const std::string& workload, double seconds, const std::string& form = "") {
  return {{"workload", workload}, {"form", form}, {"calls", 2}, {"seconds", seconds}};
}

class CliWorkloads : public Cli {
 protected:
  [[nodiscard]] std::string calls(const std::vector<nlohmann::json>& rows, const std::string& device = "cpu") const {
    write_file_atomically(folder_.file("calls.json"),
                          nlohmann::json{{"schema", 1}, {"what", "calls"}, {"device", device}, {"rows", rows}}.dump(),
                          ErrorCode::internal);
    return "evolve --workloads " + folder_.file("calls.json") + " ";
  }
  [[nodiscard]] std::string searches(int trials) const {
    return "--device cpu --population 2 --no-peers --no-profile --measure-limit 0.02 --trials " +
           std::to_string(trials) + " " + db() + " " + cache();
  }
};

TEST_F(CliWorkloads, EachIsARunAndFinishedOnesAreReused) {
  const std::string book = folder_.file("book.heed");
  const std::string evolve =
      calls({row("b1h2l32d16:fp32", 0.01), row("b1h1l48d16:fp32", 0.02), row("b1h1l48d16:fp32", 1, "attn_mask bool"),
             row("b1h1l48d16:fp32", 0.02), row("b1h1l8d2000:fp32", 5), row("", 3, "3-dimensional")}) +
      searches(5);
  const Printed first = heed_command(evolve + " --json --book " + book);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, AllOf(HasSubstr("workload 1 of 2: b1h1l48d16:fp32, 3 trials, 80% of the gain"),
                               HasSubstr("workload 2 of 2: b1h2l32d16:fp32, 2 trials"), Not(HasSubstr("already run"))));
  const nlohmann::json document = nlohmann::json::parse(first.out);
  const nlohmann::json& rows = document["workloads"];
  ASSERT_EQ(rows.size(), 5U) << first.out;
  EXPECT_EQ(rows[0]["workload"], "b1h1l48d16:fp32");
  EXPECT_EQ(rows[0]["calls"], 4);
  EXPECT_EQ(rows[0]["trials"], 3);
  EXPECT_EQ(rows[1]["trials"], 2);
  EXPECT_NEAR(rows[0]["share"].get<double>(), 0.04 / 9.05, 1e-9);
  double saved = 0;
  std::size_t champions = 0;
  for (int i = 0; i < 2; ++i) {
    const nlohmann::json& result = rows[i]["result"];
    EXPECT_EQ(rows[i]["run"], i + 1);
    EXPECT_EQ(rows[i]["reused"], false);
    EXPECT_GE(result["trials"], rows[i]["trials"]);
    EXPECT_GT(result["base_us"], 0);
    EXPECT_FALSE(rows[i].contains("skipped"));
    if (result["outcome"] != "faster") continue;
    ++champions;
    saved +=
        rows[i]["calls"].get<double>() * (result["base_us"].get<double>() - result["champion_us"].get<double>()) * 1e-6;
  }
  EXPECT_DOUBLE_EQ(document["saved_s"].get<double>(), saved);
  EXPECT_THAT(rows[2]["skipped"].get<std::string>(), HasSubstr("head dim 2000"));
  EXPECT_EQ(rows[3]["skipped"], "has attn_mask bool");
  EXPECT_EQ(rows[4]["skipped"], "no form of attention: 3-dimensional");
  EXPECT_EQ(std::filesystem::exists(book), champions > 0);
  if (champions > 0) {
    EXPECT_EQ(dispatch::Book::read(book).entries().size(), champions);
  }

  const Printed again = heed_command(evolve + " --book " + book);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, AllOf(HasSubstr("already run 1"), HasSubstr("already run 2"), HasSubstr("champion us"),
                               HasSubstr("not evolved"), HasSubstr("no form of attention")));
  EXPECT_THAT(again.out,
              HasSubstr(champions > 0 ? "Expected saving for each recorded run of the model: " : "No champion"));
  const Printed more = heed_command(calls({row("b1h2l32d16:fp32", 0)}, "NVIDIA H100") + searches(2) + " --again");
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_THAT(more.out, AllOf(HasSubstr("recorded on NVIDIA H100; this device is cpu"), HasSubstr("run 3: b1h2l32")));
  // Two trials, and what an ablation may add, are not as many as six.
  EXPECT_THAT(heed_command(calls({row("b1h2l32d16:fp32", 0)}) + searches(6)).out, HasSubstr("run 4: b1h2l32"));
  EXPECT_EQ(store::Store(folder_.file("a.db")).runs().size(), 4U);
}

TEST_F(CliWorkloads, CtrlCKeepsWhatIsFinished) {
  const std::string script =
      "import signal, subprocess, sys\n"
      "p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)\n"
      "for line in p.stdout:\n"
      "    if line.startswith('run 2: '):\n"
      "        p.send_signal(signal.SIGINT)\n"
      "        break\n"
      "print(p.communicate()[0])\n"
      "sys.exit(p.returncode)\n";
  std::vector<std::string> argv = {"python3", "-c", script, testing_support::kHeedBinary};
  const std::string evolve = calls({row("b1h1l48d16:fp32", 1), row("b1h2l32d16:fp32", 1)}) + searches(4);
  for (const std::string& argument : split(evolve, ' ')) argv.push_back(argument);
  const ProcessResult result = run_process(argv, {}, kLimit_s);
  EXPECT_EQ(result.exit_code, 130) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("Go on with: heed evolve --resume 2 --db " + folder_.file("a.db")),
                                   HasSubstr("1 of 2 workloads are finished. The rest: heed evolve --workloads " +
                                             folder_.file("calls.json") + " --trials 4 --population 2 --no-peers")));
  EXPECT_EQ(heed_command("evolve --resume 2 --measure-limit 0.02 " + db() + " " + cache()).code, 0);
  const Printed rest = heed_command(evolve);
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, AllOf(HasSubstr("already run 1"), HasSubstr("already run 2")));
}

TEST_F(CliWorkloads, ABudgetIsForAllOfThem) {
  const Printed run = heed_command(calls({row("b1h1l48d16:fp32", 2), row("b1h2l32d16:fp32", 1)}) + searches(6) +
                                   " --budget 0.5 --json");
  ASSERT_EQ(run.code, 0) << run.err;
  const nlohmann::json rows = nlohmann::json::parse(run.out)["workloads"];
  EXPECT_EQ(rows[0]["run"], 1);
  EXPECT_EQ(rows[1]["skipped"], "the 0.5 s of --budget are over");
  const auto first = store::Store(folder_.file("a.db")).find_run(1);
  EXPECT_LT(first->options["budget_s"].get<double>(), 0.5);
}

TEST_F(CliWorkloads, WrongUsageIsRefused) {
  const std::string evolve = calls({row("b1h1l48d16:fp32", 1)});
  for (const auto& [option, value] : std::vector<std::pair<std::string, std::string>>{{"--shape", "b1h1l8d16"},
                                                                                      {"--qkv", "a.safetensors"},
                                                                                      {"--q", "q.npy"},
                                                                                      {"--dtype", "fp16"},
                                                                                      {"--resume", "3"},
                                                                                      {"--evidence", "e.json"},
                                                                                      {"--from", "champions.json"}})
    expect_refusal(evolve + option + " " + value + " " + searches(2), 2, option + " " + value + " is for one run");
  expect_refusal("evolve --again --shape b1h1l8d16 " + db(), 2, "--again repeats finished runs of --workloads");
  expect_refusal(evolve + searches(0), 2, "--trials 0");
  expect_refusal(evolve + searches(2) + " --book /dev/null/x", 1, "/dev/null");
  expect_refusal("evolve --workloads " + folder_.file("nowhere") + " " + searches(2), 2, "nowhere");
  expect_refusal(calls({row("b1h1l48d16:fp32", -1)}) + searches(2), 2, "row 1 has -1.0 where the time of the calls");
  expect_refusal(calls({row("b1h1l48", 1)}) + searches(2), 2, "row 1: ");
  expect_refusal(calls({row("b1h1l48d16:fp32", 1, "dropout"), row("", 1)}) + searches(2), 2,
                 "has no row that kernels can be evolved for: has dropout; no form of attention");
  expect_refusal(calls({}) + searches(2), 2, "made no call of attention");
  write_file_atomically(folder_.file("calls.json"), "{", ErrorCode::internal);
  expect_refusal("evolve --workloads " + folder_.file("calls.json") + " " + searches(2), 2, "is no JSON");
  write_file_atomically(folder_.file("calls.json"), R"({"schema":2,"what":"calls","rows":[]})", ErrorCode::internal);
  expect_refusal("evolve --workloads " + folder_.file("calls.json") + " " + searches(2), 2, "is of schema 2");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("a.db")));
  expect_refusal(calls({row("b1h1l8d2000:fp32", 1)}) + searches(2), 1, "head dim 2000");
  expect_refusal(calls({row("b1h1l48d16:fp32", 1)}) + searches(2) + " --family fwd_none", 2, "unknown family");
}

}  // namespace
}  // namespace heed
