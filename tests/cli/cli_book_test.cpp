// heed book, heed dispatch and heed evolve --book as a user meets them; a champion of a search on this CPU runs in
// libheed.
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>

#include "api/c_library.hpp"
#include "command_line.hpp"
#include "device/device.hpp"
#include "dispatch/book.hpp"
#include "dispatch/champion_entries.hpp"
#include "store/store.hpp"

namespace heed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing_support::champion;
using testing_support::cpu_problem;
using testing_support::HostCase;

class CliBook : public Cli {
 protected:
  [[nodiscard]] std::string book() const { return "--book " + folder_.file("book.heed"); }
  [[nodiscard]] std::string add(const std::string& what) const {
    return "book add " + what + " " + book() + " " + db() + " " + cache();
  }
  // A book with these entries.
  void lay(const std::string& name, const std::vector<dispatch::BookEntry>& entries) const {
    dispatch::ProgramFileWriter writer("5555555555555555");
    for (const dispatch::BookEntry& entry : entries) writer.add(entry.record, entry.image);
    write_file_atomically(folder_.file(name), writer.bytes(), ErrorCode::internal);
  }
  // Run 1 of a store, its numbers those of a champion or not: a search of a few trials on a busy machine finds what it
  // finds. @return the id of the trial that was measured again
  std::int64_t searched(double low) const {
    const Printed run = heed_command(tiny_evolution(3));
    EXPECT_EQ(run.code, 0) << run.err;
    store::Store store(folder_.file("a.db"));
    nlohmann::json result = store.find_run(1)->result;
    EXPECT_TRUE(result.contains("final")) << result.dump();
    set_ratio(store, low);
    return result["final"]["trial_id"];
  }
  static void set_ratio(store::Store& store, double low) {
    nlohmann::json result = store.find_run(1)->result;
    result["self_spread"] = 0.001;
    result["final"]["ratio"] = {{"value", low + 0.01}, {"low", low}, {"high", low + 0.02}};
    store.set_result(1, result, store::RunState::finished);
  }
};

TEST_F(CliBook, AChampionOfASearchRunsInTheLibrary) {
  const std::int64_t trial = searched(1.3);
  const Printed added = heed_command(add("1") + " --json");
  ASSERT_EQ(added.code, 0) << added.err;
  EXPECT_EQ(nlohmann::json::parse(added.out)["entries"][0]["kept"], "added");
  EXPECT_THAT(heed_command(add("t" + std::to_string(trial))).out, StartsWith("same"));

  const Printed listed = heed_command("book list --json " + book());
  const nlohmann::json entry = nlohmann::json::parse(listed.out)["entries"][0];
  EXPECT_EQ(entry["workload"], "b1h1l48d16:fp32");
  EXPECT_EQ(entry["run"], 1);
  EXPECT_EQ(entry["trials"], 3);
  EXPECT_DOUBLE_EQ(entry["base"]["ratio"]["low"].get<double>(), 1.3);
  EXPECT_EQ(entry["peer"], nullptr);
  EXPECT_EQ(entry["source_digest"], entry["measured_source_digest"]);

  const Printed verified = heed_command("book verify --on-device --json " + book() + " " + cache());
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_EQ(nlohmann::json::parse(verified.out)["entries"][0]["gate"], "passed");

  const Printed chosen =
      heed_command("dispatch --shape b1h1l48d16:fp32 --arch cpu --programs /no/such/file --json " + book());
  ASSERT_EQ(chosen.code, 0) << chosen.err;
  EXPECT_EQ(nlohmann::json::parse(chosen.out)["step"], "book");
  EXPECT_EQ(nlohmann::json::parse(chosen.out)["variant"], entry["variant"]);

  heed_problem problem = cpu_problem();
  problem.len_q = problem.len_k = 48;
  const std::string path = folder_.file("book.heed");
  heed_options options;
  heed_options_init(&options);
  options.book = path.c_str();
  options.programs = "/no/such/file";
  heed_plan* plan = nullptr;
  ASSERT_EQ(heed_plan_create(&problem, &options, &plan), HEED_OK) << heed_last_error();
  heed_plan_info info;
  heed_plan_info_init(&info);
  ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
  EXPECT_EQ(info.origin, "book " + path);
  EXPECT_EQ(info.variant, entry["variant"].get<std::string>());
  EXPECT_THAT(info.reason, AllOf(StartsWith("run 1 trial "), HasSubstr("[1.30, 1.32] over its base on ")));
  HostCase host(problem);
  const heed_tensors tensors = host.tensors();
  EXPECT_EQ(heed_plan_run(plan, &tensors, nullptr, nullptr), HEED_OK) << heed_last_error();
  host.check();
  heed_plan_destroy(plan);
  char text[4096];
  (void)heed_explain(&problem, &options, text, sizeof text);
  EXPECT_THAT(text, AllOf(HasSubstr("book " + path), HasSubstr("run 1 trial ")));
}

