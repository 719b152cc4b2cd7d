// Lists of launches as they travel to a worker.
#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"
#include "worker/protocol.hpp"

namespace heed::worker {
namespace {

using testing_support::expect_error;

Launch some_launch() {
  Launch launch;
  launch.q = 4096;
  launch.k = 8192;
  launch.v = 12288;
  launch.o = 16384;
  launch.shape.scale = 0.125F;
  launch.shape.len_q = 37;
  launch.shape.heads = 3;
  launch.mask = MaskKind::causal;
  launch.grid = {3, 2, 1};
  launch.k_box_rows = 16;
  launch.v_box_rows = 32;
  return launch;
}

std::string text_of(const std::vector<Launch>& launches) {
  return nlohmann::json(launches).dump();
}

TEST(LaunchList, ComesOutAsItWentIn) {
  std::vector<Launch> launches(100, some_launch());
  for (std::size_t i = 0; i < launches.size(); ++i) {
    launches[i].q += 4096 * (i % 10);
    launches[i].sinks = i % 3 == 0 ? kNull : 64 * i;
    launches[i].shape.scale *= static_cast<float>(1 - 0.015 * static_cast<double>(i / 25));
  }
  launches[7].o = kNull;
  launches[50].shape.len_q = 36;  // more than an address: whole, and no other is told by it
  launches[60].grid = {1, 1, 1};
  launches[61].mask = MaskKind::none;
  launches[62].v_box_rows = 64;
  const nlohmann::json list = launches_to_json(launches);
  EXPECT_EQ(text_of(launches_from_json(nlohmann::json::parse(list.dump()))), text_of(launches));
  EXPECT_LT(list.dump().size(), text_of(launches).size() / 10);
  EXPECT_TRUE(launches_from_json(launches_to_json({})).empty());
}

// One program runs with pages of several sizes, in boxes of several: each launch has its own.
TEST(LaunchList, ALaunchHasTheBoxesOfItsOwnPages) {
  DeviceFacts device = gpu_limits("sm_90a");
  device.processors = 132;
  const Workload one = parse_workload("b2h2l40k150d64:fp16:page=16");
  const Variant variant = parse_variant("fwd_sm90_persistent:block_n=64", one, device);
  for (const auto& [page, rows] : {std::pair(16, 16), std::pair(24, 8), std::pair(256, 64)}) {
    Workload other = one;
    other.page_size = page;
    const LaunchPlan plan = variant.plan(other, device);
    ASSERT_TRUE(plan.tensor_maps) << page;
    Launch launch = some_launch();
    launch.take(plan);
    EXPECT_EQ(launch.grid, plan.grid);
    EXPECT_EQ(launch.k_box_rows, rows) << page;
    EXPECT_EQ(launch.v_box_rows, rows) << page;
    EXPECT_EQ(launch.with_boxes(*variant.plan(one, device).tensor_maps), *plan.tensor_maps) << page;
  }
  Launch launch = some_launch();
  launch.take(LaunchPlan());
  EXPECT_EQ(launch.k_box_rows, 0);
}

TEST(LaunchList, WhatIsNoneIsRefused) {
  const nlohmann::json whole = launches_to_json({some_launch()}).at(0);
  for (const char* first : {"[[0.5]]", "[[0.5, 0, 4096]]"})
    expect_error(ErrorCode::worker, "begins with a whole one",
                 [&] { (void)launches_from_json(nlohmann::json::parse(first)); });
  for (const char* other : {"[]", "[0.5, 0]"})
    expect_error(ErrorCode::worker, "pairs of numbers",
                 [&] { (void)launches_from_json({whole, nlohmann::json::parse(other)}); });
  expect_error(ErrorCode::worker, "no such address",
               [&] { (void)launches_from_json({whole, nlohmann::json::parse("[0.5, 23, 4096]")}); });
  EXPECT_ANY_THROW((void)launches_from_json({whole, nlohmann::json::parse("[0.5, 0, -1]")}));
  EXPECT_ANY_THROW((void)launches_from_json(nlohmann::json::parse("[{}]")));
}

}  // namespace
}  // namespace heed::worker
