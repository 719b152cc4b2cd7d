// Searches on two groups of processors in which models write: conversations overlap, fail, are recorded, replayed and
// resumed.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command_line.hpp"
#include "models/scripted_server.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;

// Answers its n-th prompt, and writes what begins and ends to a file. The first waits until the second has begun and is
// over, and until a trial is stored that a device judged meanwhile; the second fails. The third does not compile, and
// its repair does. The fourth has no edits in it. All others add a name that nothing uses: the program of the base
// again.
constexpr const char* kModel = R"py(
import fcntl, os, sqlite3, sys, time
folder = os.path.dirname(os.path.abspath(__file__))
prompt = sys.stdin.read()
def events():
    return open(folder + "/events").read().split("\n")
def note(text):
    with open(folder + "/events", "a") as file:
        file.write(text + "\n")
def wait_for(is_so):
    for _ in range(10000):
        if is_so():
            return
        time.sleep(0.05)
    sys.exit("it never came")
def trials():
    with sqlite3.connect(folder + "/a.db", timeout=60) as database:
        return database.execute("select count(*) from trials").fetchone()[0]
again = "I have no idea" in prompt
repair = "#error of the third" in prompt
with open(folder + "/lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    number = 0 if again or repair else sum(line.startswith("begin") for line in open(folder + "/events")) + 1 if os.path.exists(folder + "/events") else 1
    if number:
        note(f"begin {number}")
if number == 1:
    wait_for(lambda: "end 2" in events())
    wait_for(lambda: trials() > 0)
if number:
    note(f"end {number}")
if number == 2:
    sys.exit("no key")
if again or number == 4:
    print("I have no idea.")
    sys.exit()
line = "#error of the third" if number == 3 else f"using Idea{number} = int;"
print(f"<insight>idea {number}</insight>\ncpu/rows.hpp\n<<<<<<< SEARCH\n#pragma once\n=======\n#pragma once\n{line}\n>>>>>>> REPLACE")
)py";

class SharedModelsCli : public Cli {
 protected:
  void SetUp() override {
    if (run_process({"taskset", "-c", "0,1", "true"}, {}, 20).exit_code != 0)
      GTEST_SKIP() << "two processors are needed";
  }
  // On two devices, a processor each. stdout and stderr together.
  static std::pair<int, std::string> on_two(const std::string& arguments) {
    const ProcessResult result = run_process(
        {"sh", "-c", "taskset -c 0,1 " + std::string(testing_support::kHeedBinary) + " " + arguments + " 2>&1"}, {},
        kLimit_s);
    return {result.exit_code, result.output};
  }
  [[nodiscard]] std::string evolve(int trials, const std::string& models) const {
    return "evolve --shape b1h1l48d16:fp32 --device cpu --devices 0,1 --population 3 --no-peers --measure-limit 0.05 "
           "--trials " +
           std::to_string(trials) + " " + models + " " + db() + " " + cache();
  }
  [[nodiscard]] nlohmann::json shown(int run) const {
    return nlohmann::json::parse(heed_command("show " + std::to_string(run) + " --json " + db()).out);
  }
  // What came of each prompt, by generation, place and purpose.
  static std::map<std::string, std::string> replies_of(const nlohmann::json& run) {
    std::map<std::string, std::string> all;
    for (const nlohmann::json& e : run["exchanges"])
      all[e["generation"].dump() + " " + e["place"].dump() + " " + e["purpose"].get<std::string>()] =
          e["reply"].is_object() ? e["reply"]["content"].get<std::string>() : e["failure"].get<std::string>();
    return all;
  }
};

void expect_sound(const nlohmann::json& run, std::size_t trials) {
  ASSERT_GE(run["trials"].size(), trials);
  std::set<std::string> places;
  for (std::size_t i = 0; i < trials; ++i) {
    const nlohmann::json& t = run["trials"][i];
    EXPECT_EQ(t["number"], i);
    EXPECT_TRUE(
        places.insert(t["generation"].dump() + " " + t["place"].dump() + (t["operation"] == "repair" ? "r" : ""))
            .second)
        << "a place has one trial: " << t;
    EXPECT_EQ(t["device"].get<std::string>().empty(), t["check"] == "edits") << "a device judged it: " << t;
  }
}

