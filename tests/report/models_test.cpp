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

// A service may have charged for what came in place of a reply.
TEST(ModelStatisticsOfARun, CountFailuresThatMayHaveCostSomething) {
  store::ExchangeRecord down;
  down.failure = "the endpoint is down";
  store::ExchangeRecord counted;
  counted.failure = "no text";
  counted.reply = {{"content", ""}, {"prompt_tokens", 100}, {"completion_tokens", 50}, {"cost", 0.5}};
  store::ExchangeRecord unknown;
  unknown.failure = "no JSON";
  unknown.reply = {{"content", "<html>"}, {"prompt_tokens", nullptr}, {"cost", nullptr}};
  const nlohmann::json json = to_json(model_statistics({}, {down, counted, unknown}));
  EXPECT_EQ(json["prompts"], 3);
  EXPECT_EQ(json["failures"], 3);
  EXPECT_EQ(json["tokens"], 150);
  EXPECT_EQ(json["uncounted_replies"], 1);
  EXPECT_EQ(json["cost"], 0.5);
  EXPECT_EQ(json["replies_of_unknown_cost"], 1);
  EXPECT_THAT(text_of(model_statistics({}, {down, counted, unknown})), HasSubstr("0 replies in"));
  EXPECT_THAT(text_of(model_statistics({}, {down, counted, unknown})), HasSubstr("150 tokens, cost at least 0.5000"));
  store::ExchangeRecord late;
  late.reply = {{"content", "x"}, {"prompt_tokens", 1}, {"completion_tokens", 1}, {"cost", 1}, {"lost_attempts", 2}};
  const nlohmann::json lost = to_json(model_statistics({}, {late}));
  EXPECT_EQ(lost["tokens"], 2);
  EXPECT_EQ(lost["uncounted_replies"], 2);
  EXPECT_EQ(lost["replies_of_unknown_cost"], 2);
  const nlohmann::json none = to_json(model_statistics({}, {unknown}));
  EXPECT_EQ(none["tokens"], nullptr) << "never 0";
  EXPECT_EQ(none["cost"], nullptr);
}

}  // namespace
}  // namespace heed::report