// Of the binaries one computes its workload, one another one's, and one is of a processor that is not here.
TEST_F(CliBook, TheGateRunsOnEachBinaryOfThisDevice) {
  const std::string arch = cpu_facts().arch;
  const auto built = [&](const std::string& workload) {
    const std::string so = folder_.file("v.so");
    const Printed run =
        heed_command("build fwd_cpu:unit=vector --shape " + workload + " -o " + so + " --json " + cache());
    EXPECT_EQ(run.code, 0) << run.err;
    const nlohmann::json variant = nlohmann::json::parse(run.out);
    dispatch::BookEntry entry = champion({.workload = "b1h1l40d16:fp32",
                                          .arch = arch,
                                          .device = workload,
                                          .variant = variant["config"],
                                          .image = read_file(so, ErrorCode::internal)});
    entry.record.machine_code = variant["machine_code"];
    return entry;
  };
  const dispatch::BookEntry right = built("b1h1l40d16:fp32");
  dispatch::BookEntry wrong = built("b1h1l40d16:fp32:causal_top_left");
  dispatch::BookEntry elsewhere = right;
  elsewhere.record.arch = "another-cpu";
  const std::string verify = "book verify --on-device " + book() + " --cache " + folder_.file("no_builds");

  lay("book.heed", {right, elsewhere});
  const Printed fine = heed_command(verify);
  EXPECT_EQ(fine.code, 0) << fine.err;
  EXPECT_THAT(fine.out, AllOf(HasSubstr("gate: passed"), HasSubstr("gate: skipped"),
                              HasSubstr("its program is for another-cpu, and "),
                              HasSubstr("gate: 1 passed, 0 failed, 1 skipped")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.file("no_builds"))) << "something was built, or a binary left behind";

  lay("book.heed", {right, wrong, elsewhere});
  const Printed run = heed_command(verify + " --json");
  EXPECT_EQ(run.code, 1) << run.out;
  const nlohmann::json printed = nlohmann::json::parse(run.out);
  EXPECT_EQ(printed["failures"], 1);
  std::map<std::string, nlohmann::json> by_gate;
  for (const nlohmann::json& entry : printed["entries"]) by_gate[entry["gate"]] = entry;
  ASSERT_EQ(by_gate.size(), 3U) << run.out;
  EXPECT_EQ(by_gate["passed"]["refused"], "");
  EXPECT_EQ(by_gate["failed"]["device"], "b1h1l40d16:fp32:causal_top_left");
  EXPECT_THAT(by_gate["failed"]["refused"].get<std::string>(), StartsWith("it does not pass the gate: wrong at "));
  EXPECT_EQ(by_gate["skipped"]["arch"], "another-cpu");
  EXPECT_EQ(by_gate["skipped"]["refused"], "");
  EXPECT_THAT(by_gate["skipped"]["skipped"].get<std::string>(), HasSubstr("its program is for another-cpu"));

  const Printed unasked = heed_command("book verify --json " + book());
  EXPECT_EQ(unasked.code, 0) << "digests and contract say nothing of what a binary computes";
  EXPECT_EQ(nlohmann::json::parse(unasked.out)["entries"][0]["gate"], nullptr);
}

