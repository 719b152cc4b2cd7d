// Edits of sources from the command line: judged, stored, shown, replayed, emitted, adopted.
#include <nlohmann/json.hpp>

#include "cli/command_line.hpp"
#include "store/store.hpp"

namespace heed {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Judge : public Cli {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    write_file_atomically(folder_.file(name), text, ErrorCode::internal);
    return folder_.file(name);
  }
  [[nodiscard]] std::string judge(const std::string& patch) const {
    return "judge --family fwd_cpu:unit=vector --shape b1h2l96d32:fp32 --measure-limit 0.3 --patch " + patch + " " +
           db() + " " + cache();
  }
  // Exit code and document.
  std::pair<int, nlohmann::json> judged(const std::string& edits) {
    const Printed run = heed_command(judge(write("edits.txt", edits)) + " --json");
    return {run.code, nlohmann::json::parse(run.out, nullptr, /*allow_exceptions=*/false)};
  }
};

constexpr const char* kHonest =
    "<insight>A sum in another order.</insight>\ncpu/vector_forward.hpp\n<<<<<<< SEARCH\n"
    "    for (int v = 0; v < kVectors; ++v) sum[v] += tile_sum[v];\n=======\n"
    "    for (int v = kVectors - 1; v >= 0; --v) sum[v] = sum[v] + tile_sum[v] * broadcast(1.0F);\n"
    "    if (count < 0) sum[0] += 1.0F;\n>>>>>>> REPLACE\n";

std::string block(const std::string& path, const std::string& search, const std::string& replace) {
  return path + "\n<<<<<<< SEARCH\n" + search + "\n=======\n" + replace + "\n>>>>>>> REPLACE\n";
}

TEST_F(Judge, AnHonestEditIsMeasuredStoredShownReplayedAndAdopted) {
  const auto [code, first] = judged(kHonest);
  ASSERT_TRUE(first.is_object());
  ASSERT_EQ(first["verdict"], "ok") << first.dump(1);
  EXPECT_EQ(code, 0);
  EXPECT_GT(first["ratio"]["value"].get<double>(), 0);
  EXPECT_LE(first["ratio"]["low"].get<double>(), first["ratio"]["high"].get<double>());
  EXPECT_EQ(first["edits"]["insight"], "A sum in another order.");
  EXPECT_THAT(first["variant"].get<std::string>(), HasSubstr("+src:"));
  EXPECT_TRUE(first["earlier"].is_null());
  const std::string id = std::to_string(first["trial"].get<int>());

  const Printed shown = heed_command("show " + id + " --diff " + db());
  EXPECT_THAT(shown.out, StartsWith("diff --git a/cpu/vector_forward.hpp b/cpu/vector_forward.hpp\n"));
  EXPECT_EQ(shown.out, first["edits"]["diff"].get<std::string>());
  EXPECT_THAT(heed_command("show " + std::to_string(first["run"].get<int>()) + " " + db()).out, HasSubstr("judged"));
  EXPECT_THAT(heed_command("emit t" + id + " " + db()).out, HasSubstr("if (count < 0) sum[0] += 1.0F;"));
  EXPECT_THAT(heed_command("replay " + id + " --measure-limit 0.3 " + db() + " " + cache()).out,
              HasSubstr("the machine code is the same"));
  expect_refusal("evolve --resume " + std::to_string(first["run"].get<int>()) + " " + db() + " " + cache(), 2,
                 "no search to go on with");

  const Printed adopted = heed_command("adopt " + id + " " + db());
  EXPECT_EQ(adopted.code, 0);
  EXPECT_EQ(adopted.out, shown.out);
  const std::string patch = folder_.file("a.patch");
  EXPECT_EQ(heed_command("adopt t" + id + " -o " + patch + " " + db()).code, 0);
  EXPECT_EQ(read_file(patch, ErrorCode::internal), shown.out);
  // A checkout with the file, and a folder that has none.
  const std::string tree = folder_.file("tree");
  std::filesystem::create_directories(tree + "/cpu");
  std::filesystem::copy_file(std::string(testing_support::kSourceFolder) + "/cpu/vector_forward.hpp",
                             tree + "/cpu/vector_forward.hpp");
  if (!run_process({"git", "-C", tree, "init", "-q"}, {}, 20).ok()) GTEST_SKIP() << "no git here";
  const auto apply_in = [&](const std::string& where) {
    return run_process(
        {"sh", "-c",
         "cd " + where + " && " + std::string(testing_support::kHeedBinary) + " adopt " + id + " --apply " + db()},
        {}, 60);
  };
  EXPECT_TRUE(apply_in(tree).ok());
  EXPECT_THAT(read_file(tree + "/cpu/vector_forward.hpp", ErrorCode::internal),
              HasSubstr("if (count < 0) sum[0] += 1.0F;"));
  const ProcessResult again = apply_in(tree);
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.output, HasSubstr("git apply does not take its patch here"));

  // The same again, with other comments, and as the diff that is stored, is turned away.
  const auto [twice, second] =
      judged(std::string(kHonest) + block("cpu/vector_forward.hpp", " private:", " private:  // of it"));
  EXPECT_EQ(twice, 1);
  EXPECT_EQ(second["verdict"], "duplicate");
  EXPECT_EQ(second["reason"], "the same tokens as trial " + id + ", which ended ok");
  EXPECT_EQ(second["run"], first["run"]);
  EXPECT_TRUE(second["ratio"].is_null());
  EXPECT_EQ(second["earlier"]["trial"], first["trial"]);
  EXPECT_EQ(second["earlier"]["verdict"], "ok");
  EXPECT_EQ(second["earlier"]["ratio"], first["ratio"]["value"]);
  EXPECT_EQ(second["earlier"]["low"], first["ratio"]["low"]);
  EXPECT_EQ(second["earlier"]["high"], first["ratio"]["high"]);
  EXPECT_EQ(judged(shown.out).second["verdict"], "duplicate");
  // Another text with the same machine code as the base.
  const auto [same, none] =
      judged(block("cpu/rows.hpp", "  if (!sees) return 0;\n  return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");",
                   "  if (not sees) return 0;\n  return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");"));
  EXPECT_EQ(same, 1);
  EXPECT_EQ(none["verdict"], "duplicate") << none.dump(1);
  EXPECT_EQ(none["earlier"],
            nlohmann::json({{"trial", nullptr}, {"ratio", 1.0}, {"low", 1.0}, {"high", 1.0}, {"verdict", "ok"}}));
}

