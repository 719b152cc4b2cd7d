// Searches in which a model writes sources: a program that reads prompts and replies from a list.
#include <nlohmann/json.hpp>

#include "cli/command_line.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;

constexpr const char* kLine = "  return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");\n";

std::string edit(const std::string& insight, const std::string& replacement) {
  return "<insight>" + insight + "</insight>\ncpu/rows.hpp\n<<<<<<< SEARCH\n" + std::string(kLine) + "=======\n" +
         replacement + ">>>>>>> REPLACE\n";
}

class ModelCli : public Cli {
 protected:
  // A command that answers its n-th call with the n-th reply, and with an error when there is none left.
  std::string model(const std::vector<std::string>& replies) {
    for (std::size_t i = 0; i < replies.size(); ++i)
      write_file_atomically(folder_.file("reply" + std::to_string(i + 1)), replies[i], ErrorCode::internal);
    const std::string script = folder_.file("model.sh");
    write_file_atomically(
        script,
        "cat > '" + folder_.path().string() + "'/prompt.$$\n" + "cd '" + folder_.path().string() +
            "'\nexec 9>lock; flock 9\nn=$(( $(cat count 2>/dev/null || echo 0) + 1 )); echo $n > count\n" +
            "mv prompt.$$ prompt$n; cat reply$n\n",
        ErrorCode::internal);
    return " --command 'sh " + script + "' --model-share 1";
  }
  // Of the run of this database.
  void expect_insights() {
    EXPECT_EQ(heed_command("insights harvest " + db()).code, 0);
    const nlohmann::json list = nlohmann::json::parse(heed_command("insights list --json " + db()).out);
    EXPECT_TRUE(list["insights"].is_array());
    const std::string file = folder_.file("insights.json");
    EXPECT_EQ(heed_command("insights export " + file + " " + db()).code, 0);
    const nlohmann::json imported =
        nlohmann::json::parse(heed_command("insights import " + file + " --json --db " + folder_.file("b.db")).out);
    EXPECT_EQ(imported["added"], imported["observations"]);
    EXPECT_EQ(nlohmann::json::parse(heed_command("insights import " + file + " --json " + db()).out)["added"], 0);
    expect_refusal("insights why nothing " + db(), 2, "no insight is about \"nothing\"");
    expect_refusal("insights list --family nope " + db(), 2, "unknown family \"nope\"");
    write_file_atomically(file, "{}", ErrorCode::internal);
    expect_refusal("insights import " + file + " " + db(), 2, "no file of insights");
  }
  nlohmann::json shown() { return nlohmann::json::parse(heed_command("show 1 --json " + db()).out); }
};

TEST_F(ModelCli, EditsAreTrialsAndWhatIsRefusedIsRepairedOnce) {
  const std::string good =
      edit("divides where the sum is not zero", "  if (sum > 0) return 1.0F / sum;\n  return __builtin_nanf(\"\");\n");
  const Printed run =
      heed_command(tiny_evolution(5) + model({edit("does not compile", "  return oops;\n"), good, "I have no idea.",
                                              "Still none.", edit("is wrong", "  return sum;\n"), good}));
  ASSERT_EQ(run.code, 0) << run.err;
  const nlohmann::json json = shown();
  const nlohmann::json& trials = json["trials"];
  ASSERT_GE(trials.size(), 5U);
  EXPECT_EQ(trials[0]["operation"], "default");
  EXPECT_EQ(trials[1]["operation"], "edit");
  EXPECT_EQ(trials[1]["verdict"], "build_failed");
  EXPECT_EQ(trials[1]["why"], "does not compile");
  EXPECT_EQ(trials[2]["operation"], "repair");
  EXPECT_EQ(trials[2]["parents"], nlohmann::json::array({1}));
  EXPECT_THAT(read_file(folder_.file("prompt2"), ErrorCode::internal), HasSubstr("oops"));
  EXPECT_THAT(run.out, HasSubstr("models    "));
  EXPECT_THAT(run.out, HasSubstr("More: heed show 1 " + db()));
  EXPECT_THAT(run.out, HasSubstr("oops")) << "the compiler's error, not what includes it";
  EXPECT_EQ(json["models"]["prompts"], json["exchanges"].size());
  EXPECT_EQ(json["models"]["cost"], nullptr);
  int unusable = 0;
  for (const nlohmann::json& trial : trials) unusable += trial["verdict"] == "illegal" && trial["check"] == "edits";
  EXPECT_EQ(json["models"]["unusable"], unusable);
  const std::string first = read_file(folder_.file("prompt1"), ErrorCode::internal);
  EXPECT_THAT(first, HasSubstr("<file path=\"cpu/rows.hpp\">"));
  EXPECT_THAT(first, HasSubstr("b1h1l48d16:fp32"));
  EXPECT_THAT(first, HasSubstr("## What bounds it")) << "of the base, before any trial";
  expect_insights();
}

