// Limits of control groups, read from file trees as the kernel would show them.
#include "base/limits.hpp"

#include "base/parallel.hpp"
#include "testing.hpp"

namespace heed {
namespace {

using testing_support::expect_error;
using testing_support::TemporaryFolder;

constexpr std::int64_t kGib = std::int64_t{1} << 30;

class Limits : public ::testing::Test {
 protected:
  Limits() { put("proc/meminfo", "MemTotal:       33554432 kB\nMemFree: 1 kB\nMemAvailable:   16777216 kB\n"); }

  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root() / path).parent_path());
    std::ofstream(root() / path) << text;
  }
  [[nodiscard]] std::filesystem::path root() const { return folder_.path(); }

  void second_version(const std::string& group) {
    put("proc/self/cgroup", "0::" + group + "\n");
    put("proc/self/mountinfo",
        "24 1 0:22 / /proc rw - proc proc rw\n"
        "36 25 0:31 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void first_version(const std::string& group, const std::string& mounted = "/") {
    put("proc/self/cgroup", "5:cpu,cpuacct:" + group + "\n4:memory:" + group + "\n1:name=systemd:/\n0::/\n");
    put("proc/self/mountinfo", "33 31 0:30 " + mounted +
                                   " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" + "35 31 0:32 " +
                                   mounted + " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(Limits, WithoutGroupsTheMachineBounds) {
  const MemoryRoom room = memory_room(root());
  EXPECT_EQ(room.available_bytes, 16 * kGib);
  EXPECT_EQ(room.total_bytes, 32 * kGib);
  EXPECT_EQ(room.bound_by, "MemAvailable");
  EXPECT_FALSE(processor_quota(root()));
}

TEST_F(Limits, MemoryOfTheSecondVersion) {
  second_version("/box/inner");
  put("sys/fs/cgroup/box/inner/memory.max", "max\n");
  put("sys/fs/cgroup/box/inner/memory.high", "max\n");
  EXPECT_EQ(memory_room(root()).available_bytes, 16 * kGib);
  // An ancestor's limit counts; page cache is given back before anything is killed.
  put("sys/fs/cgroup/box/memory.max", std::to_string(2 * kGib) + "\n");
  put("sys/fs/cgroup/box/memory.current", std::to_string(kGib + kGib / 2) + "\n");
  put("sys/fs/cgroup/box/memory.stat",
      "anon 5\ninactive_file " + std::to_string(kGib / 2) + "\nactive_file " + std::to_string(kGib / 4) + "\n");
  MemoryRoom room = memory_room(root());
  EXPECT_EQ(room.available_bytes, kGib + kGib / 4);
  EXPECT_EQ(room.total_bytes, 2 * kGib);
  EXPECT_THAT(room.bound_by, ::testing::EndsWith("box/memory.max"));
  // Above memory.high a group is slowed down until it stands still.
  put("sys/fs/cgroup/box/inner/memory.high", std::to_string(kGib) + "\n");
  put("sys/fs/cgroup/box/inner/memory.current", "0\n");
  room = memory_room(root());
  EXPECT_EQ(room.available_bytes, kGib);
  EXPECT_THAT(room.bound_by, ::testing::EndsWith("inner/memory.high"));
  // More used than allowed, as after a limit was lowered: nothing is left, which is not "unknown".
  put("sys/fs/cgroup/box/inner/memory.current", std::to_string(3 * kGib) + "\n");
  EXPECT_EQ(memory_room(root()).available_bytes, 1);
}

TEST_F(Limits, MemoryOfTheFirstVersion) {
  first_version("/docker/abc");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", std::to_string(3 * kGib / 2) + "\n");
  put("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", std::to_string(kGib) + "\n");
  put("sys/fs/cgroup/memory/docker/abc/memory.stat",
      "inactive_file 7\ntotal_inactive_file " + std::to_string(kGib / 4) + "\n");
  const MemoryRoom room = memory_room(root());
  EXPECT_EQ(room.available_bytes, 3 * kGib / 4);
  EXPECT_EQ(room.total_bytes, 3 * kGib / 2);
  EXPECT_THAT(room.bound_by, ::testing::EndsWith("docker/abc/memory.limit_in_bytes"));
}

// Docker without namespaces of groups: the name is the host's, and what is mounted is the group itself.
TEST_F(Limits, AGroupThatIsMountedAsTheRoot) {
  first_version("/docker/abc", "/docker/abc");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(kGib) + "\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(memory_room(root()).available_bytes, kGib);
  ASSERT_TRUE(processor_quota(root()));
  EXPECT_DOUBLE_EQ(processor_quota(root())->processors, 1.5);
}

// A process that was moved in from outside its namespace sees its group as a relative path.
TEST_F(Limits, AGroupOutsideOfTheNamespace) {
  second_version("/../outside");
  put("sys/fs/cgroup/memory.max", std::to_string(kGib) + "\n");
  EXPECT_EQ(memory_room(root()).available_bytes, kGib);
}

TEST_F(Limits, QuotaOfTheSecondVersionIsTheLowestOfAllAncestors) {
  second_version("/box/inner");
  put("sys/fs/cgroup/box/inner/cpu.max", "max 100000\n");
  EXPECT_FALSE(processor_quota(root()));
  put("sys/fs/cgroup/box/cpu.max", "50000 100000\n");
  ASSERT_TRUE(processor_quota(root()));
  EXPECT_DOUBLE_EQ(processor_quota(root())->processors, 0.5);
  EXPECT_THAT(processor_quota(root())->bound_by, ::testing::EndsWith("box/cpu.max"));
  put("sys/fs/cgroup/box/inner/cpu.max", "25000 100000\n");
  EXPECT_DOUBLE_EQ(processor_quota(root())->processors, 0.25);
}

TEST_F(Limits, NoQuotaOfTheFirstVersionIsMinusOne) {
  first_version("/");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(processor_quota(root()));
}

TEST_F(Limits, ThreadsAreTheWholeProcessorsOfAQuota) {
  EXPECT_EQ(usable_processors(2, std::nullopt), 2);
  EXPECT_EQ(usable_processors(2, ProcessorQuota{0.5, ""}), 1);
  EXPECT_EQ(usable_processors(8, ProcessorQuota{1.5, ""}), 1);
  EXPECT_EQ(usable_processors(8, ProcessorQuota{1.999, ""}), 2);
  EXPECT_EQ(usable_processors(8, ProcessorQuota{3, ""}), 3);
  EXPECT_EQ(usable_processors(2, ProcessorQuota{64, ""}), 2);
  EXPECT_EQ(usable_processors(0, std::nullopt), 1);
  EXPECT_GE(available_processors(), 1);
}

TEST_F(Limits, BrokenFilesAreNoLimits) {
  second_version("/box");
  put("sys/fs/cgroup/box/memory.max", "");
  put("sys/fs/cgroup/box/cpu.max", "banana 0\n");
  EXPECT_EQ(memory_room(root()).available_bytes, 16 * kGib);
  EXPECT_FALSE(processor_quota(root()));
  put("proc/self/cgroup", "nonsense\n::\n0\n");
  put("proc/self/mountinfo", "1 2 - \n - cgroup2\n");
  EXPECT_EQ(memory_room(root()).available_bytes, 16 * kGib);
}

TEST_F(Limits, MemoryThatIsNotThereIsRefusedBeforeItIsTaken) {
  second_version("/box");
  put("sys/fs/cgroup/box/memory.max", std::to_string(kGib) + "\n");
  EXPECT_NO_THROW(require_memory(0.9 * static_cast<double>(kGib), "the workload", root()));
  expect_error(ErrorCode::unsupported, "the workload needs 2.0 GiB of host memory; 1.0 GiB are available (bound by ",
               [&] { require_memory(2.0 * static_cast<double>(kGib), "the workload", root()); });
  std::filesystem::remove_all(root() / "proc");  // nothing known: nothing refused
  EXPECT_NO_THROW(require_memory(2.0 * static_cast<double>(kGib), "the workload", root()));
}

TEST(LimitsOfThisMachine, AreKnown) {
  const MemoryRoom room = memory_room();
  EXPECT_GT(room.available_bytes, 0);
  EXPECT_LE(room.available_bytes, room.total_bytes);
}

}  // namespace
}  // namespace heed