TEST_F(SharedModelsCli, ConversationsOverlapAndAFailureCostsItsPlaceAlone) {
  write_file_atomically(folder_.file("model.py"), kModel, ErrorCode::internal);
  const std::string file = folder_.file("replies.jsonl");
  const auto [code, printed] =
      on_two(evolve(9, "--model-share 1 --command 'python3 " + folder_.file("model.py") + "' --record " + file));
  ASSERT_EQ(code, 0) << printed;
  EXPECT_THAT(printed, HasSubstr("no reply: the command python3 ended with exit code 1: no key"));
  const std::vector<std::string> events = split(read_file(folder_.file("events"), ErrorCode::internal), '\n');
  ASSERT_GE(events.size(), 4U);
  EXPECT_EQ(std::vector<std::string>(events.begin(), events.begin() + 2),
            (std::vector<std::string>{"begin 1", "begin 2"}));
  const nlohmann::json run = shown(1);
  expect_sound(run, 9);
  std::map<std::string, int> ends;
  for (const nlohmann::json& t : run["trials"])
    ++ends[t["operation"].get<std::string>() + " " + t["verdict"].get<std::string>()];
  EXPECT_EQ(ends["edit build_failed"], 1) << printed;
  EXPECT_EQ(ends["repair duplicate"], 1) << printed;
  EXPECT_EQ(ends["edit illegal"], 1) << printed;
  EXPECT_GE(ends["edit duplicate"], 1) << printed;
  int failures = 0;
  for (const nlohmann::json& e : run["exchanges"]) {
    failures += e["failure"] == "" ? 0 : 1;
    for (const nlohmann::json& t : run["trials"])
      if (t["generation"] == e["generation"] && t["place"] == e["place"] && e["failure"] != "") {
        EXPECT_NE(t["operation"], "edit") << "knobs took the place";
      }
  }
  EXPECT_EQ(failures, 1);

  const auto [again, repeated] = on_two(evolve(6, "--model-share 1 --replay " + file));
  ASSERT_EQ(again, 0) << repeated;
  const nlohmann::json second = shown(2);
  expect_sound(second, 6);
  const std::map<std::string, std::string> recorded = replies_of(run);
  std::size_t equal = 0;
  for (const auto& [prompt, reply] : replies_of(second))
    if (const auto one = recorded.find(prompt); one != recorded.end()) {
      EXPECT_EQ(reply, one->second) << prompt;
      ++equal;
    }
  EXPECT_GE(equal, 5U) << "whatever came first: two prompts of the first generation, three of the second, a second try";
}

// Interrupted with two replies awaited; killed where the first does not compile and its repair is awaited beside the
// second; and gone on with once all are there.
constexpr const char* kPeople = R"py(
import glob, json, os, signal, sqlite3, subprocess, sys, time
box, command = sys.argv[1], sys.argv[2:]
database, cache = command[command.index("--db") + 1], command[command.index("--cache") + 1]
resume = [command[0], "evolve", "--resume", "1", "--device", "cpu", "--devices", "0,1", "--db", database, "--cache", cache, "--measure-limit", "0.05"]
def prompts():
    return sorted(glob.glob(box + "/*.prompt.md"))
def awaited():
    with sqlite3.connect(database, timeout=60) as connection:
        return connection.execute("select count(*) from exchanges where reply = 'null' and failure = ''").fetchone()[0]
def answer(number, line):
    with open(prompts()[number].replace(".prompt.md", ".reply.md"), "w") as reply:
        reply.write(f"<insight>idea {number}</insight>\ncpu/rows.hpp\n<<<<<<< SEARCH\n#pragma once\n=======\n#pragma once\n{line}\n>>>>>>> REPLACE\n")
def until(process, files, count):
    while len(prompts()) < files or awaited() < count:
        time.sleep(0.05)
        assert process.poll() is None, process.returncode