TEST_F(Judge, WhatIsWrongIsAVerdictWithAReason) {
  const auto [wrong_code, wrong] = judged(block("cpu/rows.hpp", "  return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");",
                                                "  return sum > 0 ? 2.0F / sum : __builtin_nanf(\"\");"));
  EXPECT_EQ(wrong_code, 1);
  EXPECT_EQ(wrong["verdict"], "wrong") << wrong.dump(1);
  EXPECT_TRUE(wrong["ratio"].is_null());
  const std::string id = std::to_string(wrong["trial"].get<int>());
  expect_refusal("adopt " + id + " " + db(), 1, "is not adopted: it ended wrong");

  const auto [build_code, build] =
      judged(block("cpu/rows.hpp", "  if (!sees) return 0;\n  return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");",
                   "  return no_such_name;"));
  EXPECT_EQ(build_code, 1);
  EXPECT_EQ(build["verdict"], "build_failed");
  EXPECT_THAT(build["log"].get<std::string>(), HasSubstr("cpu/rows.hpp:64:"));
  EXPECT_THAT(build["reason"].get<std::string>(), HasSubstr("no_such_name"));

  const auto [refused_code, refused] = judged(block("cpu/rows.hpp", "#pragma once", "#pragma once\n#include <time.h>"));
  EXPECT_EQ(refused_code, 1);
  EXPECT_EQ(refused["verdict"], "cheating");
  EXPECT_EQ(refused["finding"], "breaks_contract");
  EXPECT_EQ(refused["check"], "source");

  const auto [nowhere_code, nowhere] = judged(block("cpu/rows.hpp", "no such line", "x"));
  EXPECT_EQ(nowhere_code, 1);
  EXPECT_EQ(nowhere["verdict"], "illegal");
  EXPECT_EQ(nowhere["check"], "edits");
  EXPECT_THAT(nowhere["reason"].get<std::string>(), HasSubstr("the nearest, line"));
  EXPECT_TRUE(nowhere["trial"].is_null());
  EXPECT_EQ(judged("I would rather not.").second["verdict"], "illegal");
  EXPECT_EQ(judged(std::string(10 << 20, 'x')).second["verdict"], "illegal");
}

TEST_F(Judge, WrongUsage) {
  expect_refusal(judge("no-such-file"), 2, "no-such-file");
  const std::string edits = write("edits.txt", kHonest);
  expect_refusal("judge --family fwd_cpu --patch " + edits + " " + db(), 2, "no workload");
  expect_refusal("judge --family no_such --shape b1h1l8d16 --patch " + edits + " " + db(), 2, "no_such");
  expect_refusal("judge --family fwd_cpu --shape b1h1l8d16 " + db(), 2, "--patch");
}

