// Activity records of CUPTI, on a stand-in for it.
#include "worker/activity.hpp"

#include "testing.hpp"

namespace heed {
namespace {

using testing_support::EnvironmentVariable;
using testing_support::expect_error;
using testing_support::kStubCupti;

class Activity : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(kStubCupti).empty()) GTEST_SKIP() << "built without CUPTI";
  }
};

TEST_F(Activity, EveryInstantIsCountedOnce) {
  const auto records = open_activity_records(kStubCupti);
  for (int again = 0; again < 2; ++again) {  // what was collected before is not counted again
    records->begin();
    EXPECT_DOUBLE_EQ(records->end(), 5 + 0.5 + 1.5);  // 1000-6000, 8000-8500, 10000-11500 ns
  }
}

TEST_F(Activity, WhatCannotBeTrustedIsASentence) {
  {
    const EnvironmentVariable fail("HEED_STUB_CUPTI", "version");
    expect_error(ErrorCode::unsupported, "whose records have another layout",
                 [] { (void)open_activity_records(kStubCupti); });
  }
  const auto records = open_activity_records(kStubCupti);
  {
    const EnvironmentVariable fail("HEED_STUB_CUPTI", "enable");
    expect_error(ErrorCode::unsupported, "cuptiActivityEnable failed: CUPTI_ERROR_OF_THE_STUB",
                 [&] { records->begin(); });
  }
  {
    const EnvironmentVariable fail("HEED_STUB_CUPTI", "dropped");
    records->begin();
    expect_error(ErrorCode::unsupported, "CUPTI dropped 7 activity records", [&] { (void)records->end(); });
  }
  expect_error(ErrorCode::unsupported, "lacks cuptiGetVersion", [] { (void)open_activity_records("libm.so.6"); });
  expect_error(ErrorCode::unsupported, "nonexistent", [] { (void)open_activity_records("/nonexistent/x.so"); });
}

// The real one, where it lies: its functions are there and its records are of the version that Heed was built for.
TEST_F(Activity, TheInstalledLibraryIsOpened) {
  try {
    (void)open_activity_records();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.find("not found") != std::string::npos || text.find("another layout") != std::string::npos)
      GTEST_SKIP() << text;
    EXPECT_THAT(text, ::testing::HasSubstr("cuptiActivityRegisterCallbacks failed"));  // no GPU, no driver
  }
}

}  // namespace
}  // namespace heed
