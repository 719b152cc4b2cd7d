// Imports point one way, and the device sources include nothing of the host.
#include <functional>
#include <map>
#include <regex>
#include <set>

#include "folders.hpp"
#include "testing.hpp"

namespace heed {
namespace {

namespace fs = std::filesystem;

// What each room may include, besides itself. lib/ comes before lab/: no room of lib/ names one of lab/.
const std::map<std::string, std::set<std::string>> kAllowed = {
    {"kernels", {}},
    {"cpu", {"kernels"}},
    // lib/
    {"base", {"heed"}},
    {"workload", {"heed", "base", "kernels"}},
    {"device", {"heed", "base"}},
    {"variant", {"heed", "base", "workload", "device", "kernels", "cpu"}},
    {"compile", {"heed", "base", "variant"}},
    {"padding", {"heed", "base", "workload", "compile", "kernels"}},
    {"merge", {"heed", "base", "workload", "compile", "kernels"}},
    {"listing", {"compile", "kernels"}},
    {"quantise", {"heed", "base", "workload", "compile", "kernels"}},
    {"append", {"heed", "base", "workload", "compile", "quantise", "kernels"}},
    {"launch", {"heed", "base", "device", "variant", "kernels"}},
    {"dispatch",
     {"heed", "base", "device", "workload", "variant", "compile", "padding", "merge", "quantise", "append", "listing"}},
    {"api",
     {"compile", "heed", "base", "workload", "device", "variant", "launch", "dispatch", "padding", "merge", "quantise",
      "append", "listing", "kernels"}},
    {"offload",
     {"heed", "base", "workload", "device", "variant", "launch", "dispatch", "padding", "merge", "quantise", "kernels",
      "api"}},
    // lab/
    {"json", {"heed"}},
    {"process", {"heed", "base"}},
    {"verdict", {}},
    {"tensors", {"heed", "base", "workload"}},
    {"source", {"compile", "heed", "base", "variant"}},
    {"jit", {"json", "compile", "heed", "base", "device", "variant", "process"}},
    {"worker", {"heed", "base", "workload", "device", "variant", "launch", "kernels", "json", "process", "jit"}},
    {"verify", {"heed", "base", "workload", "quantise", "variant", "process", "verdict", "tensors", "worker"}},
    {"measure",
     {"json", "compile", "heed", "base", "workload", "device", "variant", "process", "jit", "worker", "verify"}},
    {"profile", {"heed", "base", "variant", "process", "jit", "worker", "verify", "measure"}},
    {"emulator",
     {"compile", "heed", "base", "workload", "variant", "launch", "kernels", "process", "source", "jit", "verdict",
      "verify"}},
    {"trial", {"heed", "base", "device", "variant", "process", "jit", "worker", "verify", "measure"}},
    {"conformance", {"api", "heed", "device", "measure", "verify"}},
    {"record", {"json", "heed", "base", "device", "emulator", "jit", "verify", "measure", "profile", "trial"}},
    {"store", {"heed", "base", "json", "verdict"}},
    {"insights", {"json", "heed", "base", "workload", "store"}},
    {"serve", {"heed", "base", "json", "process"}},
    {"models", {"heed", "base", "json", "process"}},
    {"prompts", {"compile", "heed", "base", "models"}},
    {"propose", {"heed", "base", "variant", "process", "source", "record", "store", "models", "prompts"}},
    {"report", {"json", "heed", "base", "workload", "quantise", "variant", "verdict", "store"}},
    {"evolve",
     {"compile", "base", "device", "emulator", "variant", "source", "process", "jit", "measure", "profile", "trial",
      "record", "store", "insights", "models", "prompts", "propose"}},
    {"landscape",
     {"compile", "heed", "base", "device", "variant", "process", "jit", "profile", "trial", "record", "evolve"}},
    // beside the library
    {"exploits", {"compile", "base", "source", "process", "jit", "trial"}},
    {"ladder",
     {"compile", "base", "variant", "process", "jit", "measure", "trial", "record", "report",
      "examples/ladder/kernels"}},
    {"examples/ladder/kernels", {"kernels"}},
    // what users of an installed libheed write
    {"library", {}},
};

// The room that a path below the root, or the name of an #include, lies in.
std::string room_of(const fs::path& path) {
  const std::string text = path.generic_string();
  const std::string ladder = "examples/ladder/kernels";
  if (text.rfind(ladder + "/", 0) == 0) return ladder;
  auto part = path.begin();
  if (*part == "lib" || *part == "lab" || *part == "examples") ++part;
  return part->string();
}

// The #includes of a file that its room may not have.
std::vector<std::string> wrong_imports(const fs::path& relative, const std::string& text) {
  const std::regex include("^#include \"([^\"]+)\"");
  const std::string room = room_of(relative);
  std::vector<std::string> wrong;
  for (const std::string& line : split(text, '\n')) {
    std::smatch match;
    if (!std::regex_search(line, match, include)) continue;
    const std::string target = room_of(fs::path(match[1].str()));
    if (target != room && kAllowed.at(room).count(target) == 0) wrong.push_back(match[1]);
  }
  return wrong;
}

// Headers of other projects that lib/ keeps out of the library as it is deployed; the champions alone are a JSON file.
std::vector<std::string> heavy_imports(const fs::path& relative, const std::string& text) {
  std::vector<std::string> found;
  for (const std::string header : {"nlohmann", "sqlite3.h", "linux/seccomp.h", "linux/landlock.h", "cupti"})
    if (text.find("#include <" + header) != std::string::npos &&
        !(header == "nlohmann" && room_of(relative) == "dispatch"))
      found.push_back(header);
  return found;
}

// Calls `body` with the path below the root and the text of every source file of a folder.
void for_each_source(const char* folder, const std::function<void(const fs::path&, const std::string&)>& body) {
  const fs::path root = testing_support::kSourceFolder;
  for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".hpp" || extension == ".cpp" || extension == ".cuh")
      body(entry.path().lexically_relative(root), read_file(entry.path(), ErrorCode::internal));
  }
}

