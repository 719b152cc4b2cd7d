#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/device.hpp"
#include "jit/build.hpp"
#include "jit/builders.hpp"
#include "testing.hpp"

namespace heed::jit {
namespace {

using testing_support::TemporaryFolder;

// As the system kills the compiler where memory runs out: no fault of the source, which is built again.
TEST(KilledCompiler, IsStartedAgain) {
  const TemporaryFolder folder;
  const std::string fifo = folder.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int orders = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(orders, 0);
  write_file_atomically(folder.file("a-compiler"),
                        fmt::format("#!/bin/sh\n"
                                    "case \"$1\" in --version|-dumpmachine) exec g++ \"$1\";; esac\n"
                                    "read order < {}\n"
                                    "[ \"$order\" = die ] && kill -9 $$\n"
                                    "exec g++ \"$@\"\n",
                                    fifo),
                        ErrorCode::cache);
  std::filesystem::permissions(folder.file("a-compiler"), std::filesystem::perms::owner_all);
  BuilderOptions options = options_in(folder.path() / "cache");
  options.host_compiler = folder.file("a-compiler");
  Builder builder(options);
  const BuildRequest request{.device = DeviceKind::cpu,
                             .arch = "test",
                             .source = "extern \"C\" int heed_forward(int x) { return 2 * x; }\n",
                             .entry = "heed_forward"};
  const std::string twice = "die\ndie\nlive\n";
  ASSERT_EQ(::write(orders, twice.data(), twice.size()), static_cast<ssize_t>(twice.size()));
  const BuildOutcome lives = builder.build(request);
  EXPECT_TRUE(lives.artifact) << lives.log;
  const std::string always = "die\ndie\ndie\n";
  ASSERT_EQ(::write(orders, always.data(), always.size()), static_cast<ssize_t>(always.size()));
  const BuildOutcome dies = builder.build(request, /*fresh=*/true);
  EXPECT_FALSE(dies.artifact);
  EXPECT_THAT(dies.log, ::testing::HasSubstr("something outside killed the compiler, 3 times in a row"));
  ::close(orders);
}

}  // namespace
}  // namespace heed::jit
