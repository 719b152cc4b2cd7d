// Documents say what the evidence says.
#include <nlohmann/json.hpp>

#include "testing.hpp"

namespace heed {
namespace {

// What a document quotes between "<!-- evidence FILE -->" and "<!-- end -->" must be the "table" of that file, word for
// word, in a code block.
int check_quotes(const std::filesystem::path& root, const std::filesystem::path& document) {
  const std::string text = read_file(root / document, ErrorCode::internal);
  const std::string opening = "<!-- evidence ";
  const std::string closing = "<!-- end -->";
  int quoted = 0;
  for (std::size_t at = text.find(opening); at != std::string::npos; at = text.find(opening, at)) {
    const std::size_t name_end = text.find(" -->", at);
    const std::size_t block_end = text.find(closing, at);
    if (name_end == std::string::npos || block_end == std::string::npos) {
      ADD_FAILURE() << document << " opens a quotation of evidence that it does not close";
      return quoted;
    }
    const std::string name = text.substr(at + opening.size(), name_end - at - opening.size());
    const std::string block = text.substr(name_end + 4, block_end - name_end - 4);
    const auto evidence = nlohmann::json::parse(read_file(root / name, ErrorCode::internal));
    EXPECT_EQ(trim(block), "```\n" + trim(evidence.at("table").get<std::string>()) + "\n```")
        << document << " does not quote the table of " << name << " as it is";
    at = block_end;
    ++quoted;
  }
  return quoted;
}

TEST(Documents, TablesAreTheEvidence) {
  const std::filesystem::path root = HEED_SOURCE_FOLDER;
  EXPECT_GE(check_quotes(root, "README.md"), 1);
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") check_quotes(root, entry.path().lexically_relative(root));
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
