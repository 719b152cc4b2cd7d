// Documents say what the evidence says.
#include <nlohmann/json.hpp>

#include "folders.hpp"
#include "testing.hpp"

namespace heed {
namespace {

// Documents quote tables in code blocks between <!-- evidence FILE --> and <!-- end -->; each must be the "table" of
// that file, word for word, or with FILE#NAME the entry NAME of its "tables". What is wrong with the quotes of `text`,
// one sentence each; `quoted` counts them.
std::vector<std::string> wrong_quotes(const std::filesystem::path& root, const std::string& text, int& quoted) {
  const std::string opening = "<!-- evidence ";
  std::vector<std::string> wrong;
  std::size_t at = 0;
  while ((at = text.find(opening, at)) != std::string::npos) {
    const std::size_t name_end = text.find(" -->", at);
    const std::size_t block_end = text.find("<!-- end -->", at);
    if (name_end == std::string::npos || block_end == std::string::npos || block_end < name_end) {
      wrong.push_back("a quote is not closed");
      break;
    }
    const std::string name = text.substr(at + opening.size(), name_end - at - opening.size());
    const std::string block = text.substr(name_end + 4, block_end - name_end - 4);
    const std::size_t part = name.find('#');
    const auto evidence = nlohmann::json::parse(read_file(root / name.substr(0, part), ErrorCode::internal));
    const nlohmann::json& table =
        part == std::string::npos ? evidence.at("table") : evidence.at("tables").at(name.substr(part + 1));
    if (trim(block) != "```\n" + trim(table.get<std::string>()) + "\n```")
      wrong.push_back("it does not quote the table of " + name);
    at = block_end;
    ++quoted;
  }
  return wrong;
}

TEST(Documents, TablesAreTheEvidence) {
  const std::filesystem::path root = testing_support::kSourceFolder;
  std::vector<std::filesystem::path> documents = {root / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") documents.push_back(entry.path());
  EXPECT_GE(documents.size(), 3U);
  int quoted = 0;
  for (const std::filesystem::path& document : documents)
    EXPECT_THAT(wrong_quotes(root, read_file(document, ErrorCode::internal), quoted), ::testing::IsEmpty()) << document;
  EXPECT_GE(quoted, 1);
}

TEST(Documents, AChangedTableIsSeen) {
  const testing_support::TemporaryFolder folder;
  write_file_atomically(folder.file("a.json"), R"({"table": "5.54 us\n", "tables": {"latency": "9.1 us"}})",
                        ErrorCode::internal);
  int quoted = 0;
  const auto wrong = [&](const std::string& text) { return wrong_quotes(folder.path(), text, quoted); };
  EXPECT_THAT(wrong("<!-- evidence a.json -->\n```\n5.54 us\n```\n<!-- end -->"), ::testing::IsEmpty());
  EXPECT_THAT(wrong("<!-- evidence a.json#latency -->\n```\n9.1 us\n```\n<!-- end -->"), ::testing::IsEmpty());
  EXPECT_THAT(wrong("<!-- evidence a.json#latency -->\n```\n5.54 us\n```\n<!-- end -->"), ::testing::SizeIs(1));
  EXPECT_THAT(wrong("<!-- evidence a.json -->\n5.45 us\n<!-- end -->"), ::testing::SizeIs(1));
  EXPECT_THAT(wrong("<!-- evidence a.json -->\n5.54 us\n"), ::testing::SizeIs(1));
}

TEST(Documents, EvidenceFilesHaveTheSchema) {
  const std::filesystem::path root = std::filesystem::path(testing_support::kSourceFolder) / "evidence";
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