// Trial 0 is the base, of which the first prompts are.
TEST_F(ModelCli, WhatFailedOnTheBaseIsToldOfTheTrialThatIsTheBase) {
  const std::string bad = edit("does not compile", "  return oops;\n");
  const Printed run = heed_command(tiny_evolution(4) + model({bad, bad, bad}) + " --no-repair");
  ASSERT_EQ(run.code, 0) << run.err;
  const std::string second = read_file(folder_.file("prompt2"), ErrorCode::internal);
  EXPECT_THAT(second, HasSubstr("- The kernel to improve: trial 0"));
  EXPECT_THAT(second, HasSubstr("- does not compile (build_failed: cpu/rows.hpp:65:"));
}

// The parent of a repair is the refused trial, and its kernel that of the edit.
TEST_F(ModelCli, WhatARepairFailedOnIsToldOfTheKernelThatWasEdited) {
  const std::string first = edit("does not compile", "  return oops;\n");
  const std::string repair = edit("nor does its repair", "  return neither_does_this;\n");
  const Printed run = heed_command(tiny_evolution(4) + model({first, repair, first}));
  ASSERT_EQ(run.code, 0) << run.err;
  const std::string third = read_file(folder_.file("prompt3"), ErrorCode::internal);
  EXPECT_THAT(third, HasSubstr("- does not compile (build_failed: "));
  EXPECT_THAT(third, HasSubstr("- nor does its repair (build_failed: "));
}

// A run of this budget has time for a few trials, on a slow machine for the default alone.
TEST_F(ModelCli, NoModelIsAskedForPlacesThatTheBudgetHasNoTimeFor) {
  const std::string good =
      edit("tests the sum first", "  if (sum > 0) return 1.0F / sum;\n  return __builtin_nanf(\"\");\n");
  const Printed run = heed_command(
      "evolve --shape b1h1l48d16:fp32 --device cpu --population 12 --trials 12 --no-peers "
      "--measure-limit 0.02 --budget 3 --no-repair " +
      db() + " " + cache() + model(std::vector<std::string>(11, good)));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_LT(shown()["exchanges"].size(), 8U) << "eleven places are for models";
}

TEST_F(ModelCli, AModelThatIsDownLeavesTheSearchToKnobs) {
  const Printed run = heed_command(tiny_evolution(6) + " --command 'echo no key >&2; exit 3' --model-share 1");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("no reply: the command echo ended with exit code 3: no key"));
  EXPECT_THAT(run.out, HasSubstr("3 prompts in a row got no reply; knobs go on alone"));
  const nlohmann::json json = shown();
  EXPECT_GE(json["trials"].size(), 6U);
  EXPECT_EQ(json["models"]["edits"], 0);
}

TEST_F(ModelCli, ARunIsRecordedAndReplayed) {
  const std::string good =
      edit("tests the sum first", "  if (sum > 0) return 1.0F / sum;\n  return __builtin_nanf(\"\");\n");
  const std::string file = folder_.file("recording.jsonl");
  ASSERT_EQ(heed_command(tiny_evolution(2) + model({good}) + " --record " + file).code, 0);
  ASSERT_EQ(heed_command(tiny_evolution(2) + " --model-share 1 --replay " + file).code, 0);
  const nlohmann::json second = nlohmann::json::parse(heed_command("show 2 --json " + db()).out);
  EXPECT_EQ(second["trials"][1]["why"], "tests the sum first");
}

// Waits for a prompt in the mailbox, interrupts, answers, and lets the command that heed names go on.
constexpr const char* kPerson = R"py(
import glob, os, signal, subprocess, sys, time
box, edits, command = sys.argv[1], sys.argv[2], sys.argv[3:]
run = subprocess.Popen(command)
while not glob.glob(box + "/*.prompt.md"):
    time.sleep(0.05)
    assert run.poll() is None
run.send_signal(signal.SIGINT)
assert run.wait() == 130
(prompt,) = glob.glob(box + "/*.prompt.md")
with open(prompt.replace(".prompt.md", ".reply.md"), "w") as reply:
    reply.write(open(edits).read())
database = command[command.index("--db") + 1]
cache = command[command.index("--cache") + 1]
sys.exit(subprocess.call([command[0], "evolve", "--resume", "1", "--db", database, "--cache", cache, "--measure-limit", "0.02"]))
)py";

