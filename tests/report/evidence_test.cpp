// Evidence files: current, stale, or no evidence at all.
#include "report/evidence.hpp"

#include "testing.hpp"

namespace heed::report {
namespace {

using testing_support::expect_error;
using testing_support::TemporaryFolder;

TEST(Evidence, ListsWhatIsCurrentStaleAndUnreadable) {
  const TemporaryFolder folder;
  make_folder(folder.path() / "gpu", ErrorCode::internal);
  const auto write = [&](const char* name, const std::string& content) {
    write_file_atomically(folder.path() / name, content, ErrorCode::internal);
  };
  nlohmann::json good = evidence_header("arena", {{"name", "A GPU"}, {"arch", "sm_90a"}, {"driver", "13.0"}}, "today");
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
  const std::vector<EvidenceFile> files = list_evidence(folder.path(), "today");
  ASSERT_EQ(files.size(), 7U);
  EXPECT_THAT(files[0].problem, ::testing::HasSubstr("no JSON object"));
  EXPECT_THAT(files[1].problem, ::testing::HasSubstr("schema 9; this Heed reads 1"));
  EXPECT_THAT(files[2].problem, ::testing::HasSubstr("no JSON object"));
  EXPECT_THAT(files[3].problem, ::testing::HasSubstr("lacks \"source_digest\""));
  EXPECT_THAT(files[4].problem, ::testing::HasSubstr("names no schema"));
  EXPECT_EQ(files[5].path, "gpu/a.json");
  EXPECT_TRUE(files[5].current);
  EXPECT_EQ(files[5].rows, 3U);
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

TEST(Evidence, AMissingFolderIsAnError) {
  expect_error(ErrorCode::usage, "there is no folder", [] { list_evidence("/no/such/folder", "today"); });
  const TemporaryFolder folder;
  EXPECT_THAT(evidence_text(list_evidence(folder.path(), "today")), ::testing::HasSubstr("no evidence"));
}

}  // namespace
}  // namespace heed::report