TEST_F(CliBook, WhatIsNoChampionIsRefused) {
  const std::int64_t winner = searched(1.0005);
  expect_refusal(add("1"), 1, "nothing in it is shown to be faster than its base; the best is 1.0105 [1.0005, 1.0205]");
  {
    store::Store store(folder_.file("a.db"));
    set_ratio(store, 1.2);
    for (const store::TrialRecord& trial : store.trials(1))
      if (trial.id != winner)
        expect_refusal(add("t" + std::to_string(trial.id)), 1,
                       trial.ok() ? "it alone was measured again" : "it ended as");
    nlohmann::json result = store.find_run(1)->result;
    result["self_spread"] = 0.3;
    store.set_result(1, result, store::RunState::finished);
    expect_refusal(add("1"), 1, "too noisy");
    store.set_result(1, result, store::RunState::interrupted);
    expect_refusal(add("1"), 1, "heed evolve --resume 1 goes on with it");
  }
  expect_refusal(add("9"), 2, "there is no run 9");
  expect_refusal(add("t999"), 2, "there is no trial 999");
  expect_refusal(add("x"), 2, "is no run and no trial");
  expect_refusal(add(""), 2, "name runs (3) or trials (t17)");
  expect_refusal(add("1 --arch sm_90a"), 2, "name it with --champions");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("book.heed")));
}

TEST_F(CliBook, EvolvePutsItsChampionIn) {
  expect_refusal(tiny_evolution(2) + " --book /dev/null/x", 1, "/dev/null");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("a.db"))) << "before the search";
  const Printed run = heed_command(tiny_evolution(3) + " --json " + book());
  ASSERT_EQ(run.code, 0) << run.err;
  const bool has_champion = run.err.find("no champion for the book") == std::string::npos;
  EXPECT_EQ(std::filesystem::exists(folder_.file("book.heed")), has_champion) << run.err;
  if (has_champion) {
    EXPECT_EQ(dispatch::Book::read(folder_.file("book.heed")).entries().size(), 1U);
  }
}

TEST_F(CliBook, TheChampionsOfAFileAreTaken) {
  const std::string arch = cpu_facts().arch;
  const auto entry = [&](const std::string& workload, const std::string& of_arch, const std::string& variant,
                         double low) {
    return nlohmann::json{
        {"workload", workload},
        {"arch", of_arch},
        {"variant", variant},
        {"device", "A CPU"},
        {"date", "2026-11-26T06:15:15Z"},
        {"referee", 2},
        {"source_digest", "554ee107431632d4"},
        {"base", {{"variant", "fwd_of_an_old_name.3f"}, {"ratio", {{"value", low}, {"low", low}, {"high", low}}}}}};
  };
  const nlohmann::json table = {{"what", "champions"},
                                {"champions",
                                 {entry("b1h1l40d16:fp32", arch, "fwd_cpu:unit=vector", 1.2),
                                  entry("b1h1l41d16:fp32", arch, "fwd_cpu:unit=vector", 0.9),
                                  entry("b1h1l42d16:fp32", arch, "fwd_cpu:no_knob=1", 1.2),
                                  entry("b1h1l43d16:fp32", "another-cpu", "fwd_cpu", 1.2)}}};
  write_file_atomically(folder_.file("t.json"), table.dump(), ErrorCode::internal);
  const Printed run = heed_command(add("--champions " + folder_.file("t.json")) + " --json");
  EXPECT_EQ(run.code, 1) << "not all of them could be taken";
  const nlohmann::json printed = nlohmann::json::parse(run.out);
  ASSERT_EQ(printed["entries"].size(), 1U);
  ASSERT_EQ(printed["refused"].size(), 3U);
  std::string why;
  for (const nlohmann::json& one : printed["refused"]) why += one["why"].get<std::string>() + "\n";
  EXPECT_THAT(why, AllOf(HasSubstr("reaches down to 1"), HasSubstr("no_knob"), HasSubstr("another-cpu")));
  const nlohmann::json held = nlohmann::json::parse(heed_command("book list --json " + book()).out)["entries"][0];
  EXPECT_EQ(held["base"]["variant"], "fwd_of_an_old_name.3f") << "evidence is kept as it was stored";
  EXPECT_EQ(held["measured_source_digest"], "554ee107431632d4");
  EXPECT_THAT(heed_command("book verify " + book()).out, HasSubstr("measured with sources 554ee107431632d4"));
  expect_refusal(add("--champions " + folder_.file("t.json") + " --arch " + arch + "x"), 2,
                 fmt::format("holds no champion of {}x; it has those of another-cpu, {}", arch, arch));

  // To another book and back.
  const std::string other = folder_.file("other.heed");
  EXPECT_EQ(heed_command("book export " + other + " --arch " + arch + " " + book()).code, 0);
  expect_refusal("book export " + other + " " + book(), 2, "is there already");
  expect_refusal("book export " + other + " --force --arch sm_80 " + book(), 2, "holds no such champion");
  EXPECT_THAT(heed_command("book import " + other + " " + book()).out, StartsWith("same"));
  EXPECT_EQ(heed_command("book remove b1h1l40d16:fp32 " + book()).code, 0);
  expect_refusal("book remove b1h1l40d16:fp32 " + book(), 2, "holds no such champion");
  EXPECT_THAT(heed_command("book import " + other + " " + book()).out, StartsWith("added"));
}