TEST_F(ModelCli, ARunThatWaitsForAReplyIsResumed) {
  const std::string edits = folder_.file("edits");
  write_file_atomically(
      edits, edit("tests the sum first", "  if (sum > 0) return 1.0F / sum;\n  return __builtin_nanf(\"\");\n"),
      ErrorCode::internal);
  const std::string box = folder_.file("box");
  std::vector<std::string> argv = {"python3", "-c", kPerson, box, edits, testing_support::kHeedBinary};
  for (const std::string& argument : split(tiny_evolution(2) + " --model-share 1 --mailbox " + box, ' '))
    argv.push_back(argument);
  const ProcessResult result = run_process(argv, {}, kLimit_s);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const nlohmann::json json = shown();
  EXPECT_EQ(json["trials"][1]["operation"], "edit");
  EXPECT_EQ(json["trials"][1]["why"], "tests the sum first");
  // One file each: the prompt was not written anew with another time of the base.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(box), std::filesystem::directory_iterator{}), 2);
}

// What it asks with is looked at before the run is touched; files of the run are found from any folder.
TEST_F(ModelCli, AResumedRunTakesAnotherBudgetAndNothingElse) {
  const std::string good =
      edit("tests the sum first", "  if (sum > 0) return 1.0F / sum;\n  return __builtin_nanf(\"\");\n");
  const std::string prices = folder_.file("prices.json");
  const std::string text = R"({"currency": "USD", "models": {"sh": {"prompt": 1, "completion": 2}}})";
  write_file_atomically(prices, text, ErrorCode::internal);
  ASSERT_EQ(
      heed_command(tiny_evolution(2) + model({good}) + " --prices " + std::filesystem::relative(prices).string()).code,
      0);
  const auto state = [&] { return nlohmann::json::parse(heed_command("runs --json " + db()).out)[0]["state"]; };
  EXPECT_EQ(shown()["options"]["models"]["prices"], std::filesystem::canonical(prices).string());

  const std::string resume = "evolve --resume 1 --trials 4 --measure-limit 0.02 " + db() + " " + cache();
  expect_refusal(resume + " --model-share 0.5", 2, "leave out --model-share");
  std::filesystem::remove(prices);
  expect_refusal(resume, 2, prices);
  EXPECT_EQ(state(), "finished");

  write_file_atomically(prices, text, ErrorCode::internal);
  const Printed again = heed_command(resume + " --token-budget 1");
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("models are asked no more: "));
}

TEST_F(ModelCli, ARunOfKnobsAloneHasNoBudgetOfTokens) {
  ASSERT_EQ(heed_command(tiny_evolution(2)).code, 0);
  expect_refusal("evolve --resume 1 --trials 4 --token-budget 10 " + db() + " " + cache(), 2,
                 "with knobs alone as the stored run began; leave out --token-budget");
}

TEST_F(ModelCli, InsightsWithoutADatabase) {
  EXPECT_THAT(heed_command("insights list " + db()).err, HasSubstr("heed: "));
}

TEST_F(ModelCli, BadOptions) {
  const std::string evolve = "evolve --shape b1h1l48d16:fp32 --device cpu " + db() + " ";
  expect_refusal(evolve + "--model a", 2, "--model: nobody writes sources");
  expect_refusal(evolve + "--endpoint http://localhost:1/v1", 2, "give --model");
  expect_refusal(evolve + "--command cat --mailbox box", 2, "give one of them");
  expect_refusal(evolve + "--command cat --token-budget 0", 2, "--token-budget 0 allows no prompt");
  const std::string prices = folder_.file("prices.json");
  write_file_atomically(prices, R"({"models": {"a": {"prompt": 1, "completion": 2}}})", ErrorCode::internal);
  for (const char* source : {"--command cat", "--mailbox box", "--replay /no/such/file"})
    expect_refusal(evolve + source + " --money-budget 1 --prices " + prices, 2, "have no price: leave it out");
  expect_refusal(evolve + "--endpoint http://localhost:1/v1 --model a --money-budget 1", 2, "with --prices");
  expect_refusal(evolve + "--endpoint http://localhost:1/v1 --model b --money-budget 1 --prices " + prices, 2,
                 "has no price of b");
  expect_refusal(evolve + "--command cat --prompt fulll", 2, "did you mean \"full\"?");
  expect_refusal(evolve + "--command cat --prompts /no/such/folder", 2, "no folder of prompts");
  expect_refusal(evolve + "--command cat --request-fields 3", 2, "takes a JSON object");
  expect_refusal(evolve + "--command cat --request-fields '{\"model\": \"m\"}'", 2,
                 "has \"model\", which every request");
  expect_refusal(evolve + "--replay /no/such/file", 2, "/no/such/file");
  expect_refusal(evolve + "--endpoint http://localhost:1/v1 --model a --key-variable HEED_NO_KEY", 2, "HEED_NO_KEY");
}

}  // namespace
}  // namespace heed
