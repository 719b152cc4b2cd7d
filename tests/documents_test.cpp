// Documents say what the evidence says.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "folders.hpp"
#include "report/support_table.hpp"
#include "testing.hpp"

namespace heed {
namespace {

constexpr std::size_t kLongestLine = 200;  ///< characters

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Whether `part` is some of the lines of `table`, one at least, in their order.
bool is_some_of(const std::vector<std::string>& part, const std::vector<std::string>& table) {
  auto at = table.begin();
  for (const std::string& line : part) {
    at = std::find(at, table.end(), line);
    if (at == table.end()) return false;
    ++at;
  }
  return !part.empty();
}

// Documents quote tables in code blocks between <!-- evidence FILE --> and <!-- end -->; each must be the "table" of
// that file, word for word, or with FILE#NAME the entry NAME of its "tables"; after "FILE lines" some of its lines.
// What is wrong with the quotes of `text`, one sentence each; `quoted` counts them.
std::vector<std::string> wrong_quotes(const std::filesystem::path& root, const std::string& text, int& quoted) {
  const std::string opening = "<!-- evidence ";
  const std::string some = " lines";
  const std::string fence = "```\n";
  std::vector<std::string> wrong;
  std::size_t at = 0;
  while ((at = text.find(opening, at)) != std::string::npos) {
    const std::size_t name_end = text.find(" -->", at);
    const std::size_t block_end = text.find("<!-- end -->", at);
    if (name_end == std::string::npos || block_end == std::string::npos || block_end < name_end) {
      wrong.push_back("a quote is not closed");
      break;
    }
    std::string name = text.substr(at + opening.size(), name_end - at - opening.size());
    const bool in_part = name.ends_with(some);
    if (in_part) name.resize(name.size() - some.size());
    const std::string block = trim(text.substr(name_end + 4, block_end - name_end - 4));
    const std::size_t part = name.find('#');
    const auto evidence = nlohmann::json::parse(read_file(root / name.substr(0, part), ErrorCode::internal));
    const std::string table =
        (part == std::string::npos ? evidence.at("table") : evidence.at("tables").at(name.substr(part + 1)))
            .get<std::string>();
    const bool is_block = block.size() > 2 * fence.size() && block.starts_with(fence) && block.ends_with("\n```");
    const std::string quote = is_block ? block.substr(fence.size(), block.size() - 2 * fence.size()) : std::string();
    if (in_part ? !is_some_of(lines_of(quote), lines_of(table)) : quote != trim(table))
      wrong.push_back("it does not quote the table of " + name);
    at = block_end;
    ++quoted;
  }
  return wrong;
}

// Files of this tree that `text` names, by paths from its root as in `evidence/h100/arena.json`. Patterns, with * or
// <..>, are no names.
std::vector<std::string> named_files(const std::string& text) {
  static const std::regex name(
      R"((?:^|[\s`(])((?:evidence|docs|lib|lab|exploits|examples|kernels|cpu|tests|tuned|scripts|python|cli|include)/[\w./-]*[\w/])(?=[\s`).,:;#]|$))");
  std::vector<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it) names.push_back((*it)[1].str());
  return names;
}

// Targets of the links and pictures of `text` that lead to files, without anchors.
std::vector<std::string> linked_files(const std::string& text) {
  static const std::regex link(R"(\]\(([^)#\s]+)(#[^)\s]*)?\))");
  std::vector<std::string> targets;
  for (std::sregex_iterator it(text.begin(), text.end(), link), end; it != end; ++it)
    if (const std::string target = (*it)[1].str(); target.find("://") == std::string::npos) targets.push_back(target);
  return targets;
}

// The anchors of a document's headings, as GitHub makes them: lower case, blanks as hyphens, punctuation left out.
std::set<std::string> anchors_of(const std::string& text) {
  std::set<std::string> anchors;
  bool in_code = false;
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with("```")) in_code = !in_code;
    if (in_code || !line.starts_with("#") || line.find(' ') == std::string::npos) continue;
    std::string anchor;
    for (const unsigned char c : line.substr(line.find(' ') + 1))
      if (c == ' ')
        anchor += '-';
      else if (std::isalnum(c) != 0 || c == '-' || c == '_')
        anchor += static_cast<char>(std::tolower(c));
    anchors.insert(anchor);
  }
  return anchors;
}

// Links of `text` to headings that are not there.
std::vector<std::string> dead_anchors(const std::filesystem::path& document, const std::string& text) {
  static const std::regex link(R"(\]\(([^)#\s]*)#([^)\s]+)\))");
  std::vector<std::string> dead;
  for (std::sregex_iterator it(text.begin(), text.end(), link), end; it != end; ++it) {
    const std::string target = (*it)[1].str();
    const std::filesystem::path path = target.empty() ? document : document.parent_path() / target;
    if (target.find("://") != std::string::npos || (!target.empty() && !std::filesystem::exists(path))) continue;
    if (anchors_of(target.empty() ? text : read_file(path, ErrorCode::internal)).count((*it)[2].str()) == 0)
      dead.push_back(target + "#" + (*it)[2].str());
  }
  return dead;
}

