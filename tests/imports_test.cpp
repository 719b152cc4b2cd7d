// Imports point one way, and the device sources include nothing of the host.
#include <map>
#include <regex>
#include <set>

#include "folders.hpp"
#include "testing.hpp"

namespace heed {
namespace {

namespace fs = std::filesystem;

// What each module may include, besides itself.
const std::map<std::string, std::set<std::string>> kAllowed = {
    {"kernels", {}},
    {"cpu", {"kernels", "heed", "base", "workload"}},
    {"base", {"heed"}},
    {"workload", {"heed", "base", "kernels"}},
    {"variant", {"heed", "base", "workload", "kernels", "cpu"}},
    {"device", {"heed", "base", "variant", "kernels"}},
    {"jit", {"heed", "base", "variant"}},
    {"worker", {"heed", "base", "workload", "variant", "kernels", "jit", "device"}},
    {"launch", {"heed", "base", "kernels"}},
    {"verify", {"heed", "base", "workload", "variant", "worker", "cpu"}},
    {"measure", {"heed", "base", "workload", "variant", "worker", "verify", "jit"}},
    {"profile", {"heed", "base", "variant", "device", "jit", "worker", "verify", "measure"}},
    {"trial", {"heed", "base", "variant", "device", "jit", "worker", "verify", "measure"}},
    {"store", {"heed", "base"}},
    {"evolve", {"heed", "base", "variant", "device", "jit", "verify", "measure", "profile", "trial", "store"}},
    {"report", {"heed", "base", "store"}},
    {"ladder",
     {"heed", "base", "kernels", "variant", "device", "jit", "verify", "measure", "trial", "evolve", "report"}},
};

std::string module_of(const fs::path& relative) {
  auto part = relative.begin();
  if (*part == "src") ++part;
  return part->string();
}

TEST(Imports, PointOneWay) {
  const fs::path root = testing_support::kSourceFolder;
  const std::regex include("^#include \"([^\"]+)\"");
  int files = 0;
  for (const char* folder : {"src", "cpu", "kernels"})
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".hpp" && extension != ".cpp" && extension != ".cuh") continue;
      ++files;
      const fs::path relative = entry.path().lexically_relative(root);
      const std::string module = module_of(relative);
      ASSERT_TRUE(kAllowed.count(module) != 0) << "unknown module of " << relative;
      std::ifstream file(entry.path());
      std::string line;
      while (std::getline(file, line)) {
        std::smatch match;
        if (!std::regex_search(line, match, include)) continue;
        const std::string target = module_of(fs::path(match[1].str()));
        EXPECT_TRUE(target == module || kAllowed.at(module).count(target) != 0) << relative << " includes " << match[1];
      }
    }
  EXPECT_GT(files, 50);
}

// Device sources are built on machines without any header but their own.
TEST(Imports, DeviceSourcesIncludeNoSystemHeader) {
  const fs::path root = testing_support::kSourceFolder;
  std::vector<fs::path> files = {root / "cpu/config.hpp", root / "cpu/simd.hpp", root / "cpu/exp2.hpp",
                                 root / "cpu/forward.hpp"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "kernels"))
    if (entry.is_regular_file()) files.push_back(entry.path());
  for (const fs::path& path : files) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) EXPECT_FALSE(line.rfind("#include <", 0) == 0) << path << ": " << line;
  }
}

TEST(Imports, StoreAndReportKnowNoCuda) {
  const fs::path root = testing_support::kSourceFolder;
  for (const char* folder : {"src/store", "src/report"})
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string text = read_file(entry.path(), ErrorCode::internal);
      EXPECT_EQ(text.find("cuda.h"), std::string::npos) << entry.path();
      EXPECT_EQ(text.find("cuda_driver"), std::string::npos) << entry.path();
    }
}

// libstdc++ 12 brings <cstdint> along with <string> and <vector>, libstdc++ 14 does not. Headers of Heed's do.
TEST(Imports, HeadersThatNameFixedWidthIntegersIncludeThem) {
  const fs::path root = testing_support::kSourceFolder;
  const std::regex named("std::u?int(8|16|32|64|ptr|max)_t");
  int files = 0;
  for (const char* folder : {"src", "include", "cli", "tests"})
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
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(testing_support::kSourceFolder) / "kernels")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path());
    std::string line;
    while (std::getline(file, line)) {
      EXPECT_FALSE(std::regex_search(line, by_value)) << entry.path() << ": " << line;
      by_reference += line.find("const Problem& kProblem>") != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_GT(by_reference, 40);
}

}  // namespace
}  // namespace heed
