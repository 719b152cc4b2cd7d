// Plans that keep K and V in the L2, with a stand-in for the driver: the window of a launch, and what is said of it.
#include "launch/l2_window.hpp"
#include "stub_gpu.hpp"

namespace heed {
namespace {

using testing_support::expect_status;
using testing_support::kPersistent;
using testing_support::Memory;
using testing_support::of_driver;
using testing_support::stub_problem;
using testing_support::with_image;

// CUaccessPolicyWindow, without cuda.h.
struct Window {
  const void* begin;
  std::size_t bytes;
  float hit_ratio;
  int kept;  // CUaccessProperty: 1 streams, 2 stays
  int others;
};

constexpr std::uint64_t kBytes = 2ULL * 2 * 192 * 64 * 2;  // of K in stub_problem, and of V

heed_options keeping(const char* variant = kPersistent) {
  heed_options o = with_image(variant);
  o.l2 = HEED_L2_KEEP_KV;
  return o;
}

class KeptKeys : public ::testing::Test {
 protected:
  void SetUp() override { set(8 << 20, 1 << 20); }
  void TearDown() override { set(0, 0); }
  static void set(int most, std::size_t aside) { of_driver<void(int, std::size_t)>("stub_l2")(most, aside); }

  Window window_of(const heed_options& options) {
    heed_plan* plan = nullptr;
    EXPECT_EQ(heed_plan_create(&problem_, &options, &plan), HEED_OK) << heed_last_error();
    heed_plan_info info;
    heed_plan_info_init(&info);
    EXPECT_EQ(heed_plan_get_info(plan, &info), HEED_OK);
    reason_ = info.reason;
    EXPECT_EQ(heed_plan_run(plan, &memory_.t, memory_.workspace, nullptr), HEED_OK) << heed_last_error();
    heed_plan_destroy(plan);
    return *of_driver<const Window*()>("stub_window")();
  }
  std::string explained(const heed_options& options) const {
    std::string text(4096, ' ');
    text.resize(heed_explain(&problem_, &options, text.data(), text.size()));
    return text;
  }

  heed_problem problem_ = stub_problem();
  Memory memory_;
  std::string reason_;
};

TEST_F(KeptKeys, AWindowReachesOverKAndV) {
  const Window window = window_of(keeping());
  EXPECT_EQ(window.begin, memory_.t.k);
  EXPECT_EQ(window.bytes, (1U << 20) + kBytes) << "V lies 1 MB behind K";
  EXPECT_EQ(window.hit_ratio, 1.0F);
  EXPECT_EQ(window.kept, 2);
  EXPECT_EQ(window.others, 1);
  EXPECT_THAT(reason_,
              ::testing::HasSubstr("K and V, 0.197 MB, are to stay in the L2, of which the context sets 1.05"));
  EXPECT_THAT(explained(keeping()), ::testing::HasSubstr("are to stay in the L2"));
}

TEST_F(KeptKeys, NoPlanAsksForItUnasked) {
  EXPECT_EQ(window_of(with_image()).bytes, 0U);
  EXPECT_THAT(reason_, ::testing::Not(::testing::HasSubstr("L2")));
}

TEST_F(KeptKeys, WhereAWindowIsTooSmallItIsOfK) {
  set(1 << 20, 1 << 20);
  const Window window = window_of(keeping());
  EXPECT_EQ(window.begin, memory_.t.k);
  EXPECT_EQ(window.bytes, kBytes);
}

TEST_F(KeptKeys, OfMoreThanIsSetAsideAShareStays) {
  set(8 << 20, static_cast<std::size_t>(kBytes) / 2);
  EXPECT_FLOAT_EQ(window_of(keeping()).hit_ratio, 0.25F);
  EXPECT_THAT(reason_, ::testing::HasSubstr("a part of them does"));
}

TEST_F(KeptKeys, AContextThatSetsNothingAsideIsTold) {
  set(8 << 20, 0);
  EXPECT_EQ(window_of(keeping()).hit_ratio, 1.0F);
  EXPECT_THAT(reason_, ::testing::HasSubstr("before cuCtxSetLimit says how much"));
}

TEST_F(KeptKeys, AGpuWithoutWindowsRefuses) {
  set(0, 0);
  heed_plan* plan = nullptr;
  const heed_options options = keeping();
  expect_status(heed_plan_create(&problem_, &options, &plan), HEED_UNSUPPORTED, "no access-policy windows");
}

TEST_F(KeptKeys, OtherPoliciesAreNone) {
  heed_plan* plan = nullptr;
  heed_options options = keeping();
  options.l2 = 2;
  expect_status(heed_plan_create(&problem_, &options, &plan), HEED_INVALID_ARGUMENT, "2 is no heed_l2");
}

}  // namespace
}  // namespace heed