// What is wrong with the lines, names and links of a document, one sentence each.
std::vector<std::string> wrong_words(const std::filesystem::path& root, const std::filesystem::path& document,
                                     const std::string& text) {
  namespace fs = std::filesystem;
  std::vector<std::string> wrong;
  std::size_t number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    if (line.size() > kLongestLine)
      wrong.push_back("line " + std::to_string(number) + " has " + std::to_string(line.size()) + " characters");
  }
  for (const std::string& name : named_files(text))
    if (!fs::exists(root / name)) wrong.push_back("it names " + name + ", and there is none");
  for (const std::string& target : linked_files(text))
    if (!fs::exists(document.parent_path() / target)) wrong.push_back("its link to " + target + " leads nowhere");
  for (const std::string& anchor : dead_anchors(document, text))
    wrong.push_back("its link to " + anchor + " leads to no heading");
  return wrong;
}

std::vector<std::filesystem::path> documents_of(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> documents = {root / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") documents.push_back(entry.path());
  return documents;
}

TEST(Documents, TablesAreTheEvidence) {
  const std::filesystem::path root = testing_support::kSourceFolder;
  const std::vector<std::filesystem::path> documents = documents_of(root);
  EXPECT_GE(documents.size(), 3U);
  int quoted = 0;
  for (const std::filesystem::path& document : documents)
    EXPECT_THAT(wrong_quotes(root, read_file(document, ErrorCode::internal), quoted), ::testing::IsEmpty()) << document;
  EXPECT_GE(quoted, 1);
}

TEST(Documents, LinesAreShortAndNamedFilesAreThere) {
  const std::filesystem::path root = testing_support::kSourceFolder;
  for (const std::filesystem::path& document : documents_of(root))
    EXPECT_THAT(wrong_words(root, document, read_file(document, ErrorCode::internal)), ::testing::IsEmpty())
        << document;
}

// README has the table that `heed families --support` prints.
TEST(Documents, SupportIsTheFamiliesOwn) {
  const std::string readme =
      read_file(std::filesystem::path(testing_support::kSourceFolder) / "README.md", ErrorCode::internal);
  EXPECT_THAT(readme,
              ::testing::HasSubstr("<!-- heed families --support -->\n" + report::support_table() + "<!-- end -->\n"));
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

TEST(Documents, SomeLinesOfATableKeepTheirOrder) {
  const testing_support::TemporaryFolder folder;
  write_file_atomically(folder.file("a.json"), R"({"table": "us\none 1\n\ntwo 2\nthree 3\n"})", ErrorCode::internal);
  int quoted = 0;
  const auto wrong = [&](const std::string& lines) {
    return wrong_quotes(folder.path(), "<!-- evidence a.json lines -->\n```\n" + lines + "\n```\n<!-- end -->", quoted);
  };
  EXPECT_THAT(wrong("us\ntwo 2"), ::testing::IsEmpty());
  EXPECT_THAT(wrong("two 2\nus"), ::testing::SizeIs(1));
  EXPECT_THAT(wrong("us\ntwo"), ::testing::SizeIs(1));
  EXPECT_THAT(wrong("us\nus"), ::testing::SizeIs(1));
  EXPECT_THAT(wrong(""), ::testing::SizeIs(1));
}

TEST(Documents, LongLinesAndDeadNamesAreSeen) {
  const testing_support::TemporaryFolder folder;
  const std::filesystem::path document = folder.file("README.md");
  std::filesystem::create_directories(folder.path() / "docs");
  write_file_atomically(folder.file("docs/a.md"), "# A: `b_c`, d\n```\n# no heading\n```\n", ErrorCode::internal);
  const auto wrong = [&](const std::string& text) { return wrong_words(folder.path(), document, text); };
  EXPECT_THAT(wrong("# Own\n`docs/a.md`, [a](docs/a.md#a-b_c-d), ![c](docs/a.md), docs/*.md, "
                    "[d](https://example.com/docs/b), [e](#own)"),
              ::testing::IsEmpty());
  EXPECT_THAT(wrong("`docs/b.md`"), ::testing::SizeIs(1));
  EXPECT_THAT(wrong("as evidence/h100/none.json says."), ::testing::SizeIs(1));
  EXPECT_THAT(wrong("[a](docs/b.md#c)"), ::testing::SizeIs(2));
  EXPECT_THAT(wrong("[a](docs/a.md#no-heading)"), ::testing::SizeIs(1));
  EXPECT_THAT(wrong("[a](#none)"), ::testing::SizeIs(1));
  EXPECT_THAT(wrong(std::string(kLongestLine, 'x')), ::testing::IsEmpty());
  EXPECT_THAT(wrong(std::string(kLongestLine + 1, 'x')), ::testing::SizeIs(1));
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
