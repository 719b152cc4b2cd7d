// Examples of --help and of documents: each command has some, takes their options, and their variants are legal.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "cli/command_line.hpp"

namespace heed {
namespace {

// Names of the lines behind "Subcommands:".
std::vector<std::string> commands_in(const std::string& help) {
  std::vector<std::string> names;
  const std::size_t at = help.find("Subcommands:\n");
  if (at == std::string::npos) return names;
  std::istringstream lines(help.substr(at));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && line.starts_with("  "))
    if (line.size() > 2 && line[2] != ' ') names.push_back(line.substr(2, line.find(' ', 2) - 2));
  return names;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream words(line);
  std::vector<std::string> all;
  for (std::string word; words >> word && word != "&&" && word != "|";) all.push_back(word);
  return all;
}

class CliExamples : public Cli {
 protected:
  // "book add" of "  heed book add 3"; "" of what is no command.
  [[nodiscard]] std::string command_of(const std::string& example) const {
    const std::vector<std::string> words = words_of(example);
    if (words.size() > 2 && help_.count(fmt::format("{} {}", words[1], words[2])) > 0)
      return fmt::format("{} {}", words[1], words[2]);
    return words.size() > 1 && help_.count(words[1]) > 0 ? words[1] : "";
  }

  // The options of a line are those of its command, and its variants are legal.
  void expect_options(const std::string& example) {
    SCOPED_TRACE(example);
    const std::string command = command_of(example);
    ASSERT_NE(command, "");
    const std::vector<std::string> words = words_of(example);
    std::string shape;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i].starts_with("--") && words[i] != "--help") {
        EXPECT_THAT(help_.at(command), ::testing::ContainsRegex(words[i] + "[ ,]")) << words[i];
      }
      if (words[i] == "--shape" && i + 1 < words.size()) shape = words[i + 1];
    }
    if (shape.empty() || command == "judge" || command == "landscape") return;
    for (const std::string& word : words) {
      if (!word.starts_with("fwd_") || !checked_.insert(fmt::format("{} {}", word, shape)).second) continue;
      const Printed emitted = heed_command(fmt::format("emit {} --shape {}", word, shape));
      EXPECT_EQ(emitted.code, 0) << emitted.err;
    }
  }

  void learn(const std::string& command, const std::string& help) {
    const std::size_t at = help.find("\nExample");
    EXPECT_NE(at, std::string::npos) << command << " has no examples";
    EXPECT_THAT(help.substr(std::min(at, help.size())), ::testing::HasSubstr("  heed " + command));
    help_[command] = help.substr(0, at);
    std::istringstream lines(help.substr(std::min(at, help.size())));
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("  heed ")) examples_.push_back(line);
  }

  std::map<std::string, std::string> help_;  // what stands before a command's examples
  std::vector<std::string> examples_;
  std::set<std::string> checked_;
};

TEST_F(CliExamples, EveryCommandHasSomeAndTakesThoseOfDocuments) {
  for (const std::string& command : commands_in(heed_command("--help").out)) {
    const std::string help = heed_command(command + " --help").out;
    learn(command, help);
    for (const std::string& one : commands_in(help)) {
      const std::string both = fmt::format("{} {}", command, one);
      learn(both, heed_command(both + " --help").out);
    }
  }
  EXPECT_GE(help_.size(), 49U);
  EXPECT_GE(examples_.size(), 60U);
  for (const std::string& example : examples_) expect_options(example);

  const std::filesystem::path root = testing_support::kSourceFolder;
  std::vector<std::filesystem::path> documents = {root / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs")) documents.push_back(entry.path());
  int lines = 0;
  for (const std::filesystem::path& document : documents) {
    std::istringstream text(read_file(document, ErrorCode::internal));
    for (std::string line; std::getline(text, line);)
      if (line.starts_with("    heed ")) {
        ++lines;
        expect_options(line);
      }
  }
  EXPECT_GE(lines, 30);
}

}  // namespace
}  // namespace heed
