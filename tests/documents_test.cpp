// Documents say what the evidence says.
#include <nlohmann/json.hpp>

#include "testing.hpp"

namespace heed {
namespace {

// README.md quotes tables between <!-- evidence FILE --> and <!-- end -->; each must be the "table" of that file, word
// for word.
TEST(Documents, ReadmeTablesAreTheEvidence) {
  const std::filesystem::path root = HEED_SOURCE_FOLDER;
  const std::string readme = read_file(root / "README.md", ErrorCode::internal);
  const std::string opening = "<!-- evidence ";
  std::size_t at = 0;
  int quoted = 0;
  while ((at = readme.find(opening, at)) != std::string::npos) {
    const std::size_t name_end = readme.find(" -->", at);
    const std::size_t block_end = readme.find("<!-- end -->", at);
    ASSERT_NE(block_end, std::string::npos);
    const std::string name = readme.substr(at + opening.size(), name_end - at - opening.size());
    const std::string block = readme.substr(name_end + 4, block_end - name_end - 4);
    const auto evidence = nlohmann::json::parse(read_file(root / name, ErrorCode::internal));
    EXPECT_NE(block.find(evidence.at("table").get<std::string>()), std::string::npos)
        << "README.md does not quote the table of " << name;
    at = block_end;
    ++quoted;
  }
  EXPECT_GE(quoted, 1);
}

TEST(Documents, EvidenceFilesHaveTheSchema) {
  const std::filesystem::path root = std::filesystem::path(HEED_SOURCE_FOLDER) / "evidence";
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    const auto json = nlohmann::json::parse(read_file(entry.path(), ErrorCode::internal));
    for (const char* key : {"schema", "device", "arch", "driver", "heed", "source_digest"})
      EXPECT_TRUE(json.contains(key)) << entry.path() << " lacks " << key;
    EXPECT_EQ(json.value("schema", 0), 1) << entry.path();
  }
  EXPECT_GE(files, 1);
}

}  // namespace
}  // namespace heed