TEST_F(CliBook, WhatMayNotBeRunIsNotImported) {
  const auto refused = [&](const std::string& words, const dispatch::BookEntry& entry) {
    lay("in.heed", {entry});
    expect_refusal("book import " + folder_.file("in.heed") + " " + book(), 1, words);
    const std::string in = "--book " + folder_.file("in.heed");
    const Printed verified = heed_command("book verify " + in);
    EXPECT_EQ(verified.code, 1);
    EXPECT_THAT(verified.out, HasSubstr(words));
  };
  dispatch::BookEntry entry = champion();
  entry.record.contract = "00";
  refused("built for the kernel contract 00", entry);
  refused("no machine", champion());
  refused("unknown", champion({.arch = "sm_12345"}));
  refused("unknown family", champion({.variant = "fwd_none"}));
  refused("it runs on the CPU", champion({.variant = "fwd_cpu"}));
  entry = champion();
  entry.record.variant = "fwd_sm80";
  refused("does not say what block_m its binary was built with", entry);
  entry = champion();
  entry.record.provenance->ratio.low = 0.5;
  refused("reaches down to 1", entry);
  // The binary of another machine under a GPU's name.
  entry = champion();
  entry.image = read_file("/proc/self/exe", ErrorCode::internal);
  refused("its binary is for", entry);
  EXPECT_FALSE(std::filesystem::exists(folder_.file("book.heed")));

  lay("in.heed", {champion()});
  std::string bytes = read_file(folder_.file("in.heed"), ErrorCode::internal);
  write_file_atomically(folder_.file("cut.heed"), bytes.substr(0, bytes.size() - 1), ErrorCode::internal);
  expect_refusal("book import " + folder_.file("cut.heed") + " " + book(), 1, "truncated");
  bytes[70] = static_cast<char>(bytes[70] ^ 1);
  write_file_atomically(folder_.file("bent.heed"), bytes, ErrorCode::internal);
  expect_refusal("book import " + folder_.file("bent.heed") + " " + book(), 1, "altered");
  for (const char* command : {"list", "verify"})
    expect_refusal(std::string("book ") + command + " --book " + folder_.file("bent.heed"), 1, "altered");
  expect_refusal("book import " + folder_.file("nowhere") + " " + book(), 1, "nowhere");
}

TEST_F(CliBook, TheOneThatNobodyNamesIsFound) {
  const std::string nothing = "env -u HEED_BOOK -u XDG_DATA_HOME -u HOME";
  expect_refusal("book list", 2, "there is no place for a book", nothing);
  expect_refusal("book list", 2, "HEED_BOOK is empty", "HEED_BOOK=");
  std::filesystem::create_directory(folder_.path() / "heed");
  lay("heed/book.heed", {champion()});
  EXPECT_THAT(heed_command("book list", nothing + " XDG_DATA_HOME=" + folder_.path().string()).out,
              HasSubstr("1 champions"));
  lay("named.heed", {champion(), champion({.arch = "sm_80"})});
  EXPECT_THAT(heed_command("book list", "HEED_BOOK=" + folder_.file("named.heed")).out, HasSubstr("2 champions"));
  expect_refusal("book list", 1, "/none", "HEED_BOOK=/none");
  expect_refusal("book", 2, "subcommand");
}