run = subprocess.Popen(command)
until(run, 2, 2)
run.send_signal(signal.SIGINT)
assert run.wait() == 130
run = subprocess.Popen(resume)
until(run, 2, 4)
answer(0, "#error of the first")
until(run, 3, 4)
run.kill()
run.wait()
answer(1, "using Second = int;")
answer(2, "using Repaired = int;")
sys.exit(subprocess.call(resume))
)py";

TEST_F(SharedModelsCli, ARunThatWaitsForRepliesLosesNothing) {
  const std::string box = folder_.file("box");
  std::vector<std::string> argv = {"taskset", "-c", "0,1", "python3", "-c", kPeople, box, testing_support::kHeedBinary};
  for (const std::string& argument : split(evolve(4, "--model-share 1 --mailbox " + box), ' '))
    argv.push_back(argument);
  const ProcessResult result = run_process(argv, {}, kLimit_s);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(box), std::filesystem::directory_iterator{}), 6)
      << "prompts are not written anew with another time of the base";
  const nlohmann::json run = shown(1);
  expect_sound(run, 4);
  std::map<std::string, std::string> trials;
  for (int i = 0; i < 4; ++i) {
    const nlohmann::json& t = run["trials"][i];
    trials[t["why"].get<std::string>()] = t["operation"].get<std::string>() + " " + t["verdict"].get<std::string>();
  }
  EXPECT_EQ(trials, (std::map<std::string, std::string>{{"the family's default", "default ok"},
                                                        {"idea 0", "edit build_failed"},
                                                        {"idea 1", "edit duplicate"},
                                                        {"idea 2", "repair duplicate"}}))
      << result.output;
}

// An endpoint that is busy at first. Two replies use up the budget, whichever prompt was asked while the other one was.
TEST_F(SharedModelsCli, ABudgetHoldsOverConversationsThatOverlap) {
  const auto completion = [](const std::string& line) {
    const std::string edit =
        "cpu/rows.hpp\n<<<<<<< SEARCH\n#pragma once\n=======\n#pragma once\n" + line + "\n>>>>>>> REPLACE\n";
    return models::json_reply(
        200, {{"model", "tiny"},
              {"choices", {{{"index", 0}, {"message", {{"content", edit}}}, {"finish_reason", "stop"}}}},
              {"usage", {{"prompt_tokens", 999'000}, {"completion_tokens", 1'000}}}});
  };
  const models::ScriptedServer server({models::json_reply(429, {{"error", "busy"}}, "Retry-After: 0\r\n"),
                                       completion("using First = int;"), completion("using Second = int;"),
                                       completion("using Third = int;")});
  const auto [code, printed] =
      on_two(evolve(4, "--model-share 1 --token-budget 2000000 --model tiny --endpoint " + server.url()));
  ASSERT_EQ(code, 0) << printed;
  EXPECT_THAT(printed, HasSubstr("models are asked no more: 2000000 of 2000000 tokens are used"));
  EXPECT_EQ(server.requests().size(), 3U) << "one of them sent again";
  const nlohmann::json run = shown(1);
  expect_sound(run, 4);
  EXPECT_EQ(run["models"]["prompts"], 2);
  EXPECT_EQ(run["models"]["tokens"], 2'000'000);
  EXPECT_EQ(run["models"]["edits"], 2);
}

TEST_F(SharedModelsCli, WithoutRepliesKnobsGoOn) {
  const auto [code, printed] = on_two(evolve(2, "--model-share 1 --reply-limit 0.1 --mailbox " + folder_.file("box")));
  ASSERT_EQ(code, 0) << printed;
  EXPECT_THAT(printed, HasSubstr("allow more with --reply-limit"));
  const nlohmann::json run = shown(1);
  expect_sound(run, 2);
  EXPECT_EQ(run["models"]["failures"], 1);
  EXPECT_EQ(run["models"]["edits"], 0);
}

TEST_F(SharedModelsCli, ModelsThatCannotBeAskedAreRefused) {
  expect_refusal(evolve(3, "--command cat --token-budget 0"), 2, "--token-budget 0 allows no prompt");
  expect_refusal(evolve(3, "--command cat --mailbox box"), 2, "give one of them");
  expect_refusal(evolve(3, "--command cat --reply-limit 0"), 2, "only a mailbox is waited for without end");
}

}  // namespace
}  // namespace heed
