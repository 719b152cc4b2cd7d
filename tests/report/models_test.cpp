#include "report/models.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace heed::report {
namespace {

using ::testing::HasSubstr;

TEST(ModelStatisticsOfARun, ArePartOfEvidenceWhereModelsWroteAlone) {
  nlohmann::json evidence = {{"table", "a table\n"}};
  add_models(evidence, {});
  EXPECT_EQ(evidence, (nlohmann::json{{"table", "a table\n"}}));

  ModelStatistics statistics;
  statistics.edits = 5;
  statistics.valid = 3;
  statistics.duplicates = 1;
  statistics.prompts = 6;
  add_models(evidence, statistics);
  EXPECT_EQ(evidence["models"]["validity"], 0.75);
  EXPECT_THAT(evidence["table"].get<std::string>(), HasSubstr("a table\nmodels    6 prompts, 6 replies"));
  EXPECT_THAT(evidence["table"].get<std::string>(),
              HasSubstr("3 of them valid (75.0% of those that are no duplicates)"));
}

}  // namespace
}  // namespace heed::report
