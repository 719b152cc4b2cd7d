/// What tests of features on a CPU share: a file of programs, and runs of cases through the C interface alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu_programs.hpp"
#include "feature_case.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed::testing_support {

// A file with programs of fwd_cpu that have all features: of head dim 16 for each mask, and one of 32 for copies.
class CpuFeatures : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    write_cpu_programs(file(),
                       {"b1h2l33k50d16:fp32", "b1h2l33k50d16:fp32:causal_top_left", "b1h2l33k50d16:fp32:window=9/3",
                        "b1h2l33k50d32:fp32:causal_top_left"},
                       kAllFeatures);
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string file() { return folder_->file("heed.programs"); }
  static heed_plan* plan_of(const heed_problem& problem, int debug = 0) {
    const std::string path = file();
    heed_options o;
    heed_options_init(&o);
    o.programs = path.c_str();
    o.debug = debug;
    heed_plan* plan = nullptr;
    EXPECT_EQ(heed_plan_create(&problem, &o, &plan), HEED_OK) << heed_last_error();
    return plan;
  }
  static std::string reason_of(const heed_plan* plan) {
    heed_plan_info info;
    heed_plan_info_init(&info);
    EXPECT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
    return info.reason;
  }
  static void run(const heed_problem& problem, const heed_tensors& tensors) {
    heed_plan* plan = plan_of(problem);
    ASSERT_NE(plan, nullptr);
    heed_plan_info info;
    heed_plan_info_init(&info);
    ASSERT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
    std::vector<unsigned char> room(info.workspace_bytes + 256, 0xff);
    void* const workspace = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
    EXPECT_EQ(heed_plan_prepare(plan, workspace, nullptr), HEED_OK) << heed_last_error();
    EXPECT_EQ(heed_plan_run(plan, &tensors, workspace, nullptr), HEED_OK) << heed_last_error();
    heed_plan_destroy(plan);
  }
  static void run_and_check(const std::string& text) {
    FeatureCase one(text);
    run(one.problem(), one.tensors());
    one.check();
  }
  // Everything that a run wrote.
  static std::vector<std::byte> outputs_of(FeatureCase& one, const heed_problem& problem, const heed_tensors& tensors) {
    run(problem, tensors);
    return one.memory();
  }

  static inline const std::string kShape = "b3h4hkv2l37k51d16:fp32";
  static inline TemporaryFolder* folder_ = nullptr;
};

}  // namespace heed::testing_support