TEST_F(CliBook, AReadOnlyBookIsReadAndLeftAlone) {
  lay("book.heed", {champion()});
  std::filesystem::permissions(folder_.file("book.heed"), std::filesystem::perms::owner_read);
  const std::string before = read_file(folder_.file("book.heed"), ErrorCode::internal);
  expect_refusal("book remove b1h8l512d64 " + book(), 1, "it is read-only");
  expect_refusal(add("1"), 1, "it is read-only");
  expect_refusal("book import " + folder_.file("book.heed") + " " + book(), 1, "it is read-only");
  EXPECT_EQ(heed_command("book list " + book()).code, 0);
  EXPECT_EQ(read_file(folder_.file("book.heed"), ErrorCode::internal), before);
}

TEST_F(CliBook, DispatchNeedsNoGpu) {
  lay("in.heed", {champion({.variant = "fwd_sm80"})});
  const std::string common = "dispatch --shape b1h8l512d64 --arch sm_90a ";
  const Printed run = heed_command(common + "--json --programs /none --book " + folder_.file("in.heed"));
  ASSERT_EQ(run.code, 0) << run.err;
  const nlohmann::json chosen = nlohmann::json::parse(run.out);
  EXPECT_EQ(chosen["step"], "book");
  EXPECT_EQ(chosen["family"], "fwd_sm80");
  EXPECT_EQ(chosen["arch"], "sm_90a");
  EXPECT_THAT(chosen["reason"].get<std::string>(), HasSubstr("over its base on NVIDIA H100"));
  EXPECT_THAT(heed_command(common + "--programs /none --book " + folder_.file("in.heed")).out,
              HasSubstr("because   run"));
  expect_refusal(common + "--programs /none --book \"\"", 1, "/none");
  expect_refusal(common + "--book /nowhere", 1, "/nowhere");
  expect_refusal("dispatch --shape b1h8l512d64 --arch sm_1", 2, "sm_1");
  expect_refusal("dispatch --arch sm_90a", 2, "no workload");
}

// Writers at once, each killed or not: the book holds what every one said that it added.
TEST_F(CliBook, ImportsAtOnceAndKillsLoseNothing) {
  const std::string so = folder_.file("v.so");
  const Printed built =
      heed_command("build fwd_cpu:unit=vector --shape b1h1l40d16:fp32 -o " + so + " --json " + cache());
  ASSERT_EQ(built.code, 0) << built.err;
  const nlohmann::json variant = nlohmann::json::parse(built.out);
  constexpr int kBooks = 6;
  std::string all;
  for (int i = 0; i < kBooks; ++i) {
    dispatch::BookEntry entry = champion({.workload = "b1h1l40d16:fp32",
                                          .arch = cpu_facts().arch,
                                          .device = "CPU " + std::to_string(i),
                                          .variant = variant["config"],
                                          .image = read_file(so, ErrorCode::internal)});
    entry.record.machine_code = variant["machine_code"];
    lay("in" + std::to_string(i), {entry});
    const std::string command = std::string(testing_support::kHeedBinary) + " book import " +
                                folder_.file("in" + std::to_string(i)) + " " + book();
    // Some are killed somewhere on the way, and come again.
    if (i % 2 == 1)
      all += "(timeout -s KILL 0.0" + std::to_string(i) + " " + command + "; " + command + ") & ";
    else
      all += command + " & ";
  }
  ASSERT_TRUE(run_process({"sh", "-c", "(" + all + " wait) >/dev/null 2>&1"}, {}, kLimit_s).ok());
  EXPECT_EQ(dispatch::Book::read(folder_.file("book.heed")).entries().size(), static_cast<std::size_t>(kBooks));
}

}  // namespace
}  // namespace heed
