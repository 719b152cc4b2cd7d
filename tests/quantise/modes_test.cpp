// The table of modes, and what the library says that they cost.
#include "quantise/modes.hpp"

#include <nlohmann/json.hpp>

#include "testing.hpp"

namespace heed::quantise {
namespace {

TEST(PrecisionModes, CostsAreThoseOfTheEvidence) {
  const std::string path = std::string(testing_support::kSourceFolder) + "/evidence/cpu/calibration.json";
  const auto evidence = nlohmann::json::parse(read_file(path, ErrorCode::internal));
  EXPECT_EQ(evidence["workload"], std::string(measured_workload()));
  EXPECT_EQ(evidence["rows"].size(), measured_errors().size());
  for (const auto& row : evidence["rows"]) {
    const auto known = std::find_if(measured_errors().begin(), measured_errors().end(), [&](const MeasuredError& one) {
      return one.mode == row["mode"].get<std::string>() && one.inputs == row["inputs"].get<std::string>();
    });
    ASSERT_NE(known, measured_errors().end()) << row;
    EXPECT_EQ(fmt::format("{:.1e}", known->rel_rms), fmt::format("{:.1e}", row["rel_rms"].get<double>())) << row;
  }
}

TEST(PrecisionModes, EachSaysItsCost) {
  for (const Mode& mode : modes()) {
    EXPECT_EQ(&find_mode(mode.name), &mode);
    EXPECT_THAT(error_words(mode), ::testing::HasSubstr(" normal, ")) << mode.name;
  }
  EXPECT_EQ(error_words({"new", "qk/int8/token", false, false, ""}), "not measured");
}

TEST(PrecisionModes, RotationsTakePowersOfTwoUpTo512) {
  const Mode& mode = find_mode("fp8_rotated");
  EXPECT_TRUE(quantised_by(parse_workload("l64d512"), mode).quantised);
  testing_support::expect_error(ErrorCode::unsupported, "the head dim is 96",
                                [&] { (void)quantised_by(parse_workload("l64d96"), mode); });
  testing_support::expect_error(ErrorCode::unsupported, "at most 512 elements",
                                [&] { (void)quantised_by(parse_workload("l64d1024"), mode); });
}

}  // namespace
}  // namespace heed::quantise
