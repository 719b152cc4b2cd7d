// The ladder's table: names, files, predictions in the headers, resource plans.
#include <algorithm>
#include <regex>
#include <set>

#include "device/device.hpp"
#include "examples/ladder/kernels/config.hpp"
#include "folders.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed::ladder {
namespace {

TEST(Ladder, EveryHeaderStatesThePredictionOfItsSteps) {
  std::set<std::string> names;
  for (const KernelStep& step : kSteps) {
    EXPECT_TRUE(names.insert(step.name).second) << step.name << " is there twice";
    const std::string file = "examples/ladder/kernels/" + std::string(step.file) + ".cuh";
    const std::string text =
        read_file(std::filesystem::path(testing_support::kSourceFolder) / file, ErrorCode::internal);
    EXPECT_NE(text.find(std::string("struct ") + step.type + " {"), std::string::npos) << file;
    EXPECT_THAT(text, ::testing::HasSubstr(step.name)) << file;
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 150) << file;
    std::string words = std::regex_replace(text, std::regex("\\s*\n///?\\s*"), " ");
    std::smatch match;
    const std::regex prediction("[Pp]redicted\\s\\(" + std::string(step.name) + "\\):\\s([0-9.]*[0-9])");
    const bool found = std::regex_search(words, match, prediction);
    if (step.predicted == 0) {
      EXPECT_STREQ(step.name, kSteps[0].name) << "only the first has nothing before it";
      EXPECT_FALSE(found);
    } else {
      ASSERT_TRUE(found) << file << " does not say \"Predicted (" << step.name << "): " << step.predicted << "\"";
      EXPECT_DOUBLE_EQ(std::stod(match[1]), step.predicted) << file;
    }
  }
}

TEST(Ladder, SharedMemoryIsLaidOutWithoutOverlapAndAligned) {
  for (int step = 0; step < kNumSteps; ++step)
    for (const int dim : {64, 128}) {
      SCOPED_TRACE(std::string(kSteps[step].name) + " " + std::to_string(dim));
      const SharedPlan plan = shared_plan(step, dim);
      const int n = block_n(step, dim);
      EXPECT_LE(threads(step), 1024);
      if (kSteps[step].memory == Memory::none) {
        EXPECT_EQ(plan.total, 0);
        continue;
      }
      EXPECT_EQ(plan.stages % 128, 0);
      EXPECT_EQ(plan.tile_bytes % 128, 0);
      EXPECT_EQ(plan.scores % 128, 0);
      EXPECT_EQ(plan.out % 32, 0);
      EXPECT_GE(plan.scores, plan.stages + (kSteps[step].memory == Memory::one_tile ? 1 : 2) * plan.tile_bytes);
      EXPECT_LE(plan.scores, plan.total);
      if (plan.scores_pitch == 0) continue;
      EXPECT_EQ(plan.stages, kSteps[step].block_m * dim * 2);
      EXPECT_GE(plan.scores_pitch, n);
      EXPECT_EQ(plan.scores_pitch % 4, 0) << "rows of P are 16-byte aligned";
      EXPECT_GE(plan.out, plan.scores + kSteps[step].block_m * plan.scores_pitch * 4);
      if (kSteps[step].memory == Memory::output) {
        EXPECT_EQ(plan.total, plan.out + kSteps[step].block_m * plan.out_pitch * 4);
      }
    }
}

// The steps after the swizzle: P's rows, read by ldmatrix, start in different bank groups.
TEST(Ladder, PaddedRowsOfWeightsHaveNoBankConflicts) {
  for (int step = 0; step < kNumSteps; ++step)
    for (const int dim : {64, 128}) {
      if (kSteps[step].padding == 0) continue;
      std::set<int> groups;
      for (int row = 0; row < 8; ++row) groups.insert(row * shared_plan(step, dim).scores_pitch * 4 / 16 % 8);
      EXPECT_EQ(groups.size(), 8U) << kSteps[step].name << " " << dim;
    }
}

TEST(Ladder, PersistentBlocksFollowTheDevice) {
  DeviceFacts device = gpu_limits("sm_90a");
  const auto blocks = [&](const char* shape) {
    const Workload workload = parse_workload(shape);
    const Variant variant = parse_variant("ladder:step=persistent", workload, device);
    return variant.plan(workload, device).grid[0];
  };
  EXPECT_EQ(blocks("b2h8l2048d64"), 1U) << "of a device that is not known";
  device.processors = 132;
  EXPECT_EQ(blocks("b1h8l512d64"), 64U);
  EXPECT_EQ(blocks("b2h8l2048d64"), 132U);
}

TEST(Ladder, AStepThatDoesNotFitSaysSo) {
  const DeviceFacts ada = gpu_limits("sm_89");
  const Workload workload = parse_workload("b1h8l512d128");
  const Variant variant = parse_variant("ladder:step=producer_3", workload, ada);
  EXPECT_THAT(variant.family->is_illegal(variant.config, workload, ada).value_or("legal"),
              ::testing::HasSubstr("bytes of shared memory"));
}

}  // namespace
}  // namespace heed::ladder
