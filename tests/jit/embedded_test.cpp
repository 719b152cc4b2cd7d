// Device sources that the binary carries: what a family is made of, and what counts in digests and keys of builds.
#include "compile/embedded.hpp"

#include <algorithm>
#include <set>

#include "base/digest.hpp"
#include "compile/code_text.hpp"
#include "device/device.hpp"
#include "jit/build.hpp"
#include "jit/builders.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed::jit {
namespace {

using testing_support::expect_error;
using testing_support::TemporaryFolder;

TEST(Embedded, AFamilyIsMadeOfItsFolderAndWhatThatIncludes) {
  const std::set<std::string> stream = compile::sources_of(find_family("fwd_sm90_persistent"));
  for (const char* path : {"kernels/sm90/persistent/forward.cuh", "kernels/sm90/persistent/config.hpp",
                           "kernels/ptx/wgmma.cuh", "kernels/tile/matrix_descriptor.hpp", "kernels/contract.hpp"})
    EXPECT_EQ(stream.count(path), 1U) << path;
  EXPECT_EQ(stream.count("kernels/sm90/split/forward.cuh"), 0U);
  std::set<std::string> digests;
  for (const Family* family : families()) {
    digests.insert(compile::family_digests().at(std::string(family->name())));
    const Workload workload = parse_workload("b1h2l64d64:fp16");
    DeviceFacts device = gpu_limits("sm_90a");
    if (family->device() == DeviceKind::cpu) device = cpu_facts();
    const std::string source = family->prelude(family->default_config(workload, device), problem_of(workload));
    const std::size_t begin = source.find('"') + 1;
    EXPECT_EQ(compile::sources_of(*family).count(source.substr(begin, source.find('"', begin) - begin)), 1U) << source;
  }
  EXPECT_EQ(digests.size(), families().size());
  EXPECT_EQ(digests.count(compile::source_digest()), 0U);
}

// What no search builds from must not make stored results those of other sources, nor empty the cache.
TEST(Embedded, SourcesOutsideTheLibraryCountWhereTheyAreIncluded) {
  const auto lies_outside = [](const auto& file) { return file.first.rfind("examples/", 0) == 0; };
  const auto& files = compile::device_files();
  EXPECT_GT(std::count_if(files.begin(), files.end(), lies_outside), 10) << "the ladder is registered by main";
  Digester library;
  for (const auto& [path, content] : files)
    if (!lies_outside(std::pair(path, content))) library.add(path).add(compile::code_text(content));
  EXPECT_EQ(compile::source_digest(), library.hex().substr(0, 16));

  const std::set<std::string> step = compile::included_by("#include \"examples/ladder/kernels/scalar.cuh\"\n");
  EXPECT_EQ(step.count("examples/ladder/kernels/common.cuh"), 1U);
  EXPECT_EQ(step.count("kernels/contract.hpp"), 1U);
  EXPECT_EQ(step.count("kernels/sm80/forward/forward.cuh"), 0U);
  const std::set<std::string> sm80 = compile::included_by("#include \"kernels/sm80/forward/forward.cuh\"\n");
  EXPECT_GT(sm80.size(), 5U);
  EXPECT_TRUE(std::none_of(sm80.begin(), sm80.end(), [](const auto& path) { return path.rfind("examples/", 0) == 0; }));
  EXPECT_TRUE(compile::included_by("#include <cuda.h>\n// #include \"kernels/contract.hpp\"\n").empty());
}

TEST(Embedded, APathHasOneContent) {
  static constexpr compile::EmbeddedFile kFiles[] = {{"kernels/contract.hpp", "another"}};
  expect_error(ErrorCode::internal, "internal check failed", [] { compile::add_device_files(kFiles); });
}

// The key of a build changes with the headers that its source includes, and with no others.
TEST(Embedded, TheKeyHoldsTheHeadersOfTheSource) {
  static constexpr compile::EmbeddedFile kBefore[] = {
      {"examples/test/one.hpp", "#include \"examples/test/two.hpp\"\n"}};
  static constexpr compile::EmbeddedFile kAfter[] = {{"examples/test/two.hpp", "constexpr int kTwo = 2;\n"}};
  const TemporaryFolder folder;
  Builder builder(options_in(folder.path()));
  const Toolchain& toolchain = builder.toolchain(DeviceKind::cpu);
  const BuildRequest includes = cpu_request("#include \"examples/test/one.hpp\"\n" + std::string(kTiny));
  const BuildRequest does_not = cpu_request(kTiny);
  compile::add_device_files(kBefore);
  const std::string key = Cache::key_of(includes, toolchain);
  const std::string other_key = Cache::key_of(does_not, toolchain);
  compile::add_device_files(kAfter);
  EXPECT_NE(Cache::key_of(includes, toolchain), key);
  EXPECT_EQ(Cache::key_of(does_not, toolchain), other_key);
  EXPECT_EQ(files_of(does_not), (std::set<std::string>{"cpu/exports.map", "cpu/freestanding.hpp"}));
}

}  // namespace
}  // namespace heed::jit
