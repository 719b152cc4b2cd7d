// Evidence files: current, stale, or no evidence at all.
#include "report/evidence.hpp"

#include "base/version.hpp"

#include "testing.hpp"

namespace heed::report {
namespace {

using testing_support::expect_error;
using testing_support::TemporaryFolder;

const Sources kToday = {"today", {{"fwd_a", "1"}, {"fwd_a_b", "2"}}};

TEST(Evidence, ListsWhatIsCurrentStaleAndUnreadable) {
  const TemporaryFolder folder;
  make_folder(folder.path() / "gpu", ErrorCode::internal);
  const auto write = [&](const char* name, const std::string& content) {
    write_file_atomically(folder.path() / name, content, ErrorCode::internal);
  };
  nlohmann::json good = evidence_header("arena", {{"name", "A GPU"}, {"arch", "sm_90a"}, {"driver", "13.0"}}, kToday);
  good["rows"] = {1, 2, 3};
  write("gpu/a.json", good.dump());
  good["source_digest"] = "before";
  write("gpu/b.json", good.dump());
  write("c.json", "{\"schema\": 1, ");
  write("d.json", "{\"schema\": 9, \"device\": \"x\"}");
  write("e.json", "[1, 2]");
  write("f.json", "{\"schema\": 1, \"device\": \"x\"}");
  write("g.json", "{}");
  write("notes.txt", "not looked at");
  const std::vector<EvidenceFile> files = list_evidence(folder.path(), kToday);
  ASSERT_EQ(files.size(), 7U);
  EXPECT_THAT(files[0].problem, ::testing::HasSubstr("no JSON object"));
  EXPECT_THAT(files[1].problem, ::testing::HasSubstr("schema 9; this Heed reads 1"));
  EXPECT_THAT(files[2].problem, ::testing::HasSubstr("no JSON object"));
  EXPECT_THAT(files[3].problem, ::testing::HasSubstr("lacks \"source_digest\""));
  EXPECT_THAT(files[4].problem, ::testing::HasSubstr("names no schema"));
  EXPECT_EQ(files[5].path, "gpu/a.json");
  EXPECT_TRUE(files[5].current);
  EXPECT_EQ(files[5].rows, 3U);
  EXPECT_EQ(files[5].referee, kReferee);
  EXPECT_EQ(files[5].device, "A GPU");
  EXPECT_EQ(files[5].what, "arena");
  EXPECT_FALSE(files[5].date.empty());
  EXPECT_FALSE(files[6].current);
  EXPECT_EQ(files[6].problem, "");
  const std::string text = evidence_text(files);
  EXPECT_THAT(text, ::testing::HasSubstr("stale"));
  EXPECT_THAT(text, ::testing::HasSubstr("current"));
  const nlohmann::json json = evidence_json(files);
  EXPECT_TRUE(json[0].contains("problem"));
  EXPECT_EQ(json[5]["current"], true);
}

// What names variants of unchanged families alone stays current; a file that names none, or was written without the
// families' digests, does not.
TEST(Evidence, OfFamiliesThatDidNotChangeIsCurrent) {
  const TemporaryFolder folder;
  const Sources before = {"before", {{"fwd_a", "1"}, {"fwd_a_b", "changed since"}}};
  const auto is_current = [&](const nlohmann::json& rows, bool has_digests) {
    nlohmann::json evidence = evidence_header("arena", {{"name", "A GPU"}}, before);
    evidence["rows"] = rows;
    if (!has_digests) evidence.erase("family_digests");
    write_file_atomically(folder.path() / "a.json", evidence.dump(), ErrorCode::internal);
    return list_evidence(folder.path(), kToday).at(0).current;
  };
  EXPECT_TRUE(is_current({{{"variant", "fwd_a_fp16_d64.m1.0123abcd"}}}, true));
  EXPECT_TRUE(is_current({{{"config", "fwd_a:knob=1"}}}, true));
  EXPECT_FALSE(is_current({{{"variant", "fwd_a_fp16_d64.m1.0123abcd"}}}, false));
  EXPECT_FALSE(is_current({{{"variant", "fwd_a_b_bf16_d64_causal.m1.0123abcd"}}}, true));
  EXPECT_FALSE(is_current({{{"config", "fwd_a:knob=1"}}, {{"config", "fwd_a_b:knob=1"}}}, true));
  EXPECT_FALSE(is_current({{{"name", "honest"}}}, true));
}

// Sources that changed may still be built into the same machine code, which is looked at only where it matters.
TEST(Evidence, OfTheSameMachineCodeSaysSo) {
  const TemporaryFolder folder;
  std::vector<Program> asked;
  const ProgramsOf programs_of = [&](const std::vector<Program>& programs) {
    asked = programs;
    std::vector<std::optional<std::string>> digests;
    for (const Program& p : programs)
      digests.push_back(p.config == "fwd_a_b:knob=9" ? std::nullopt
                                                     : std::optional<std::string>("code of " + p.config));
    return digests;
  };
  nlohmann::json evidence = evidence_header("arena", {{"name", "A GPU"}, {"arch", "sm_90a"}}, {"before", {}});
  const auto listed = [&](const Sources& today) {
    asked.clear();
    write_file_atomically(folder.path() / "a.json", evidence.dump(), ErrorCode::internal);
    return list_evidence(folder.path(), today, programs_of).at(0);
  };
  evidence["rows"] = {{{"variant", "fwd_a_b_fp16_d64.m1"}, {"config", "knob=1"}, {"workload", "b1h1l64d64:fp16"}},
                      {{"variant", "fwd_a_b_fp16_d64.m1"}, {"config", "knob=1"}, {"workload", "b1h1l64d64:fp16"}},
                      {{"variant", "fwd_a_bf16_d64.m2"}, {"config", "fwd_a:knob=2"}, {"workload", "b1h1l64d64:bf16"}},
                      {{"mode", "a row of none"}}};
  evidence["programs"] = {{"fwd_a_b_fp16_d64.m1", "code of fwd_a_b:knob=1"},
                          {"fwd_a_bf16_d64.m2", "code of fwd_a:knob=2"}};
  EXPECT_TRUE(listed(kToday).has_same_programs());
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[0].config, "fwd_a_b:knob=1");
  EXPECT_EQ(asked[0].workload, "b1h1l64d64:fp16");
  EXPECT_EQ(asked[0].arch, "sm_90a");
  EXPECT_THAT(evidence_text({listed(kToday)}), ::testing::HasSubstr("same programs"));
  EXPECT_EQ(evidence_json({listed(kToday)})[0]["same_programs"], 2);
  EXPECT_EQ(listed({"before", {}}).programs, 0U) << "current, which needs no builds";
  EXPECT_TRUE(asked.empty());
  evidence["programs"]["fwd_a_bf16_d64.m2"] = "other code";
  EXPECT_FALSE(listed(kToday).has_same_programs());
  EXPECT_THAT(evidence_text({listed(kToday)}), ::testing::HasSubstr("stale: 1 of 2 programs are the same"));
  evidence["programs"].erase("fwd_a_bf16_d64.m2");
  EXPECT_FALSE(listed(kToday).has_same_programs()) << "a variant whose machine code was not written down";
  evidence["programs"]["fwd_a_bf16_d64.m2"] = "code of fwd_a:knob=2";
  evidence["rows"][0]["config"] = evidence["rows"][1]["config"] = "knob=9";
  EXPECT_FALSE(listed(kToday).has_same_programs()) << "a variant that is no more";
  evidence["rows"] = nlohmann::json::array();
  EXPECT_FALSE(listed(kToday).has_same_programs()) << "no variant at all";
  EXPECT_EQ(list_evidence(folder.path(), kToday).at(0).programs, 0U) << "nothing was built";
  // A file of one variant, which has no rows; and a row of its family's default, which names no config.
  evidence.erase("rows");
  evidence.update({{"variant", "fwd_a_bf16_d64.m2"}, {"config", "fwd_a:knob=2"}, {"workload", "b1h1l64d64:bf16"}});
  EXPECT_TRUE(listed(kToday).has_same_programs());
  evidence["rows"] = {{{"variant", "fwd_a_fp16_d64.m3"}, {"workload", "b1h1l64d64:fp16"}}};
  evidence["programs"] = {{"fwd_a_fp16_d64.m3", "code of fwd_a"}};
  EXPECT_TRUE(listed(kToday).has_same_programs());
}

// Rows of suites have names with words behind the workload; their programs are built for the workload as the command
// line spells it.
TEST(Evidence, WorkloadsAreThoseOfTheCommandLine) {
  const TemporaryFolder folder;
  nlohmann::json evidence = evidence_header("arena", {{"name", "A GPU"}, {"arch", "sm_90a"}}, {"before", {}});
  evidence["programs"] = {{"fwd_a_fp16_d64.m1", "code"}};
  const auto workload_of = [&](const nlohmann::json& row) {
    evidence["rows"] = nlohmann::json::array({row});
    evidence["rows"][0].update({{"variant", "fwd_a_fp16_d64.m1"}, {"config", "knob=1"}});
    write_file_atomically(folder.path() / "a.json", evidence.dump(), ErrorCode::internal);
    std::string asked;
    (void)list_evidence(folder.path(), kToday, [&](const std::vector<Program>& programs) {
      asked = programs.at(0).workload;
      return std::vector<std::optional<std::string>>{"code"};
    });
    (void)parse_workload(asked);
    return asked;
  };
  EXPECT_EQ(workload_of({{"workload", "b1h2l64d64:fp16 (fp8)"}}), "b1h2l64d64:fp16:quantised=qkv/e4m3/head");
  EXPECT_EQ(workload_of({{"workload", "b1h2l64d64:fp16:causal_top_left (int8_smooth)"}}),
            "b1h2l64d64:fp16:causal_top_left:quantised=q/int8/block32+k/int8/block64");
  EXPECT_EQ(workload_of({{"workload", "b2h2l64d64:bf16:key_lengths (lengths full)"}}), "b2h2l64d64:bf16:key_lengths");
  EXPECT_EQ(workload_of({{"workload", "b1h2l64d64:fp16"}}), "b1h2l64d64:fp16");
  EXPECT_EQ(workload_of({{"workload", "a name (of its own)"}, {"text", "b1h2l64d64:fp16:quantised=kv/e5m2/token"}}),
            "b1h2l64d64:fp16:quantised=kv/e5m2/token");
}

TEST(Evidence, HoldsTheMachineCodeOfTheVariantsItNames) {
  nlohmann::json evidence = {{"rows", {{{"variant", "one"}}, {{"variant", "unknown"}}}}};
  store::TrialRecord one, other, unbuilt;
  one.variant = "one", one.machine_code = "1";
  other.variant = "other", other.machine_code = "2";
  unbuilt.variant = "unknown";
  add_programs(evidence, {other, one, unbuilt});
  EXPECT_EQ(evidence["programs"], (nlohmann::json{{"one", "1"}}));
}

TEST(Evidence, FamiliesAreAddedToWhatIsOfTodaysSourcesAlone) {
  nlohmann::json today = {{"source_digest", "today"}};
  nlohmann::json old = {{"source_digest", "before"}};
  add_family_digests(today, kToday);
  add_family_digests(old, kToday);
  EXPECT_EQ(today["family_digests"]["fwd_a_b"], "2");
  EXPECT_FALSE(old.contains("family_digests"));
}

TEST(Evidence, AMissingFolderIsAnError) {
  expect_error(ErrorCode::usage, "there is no folder", [] { list_evidence("/no/such/folder", kToday); });
  const TemporaryFolder folder;
  EXPECT_THAT(evidence_text(list_evidence(folder.path(), kToday)), ::testing::HasSubstr("no evidence"));
}

}  // namespace
}  // namespace heed::report