TEST(Imports, PointOneWay) {
  std::set<std::string> rooms;
  for (const char* folder : {"kernels", "cpu", "lib", "lab", "exploits", "examples"})
    for_each_source(folder, [&](const fs::path& relative, const std::string& text) {
      const std::string room = room_of(relative);
      ASSERT_TRUE(kAllowed.count(room) != 0) << "unknown room of " << relative;
      rooms.insert(room);
      EXPECT_THAT(wrong_imports(relative, text), ::testing::IsEmpty()) << relative;
    });
  for (const auto& [room, allowed] : kAllowed) EXPECT_EQ(rooms.count(room), 1U) << "no file of " << room;
}

TEST(Imports, AWrongOneIsSeen) {
  using ::testing::ElementsAre;
  EXPECT_THAT(wrong_imports("lib/base/text.cpp", "#include \"base/text.hpp\"\n#include \"process/process.hpp\"\n"),
              ElementsAre("process/process.hpp"));
  EXPECT_THAT(wrong_imports("lab/store/store.cpp", "#include \"exploits/exploits.hpp\"\n"),
              ElementsAre("exploits/exploits.hpp"));
  EXPECT_THAT(wrong_imports("kernels/sm80/forward.cuh", "#include \"examples/ladder/kernels/common.cuh\"\n"),
              ElementsAre("examples/ladder/kernels/common.cuh"));
  EXPECT_THAT(heavy_imports("lib/base/text.cpp", "#include <nlohmann/json.hpp>\n"), ElementsAre("nlohmann"));
}

TEST(Imports, TheLibraryNeedsNoJsonNoDatabaseAndNoSandbox) {
  for_each_source("lib", [](const fs::path& relative, const std::string& text) {
    EXPECT_THAT(heavy_imports(relative, text), ::testing::IsEmpty()) << relative;
  });
}

// Device sources are built on machines without any header but their own.
TEST(Imports, DeviceSourcesIncludeNoSystemHeader) {
  for (const char* folder : {"kernels", "cpu", "exploits/cpu", "exploits/gpu", "examples/ladder/kernels"})
    for_each_source(folder, [](const fs::path& relative, const std::string& text) {
      EXPECT_EQ(("\n" + text).find("\n#include <"), std::string::npos) << relative;
    });
}

TEST(Imports, StoreAndReportKnowNoCuda) {
  for (const char* folder : {"lab/store", "lab/report"})
    for_each_source(folder, [](const fs::path& relative, const std::string& text) {
      EXPECT_EQ(text.find("cuda.h"), std::string::npos) << relative;
      EXPECT_EQ(text.find("cuda_driver"), std::string::npos) << relative;
    });
}

// libstdc++ 12 brings <cstdint> along with <string> and <vector>, libstdc++ 14 does not. Headers of Heed's do.
TEST(Imports, HeadersThatNameFixedWidthIntegersIncludeThem) {
  const fs::path root = testing_support::kSourceFolder;
  const std::regex named("std::u?int(8|16|32|64|ptr|max)_t");
  int files = 0;
  for (const char* folder : {"lib", "lab", "exploits", "examples", "include", "cli", "tests"})
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() != ".hpp") continue;
      const std::string text = read_file(entry.path(), ErrorCode::invalid_input);
      if (!std::regex_search(text, named) || text.find("#include \"") != std::string::npos) continue;
      ++files;
      EXPECT_NE(text.find("#include <cstdint>"), std::string::npos) << entry.path() << " lacks #include <cstdint>";
    }
  EXPECT_GT(files, 5);
}

// NVRTC from 13.2 on keeps what a template takes by value in global memory: kernels/contract.hpp.
TEST(Imports, KernelsTakeConfigsByReference) {
  const std::regex by_value("template <([^>]*[^&] )?(Config|Problem) k");
  int by_reference = 0;
  for (const char* folder : {"kernels", "examples/ladder/kernels"})
    for_each_source(folder, [&](const fs::path& relative, const std::string& text) {
      for (const std::string& line : split(text, '\n')) {
        EXPECT_FALSE(std::regex_search(line, by_value)) << relative << ": " << line;
        by_reference += line.find("const Problem& kProblem>") != std::string::npos ? 1 : 0;
      }
    });
  EXPECT_GT(by_reference, 40);
}

}  // namespace
}  // namespace heed