TEST_F(Judge, SanitizersNeedAGpu) {
  expect_refusal("verify fwd_cpu --shape b1h1l8d16 --device cpu --sanitize", 1,
                 "compute-sanitizer looks at kernels on an NVIDIA GPU");
  expect_refusal("verify fwd_cpu --random-workloads 3 --device cpu --sanitize", 2, "leave out --cases");
}

// Each row waits for a while, which no noise hides.
TEST_F(Judge, AJudgedTrialIsAnObservation) {
  const std::string line = "  return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");";
  const std::string wait = "  for (int i = 0; i < 20000; ++i) asm volatile(\"\" : \"+r\"(i));\n";
  const Printed slow =
      heed_command("judge --family fwd_cpu --shape b1h2l96d32:fp32 --measure-limit 0.3 --patch " +
                   write("slow.txt", block("cpu/rows.hpp", line, wait + line)) + " " + db() + " " + cache());
  ASSERT_EQ(slow.code, 0) << slow.out << slow.err;
  EXPECT_THAT(slow.out, HasSubstr("--diff " + db())) << "as it was called";
  const nlohmann::json list = nlohmann::json::parse(heed_command("insights list --json " + db()).out);
  ASSERT_EQ(list["insights"].size(), 1U) << list.dump(1);
  const nlohmann::json again = nlohmann::json::parse(heed_command("insights harvest --json " + db()).out);
  EXPECT_EQ(again["observations"], 1);
  EXPECT_EQ(again["added"], 0) << "the same once more";
}

// A trial of the database is a variant as any other.
TEST_F(Judge, AStoredTrialIsVerified) {
  const auto [code, first] = judged(kHonest);
  ASSERT_EQ(first["verdict"], "ok") << first.dump(1);
  const Printed verified = heed_command("verify t" + std::to_string(first["trial"].get<int>()) +
                                        " --json --device cpu " + db() + " " + cache());
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_EQ(nlohmann::json::parse(verified.out)["results"][0]["variant"], first["variant"]);
}

// As the database of an earlier Heed has it: the sources have changed since, so that a diff does not apply or makes
// other texts.
TEST_F(Judge, EditsOfOtherSourcesAreRefused) {
  ASSERT_EQ(judged(kHonest).first, 0);
  store::Store store(folder_.file("a.db"));
  store::TrialRecord trial = store.trials(1).back();
  const std::string diff = trial.edits["diff"];
  const std::size_t at = diff.find("sum[v] += tile_sum[v]");
  ASSERT_NE(at, std::string::npos);
  const auto stored_with = [&](std::string other, const std::string& digest) {
    trial.source_digest = "0123456789abcdef";
    trial.edits["diff"] = std::move(other);
    trial.edits["digest"] = digest;
    ++trial.number;
    return std::to_string(store.add_trial(trial));
  };
  const std::string elsewhere = stored_with(std::string(diff).replace(at, 6, "sum[w]"), trial.edits["digest"]);
  const std::string other_texts = stored_with(diff, "89abcdef");
  for (const std::string& id : {elsewhere, other_texts}) {
    const std::string words =
        "the edits of trial " + id + " were made for sources 0123456789abcdef, and this Heed has ";
    expect_refusal("adopt " + id + " " + db(), 1, words);
    const Printed replayed = heed_command("replay " + id + " " + db() + " " + cache());  // a note comes first
    EXPECT_EQ(replayed.code, 1);
    EXPECT_THAT(replayed.err, HasSubstr("heed: " + words));
    expect_refusal("emit t" + id + " " + db(), 1, words);
  }
  expect_refusal("adopt " + other_texts + " " + db(), 1, "they make other texts of them than those that were judged");
}

TEST_F(Judge, TrialsThatThereAreNone) {
  const std::string made = tiny_evolution(1);
  ASSERT_EQ(heed_command(made).code, 0);
  expect_refusal("adopt 999 " + db(), 2, "there is no trial 999");
  expect_refusal("adopt x17 " + db(), 2, "is no trial");
  expect_refusal("show x --diff " + db(), 2, "is no trial");
  expect_refusal("show x " + db(), 2, "is no run");
  expect_refusal("emit t999 " + db(), 2, "there is no trial 999");
  expect_refusal("adopt 1 " + db(), 1, "it edits no source");
  EXPECT_THAT(heed_command("show 1 --diff " + db()).out, HasSubstr("edits no source"));
  EXPECT_THAT(heed_command("emit fwd_cpu --shape b1h1l8d16 --whole").out, HasSubstr("// ---- cpu/forward.hpp"));
}

}  // namespace
}  // namespace heed
