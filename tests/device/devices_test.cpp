// Lists of devices, what processors serve each, and threads that are on one.
#include <sched.h>

#include <thread>

#include "base/files.hpp"
#include "base/parallel.hpp"
#include "device/device_list.hpp"
#include "device/placement.hpp"
#include "device/processors.hpp"
#include "folders.hpp"
#include "testing.hpp"

namespace heed {
namespace {

using testing_support::TemporaryFolder;
using Lists = std::vector<std::vector<int>>;

TEST(DeviceList, NumbersRangesAndGroups) {
  EXPECT_EQ(parse_device_list("0"), (Lists{{0}}));
  EXPECT_EQ(parse_device_list("2-4,0"), (Lists{{2}, {3}, {4}, {0}}));
  EXPECT_EQ(parse_device_list("0+1, 2+3"), (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(parse_device_list("7-7"), (Lists{{7}}));
}

TEST(DeviceList, WhatIsNoListIsRefused) {
  const std::vector<std::pair<std::string, std::string>> bad = {{"", "an empty item"},
                                                                {",", "an empty item"},
                                                                {"0,,1", "an empty item"},
                                                                {"a", "\"a\" is no device"},
                                                                {"0-", "\"0-\" is no device"},
                                                                {"-1", "\"-1\" is no device"},
                                                                {"1.5", "no device"},
                                                                {"0 1", "no device"},
                                                                {"0-1-2", "no device"},
                                                                {"+", "no device"},
                                                                {"0+", "no device"},
                                                                {"99999999999", "no device"},
                                                                {"3-1", "ends before it begins; write 1-3"},
                                                                {"0,0", "lists 0 twice"},
                                                                {"0-2,1", "lists 1 twice"},
                                                                {"0+1,1", "lists 1 twice"},
                                                                {"1024", "1023 is the last"},
                                                                {"0-5000", "1023 is the last"}};
  for (const auto& [text, words] : bad) {
    SCOPED_TRACE(text);
    try {
      (void)parse_device_list(text);
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(words));
    }
  }
}

TEST(Processors, ListsAsLinuxWritesThem) {
  EXPECT_EQ(parse_processor_list("0-3,8\n"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(processor_list({8, 2, 0, 1, 3}), "0-3,8");
  EXPECT_EQ(processor_list({}), "");
  for (const char* text : {"", "\n", "a", "3-1", "1-", "1-2x", "-1", "0-99999999"})
    EXPECT_TRUE(parse_processor_list(text).empty()) << text;
}

TEST(Processors, CoresHaveTheirHardwareThreads) {
  const TemporaryFolder root;
  for (int processor = 0; processor < 4; ++processor) {
    const std::filesystem::path folder =
        root.path() / "sys/devices/system/cpu" / ("cpu" + std::to_string(processor)) / "topology";
    std::filesystem::create_directories(folder);
    const int first = processor % 2;
    write_file_atomically(folder / "thread_siblings_list",
                          std::to_string(first) + "," + std::to_string(first + 2) + "\n", ErrorCode::internal);
  }
  EXPECT_EQ(cores_of({0, 1, 2, 3}, root.path()), (Lists{{0, 2}, {1, 3}}));
  EXPECT_EQ(cores_of({1, 2, 3}, root.path()), (Lists{{1, 3}, {2}})) << "0 is not allowed";
  EXPECT_EQ(cores_of({5, 6}, root.path()), (Lists{{5}, {6}})) << "nothing is known of them";
}

TEST(Processors, ThoseNearAGpu) {
  const TemporaryFolder root;
  const std::filesystem::path folder = root.path() / "sys/bus/pci/devices/0000:3b:00.0";
  std::filesystem::create_directories(folder);
  write_file_atomically(folder / "local_cpulist", "2-3\n", ErrorCode::internal);
  EXPECT_EQ(processors_near("0000:3B:00.0", root.path()), (std::vector<int>{2, 3}));
  EXPECT_TRUE(processors_near("0000:5E:00.0", root.path()).empty());
  EXPECT_TRUE(processors_near("", root.path()).empty());
  EXPECT_TRUE(processors_near("../x", root.path()).empty());
}

// No processor serves two; what launches for a GPU is on a core near it, where there is one.
TEST(Processors, EachGpuHasACoreAndTheRestIsShared) {
  const Lists cores = {{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}};
  const std::vector<int> left = {0, 1, 2, 3, 8, 9, 10, 11};
  const std::vector<int> right = {4, 5, 6, 7, 12, 13, 14, 15};
  const ProcessorDivision two = divide_processors(cores, {left, right});
  EXPECT_EQ(two.workers, (Lists{{3, 11}, {7, 15}}));
  EXPECT_EQ(two.shared, (std::vector<int>{0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14}));
  EXPECT_EQ(divide_processors(cores, {right, right}).workers, (Lists{{7, 15}, {6, 14}}));
  EXPECT_EQ(divide_processors(cores, {{}, {}}).workers, (Lists{{7, 15}, {6, 14}})) << "where Linux does not say";
  const ProcessorDivision few = divide_processors({{0}, {1}, {2}, {3}, {4}}, {{}, {}});
  EXPECT_FALSE(few.reserves());
  EXPECT_EQ(few.shared.size(), 5U);
  EXPECT_TRUE(divide_processors({{0}, {1}, {2}, {3}, {4}, {5}}, {{}, {}}).reserves());
}

// Processes that see one GPU each.
TEST(Processors, GpusOfOtherProcessesKeepTheirCores) {
  const Lists cores = {{0}, {1}, {2}, {3}, {4}, {5}};
  const std::vector<std::string> all = {"0000:3B:00.0", "0000:5E:00.0"};
  const ProcessorDivision division = divide_processors(cores, {{}, {}});
  const auto first = part_of(division, all, {"0000:3b:00.0"});
  const auto second = part_of(division, all, {"0000:5E:00.0"});
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->workers, (Lists{{5}}));
  EXPECT_EQ(second->workers, (Lists{{4}}));
  EXPECT_EQ(first->shared, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(second->shared, first->shared);
  EXPECT_EQ(part_of(division, all, {all[1], all[0]})->workers, (Lists{{4}, {5}}));
  EXPECT_FALSE(part_of(division, all, {"0000:99:00.0"}));
  EXPECT_FALSE(part_of(divide_processors({{0}}, {{}, {}}), all, {all[0]}));
}

TEST(Placement, AThreadAndWhatItStartsAreOnTheirProcessors) {
  const std::vector<int> before = allowed_processors();
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(placement().gpu, 0);
  std::thread([&] {
    Placement where;
    where.gpu = 3;
    where.host = {before.back()};
    {
      const Placed placed(where);
      EXPECT_EQ(placement().gpu, 3);
      EXPECT_EQ(allowed_processors(), where.host);
      EXPECT_EQ(available_processors(), 1);
      std::thread([&] { EXPECT_EQ(allowed_processors(), where.host); }).join();
    }
    EXPECT_EQ(placement().gpu, 0);
    EXPECT_EQ(allowed_processors(), before);
  }).join();
  EXPECT_EQ(allowed_processors(), before) << "other threads stay where they are";
}

TEST(Placement, ProcessorsThatThereAreNotAreRefused) {
  Placement where;
  where.host = {1023};
  const std::vector<int> before = allowed_processors();
  EXPECT_THROW(Placed{where}, Error);
  EXPECT_EQ(allowed_processors(), before);
}

TEST(Placement, WorkersSeeTheirGpuAlone) {
  EXPECT_EQ(visible_gpu(2, nullptr), "2");
  EXPECT_EQ(visible_gpu(1, "5,7"), "7");
  EXPECT_EQ(visible_gpu(1, "GPU-1a, GPU-2b"), "GPU-2b");
  EXPECT_EQ(visible_gpu(4, "5"), "4");
  Placement where;
  where.visible = "GPU-2b";
  std::vector<std::string> found;
  for (const std::string& one : environment_of(where))
    if (one.rfind("CUDA_VISIBLE_DEVICES=", 0) == 0) found.push_back(one);
  EXPECT_EQ(found, (std::vector<std::string>{"CUDA_VISIBLE_DEVICES=GPU-2b"}));
  EXPECT_EQ(environment_of(where).size() - 1,
            environment_of(Placement{}).size() - static_cast<std::size_t>(::getenv("CUDA_VISIBLE_DEVICES") != nullptr));
}

}  // namespace
}  // namespace heed
