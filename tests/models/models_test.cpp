// Everything around a model: streams of events, keys, prices, limits, waits.
#include <cmath>
#include <future>

#include "models/event_stream.hpp"
#include "models/prices.hpp"
#include "models/retry.hpp"
#include "models/secret.hpp"
#include "models/several_models.hpp"
#include "models/spending.hpp"
#include "testing.hpp"

namespace heed::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(EventStream, DataOfEveryEvent) {
  EXPECT_THAT(event_data("data: a\n\ndata:b\r\n\r\nevent: x\nid: 3\ndata: c\ndata:  d\n\n: comment\n\nretry: 1\n\n"),
              ElementsAre("a", "b", "c\n d"));
  EXPECT_THAT(event_data("data: a\r\rdata: last"), ElementsAre("a", "last")) << "CR alone; no empty line at the end";
  EXPECT_THAT(event_data("data\n\ndata:\n\n"), ElementsAre(""));
  EXPECT_TRUE(event_data("").empty());
}

TEST(KeyOfAnEndpoint, ComesFromAVariableOrAFile) {
  const testing_support::TemporaryFolder folder;
  const Secret secret = [] {
    const testing_support::EnvironmentVariable key("HEED_TEST_KEY", " abc \n");
    return Secret::from_environment("HEED_TEST_KEY");
  }();
  EXPECT_EQ(secret.as_header(), "Authorization: Bearer abc");
  EXPECT_EQ(secret.removed_from("abcabc, ab"), "[key][key], ab");
  EXPECT_THAT(failure_of([] { (void)Secret::from_environment("HEED_TEST_KEY"); }),
              HasSubstr("no key in environment variable HEED_TEST_KEY"));
  write_file_atomically(folder.path() / "key", "from-file\nsecond line\n", ErrorCode::internal);
  EXPECT_EQ(Secret::from_file(folder.path() / "key").as_header(), "Authorization: Bearer from-file");
  write_file_atomically(folder.path() / "key", "\n", ErrorCode::internal);
  EXPECT_THAT(failure_of([&] { (void)Secret::from_file(folder.path() / "key"); }), HasSubstr("is empty"));
  write_file_atomically(folder.path() / "key", "two words\n", ErrorCode::internal);
  EXPECT_THAT(failure_of([&] { (void)Secret::from_file(folder.path() / "key"); }), HasSubstr("holds spaces"));
  EXPECT_THROW(Secret::from_file(folder.path() / "none"), Error);
  EXPECT_FALSE(Secret().is_given());
  EXPECT_EQ(Secret().removed_from("x"), "x");
}

TEST(Prices, CostOrUnknown) {
  const Prices prices = Prices::from_json(
      {{"currency", "EUR"},
       {"models",
        {{"a", {{"prompt", 1.0}, {"completion", 4.0}, {"cached", 0.1}}}, {"b", {{"prompt", 2}, {"completion", 0}}}}}},
      "test");
  EXPECT_EQ(prices.currency(), "EUR");
  const Usage usage{.prompt_tokens = 1'000'000, .completion_tokens = 500'000, .cached_tokens = {}, .raw = {}};
  EXPECT_DOUBLE_EQ(prices.cost("a", usage).value(), 3.0);
  EXPECT_DOUBLE_EQ(prices.cost("b", usage).value(), 2.0);
  const Usage cached{.prompt_tokens = 1'000'000, .completion_tokens = 0, .cached_tokens = 400'000, .raw = {}};
  EXPECT_DOUBLE_EQ(prices.cost("a", cached).value(), 0.64);
  EXPECT_EQ(prices.cost("c", usage), std::nullopt) << "unknown, not 0";
  EXPECT_EQ(prices.cost("a", Usage{}), std::nullopt) << "nobody counted";
}

TEST(Prices, FilesThatAreNone) {
  const auto refused = [](const nlohmann::json& json) {
    return failure_of([&] { (void)Prices::from_json(json, "p"); });
  };
  EXPECT_THAT(refused(3), HasSubstr("names no models"));
  EXPECT_THAT(refused({{"models", {{"a", {{"prompt", 1}}}}}}), HasSubstr("a has no price \"completion\""));
  EXPECT_THAT(refused({{"models", {{"a", {{"prompt", -1}, {"completion", 1}}}}}}), HasSubstr("\"prompt\" of a is -1"));
  EXPECT_THAT(refused({{"models", {{"a", {{"prompt", "1"}, {"completion", 1}}}}}}), HasSubstr("is \"1\""));
  EXPECT_THAT(refused({{"models", {{"a", 4}}}}), HasSubstr("has no price"));
  EXPECT_THAT(refused({{"models", nlohmann::json::object()}, {"currency", 3}}), HasSubstr("currency"));
  const testing_support::TemporaryFolder folder;
  write_file_atomically(folder.path() / "prices", "{", ErrorCode::internal);
  EXPECT_THAT(failure_of([&] { (void)Prices::from_file(folder.path() / "prices"); }), HasSubstr("no JSON"));
}

TEST(Spending, LimitsLeaveNoRoomBeforeTheyAreExceeded) {
  EXPECT_THAT(failure_of([] { Spending({.tokens = 0, .money = {}}); }),
              HasSubstr("a limit of 0 tokens allows no prompt"));
  EXPECT_THAT(failure_of([] { Spending({.tokens = {}, .money = 0.0}); }), HasSubstr("allows no prompt"));
  EXPECT_THAT(failure_of([] { Spending({.tokens = {}, .money = std::nan("")}); }), HasSubstr("allows no prompt"));
  const Conversation prompt = {{Role::user, std::string(300, 'x')}};  // 108 tokens
  Spending spending({.tokens = 1000, .money = {}});
  EXPECT_EQ(spending.refuses(prompt, 400), std::nullopt);
  Reply reply;
  reply.usage = {.prompt_tokens = 700, .completion_tokens = 100, .cached_tokens = {}, .raw = {}};
  spending.add(prompt, reply);
  EXPECT_EQ(spending.tokens(), 800);
  EXPECT_THAT(spending.refuses(prompt, 400).value(), HasSubstr("800 of 1000 tokens are used"));
  EXPECT_EQ(spending.refuses(prompt, 40), std::nullopt);
  EXPECT_EQ(spending.text("USD"), "1 reply, 800 tokens, cost unknown");
}

TEST(Spending, MoneyIsALowerBoundWhereAPriceIsUnknown) {
  Spending spending({.tokens = {}, .money = 1.0});
  Reply reply;
  reply.text = "abc";
  reply.cost = 0.4;
  spending.add({}, reply);
  EXPECT_EQ(spending.refuses({}, 0), std::nullopt);
  reply.cost = {};
  spending.add({{Role::user, "abcdef"}}, reply);
  EXPECT_EQ(spending.tokens(), 1 + 10 + 1) << "estimated where nobody counted";
  EXPECT_EQ(spending.text("USD"), "2 replies, 12 tokens, at least 0.4000 USD (1 of unknown price)");
  reply.cost = 0.5;
  spending.add({}, reply);
  EXPECT_THAT(spending.refuses({}, 0).value(), HasSubstr("0.9000 of 1.0000 is spent"));
}

TEST(Spending, MoneyOfRepliesThatNobodyCountedIsEstimatedForTheLimit) {
  const Prices prices = Prices::from_json({{"models", {{"a", {{"prompt", 1e6}, {"completion", 2e6}}}}}}, "test");
  const Conversation prompt = {{Role::user, std::string(276, 'x')}};  // 100 tokens, 1 each
  Spending spending({.tokens = {}, .money = 1000.0});
  Reply reply;
  reply.text = std::string(300, 'y');  // 100 tokens, 2 each
  int sent = 0;
  while (sent < 100 && !spending.hold(prompt, 400, prices, "a").refusal()) {
    spending.add(prompt, reply, prices, "a");
    ++sent;
  }
  EXPECT_EQ(sent, 3) << "300 each";
  EXPECT_THAT(spending.refuses(prompt, 400).value(), HasSubstr("about 900.0000 of 1000.0000 is spent"));
  EXPECT_EQ(spending.text("USD"), "3 replies, 600 tokens, cost unknown") << "an estimate is no cost";
  Spending small({.tokens = {}, .money = 299.0});
  EXPECT_NE(small.hold(prompt, 400, prices, "a").refusal(), std::nullopt) << "the first prompt may be too dear";
}

TEST(Spending, AttemptsThatWereLostCount) {
  const Prices prices = Prices::from_json({{"models", {{"a", {{"prompt", 1e6}, {"completion", 2e6}}}}}}, "test");
  Spending spending({.tokens = {}, .money = 1000.0});
  Reply reply;
  reply.usage = {.prompt_tokens = 100, .completion_tokens = 50, .cached_tokens = {}, .raw = {}};
  reply.cost = 200;
  reply.lost = 2;
  spending.add({}, reply, prices, "a");
  EXPECT_EQ(spending.tokens(), 350);
  EXPECT_EQ(spending.text("USD"), "3 replies, 350 tokens, at least 200.0000 USD (2 of unknown price)");
  EXPECT_THAT(spending.refuses({{Role::user, "x"}}, 0).value_or("none"), "none");
  spending.add({}, reply, prices, "a");
  EXPECT_THAT(spending.refuses({}, 0).value_or("none"), "none") << "800 of 1000";
  spending.add({}, reply, prices, "a");
  EXPECT_THAT(spending.refuses({}, 0).value_or("none"), HasSubstr("about 1200.0000 of 1000.0000 is spent"));
}

// Room for one at a time: the other one waits for what the first really takes.
TEST(Spending, WhatIsUnderWayCounts) {
  const Conversation prompt = {{Role::user, std::string(300, 'x')}};  // 108 tokens, with a reply 208
  const Prices prices = Prices::from_json({{"models", {{"a", {{"prompt", 1e6}, {"completion", 1e6}}}}}}, "test");
  for (const bool is_money : {false, true})
    for (const std::int64_t taken : {50, 150}) {
      SpendingLimits limits;
      if (is_money)
        limits.money = 300.0;  // a token costs 1
      else
        limits.tokens = 300;
      Spending spending(limits);
      std::future<std::pair<std::int64_t, std::optional<std::string>>> second;
      {
        const Spending::Held first = spending.hold(prompt, 400, prices, "a");
        ASSERT_EQ(first.refusal(), std::nullopt);
        second = std::async(std::launch::async, [&] {
          const Spending::Held held = spending.hold(prompt, 400, prices, "a");
          return std::pair{spending.tokens(), held.refusal()};
        });
        Reply reply;
        reply.usage = {.prompt_tokens = taken, .completion_tokens = 0, .cached_tokens = {}, .raw = {}};
        reply.cost = static_cast<double>(taken + (taken > 50 ? 50 : 0));
        spending.add(prompt, reply);
      }
      const auto [tokens, refusal] = second.get();
      EXPECT_EQ(tokens, taken) << "it came behind the first one's reply";
      EXPECT_EQ(refusal.has_value(), taken > 50) << refusal.value_or("");
    }
  Spending unlimited({});
  const Spending::Held one = unlimited.hold(prompt, 400, prices, "a");
  EXPECT_EQ(unlimited.hold(prompt, 400, prices, "a").refusal(), std::nullopt);
}

TEST(Retry, WhichFailuresMayPass) {
  HttpReply reply;
  for (const int status : {408, 409, 425, 429, 500, 502, 503, 504, 529}) {
    reply.status = status;
    EXPECT_TRUE(may_succeed_later(reply)) << status;
  }
  for (const int status : {200, 400, 401, 403, 404, 422, 501, 505}) {
    reply.status = status;
    EXPECT_FALSE(may_succeed_later(reply)) << status;
  }
  reply.failure = HttpReply::Failure::too_large;
  EXPECT_FALSE(may_succeed_later(reply));
  for (const auto failure :
       {HttpReply::Failure::unreachable, HttpReply::Failure::broken, HttpReply::Failure::timed_out}) {
    reply.failure = failure;
    EXPECT_TRUE(may_succeed_later(reply));
  }
}

TEST(Retry, WaitsDoubleUpToTheLongest) {
  const RetryPolicy policy{.most_attempts = 40, .first_wait_s = 1, .longest_wait_s = 60};
  Random random(7);
  for (int attempt = 1; attempt < 40; ++attempt) {
    const double whole = std::min(60.0, std::pow(2.0, attempt - 1));
    const double wait = wait_before_next(policy, attempt, {}, random).value();
    EXPECT_GE(wait, whole / 2);
    EXPECT_LE(wait, whole);
  }
  EXPECT_EQ(wait_before_next(policy, 40, {}, random), std::nullopt);
}

TEST(Retry, TheServersWish) {
  const RetryPolicy policy{.most_attempts = 3, .first_wait_s = 1, .longest_wait_s = 60};
  Random random(7);
  const auto wait = [&](const std::string& header) {
    HttpReply reply;
    reply.headers["retry-after"] = header;
    return wait_before_next(policy, 1, reply, random);
  };
  EXPECT_EQ(wait("17"), 17.0);
  EXPECT_EQ(wait("0"), 0.0);
  EXPECT_EQ(wait("-3"), 0.0);
  EXPECT_EQ(wait("61"), std::nullopt) << "longer than a run waits";
  EXPECT_EQ(wait("Wed, 21 Oct 2015 07:28:00 GMT"), 0.0) << "a date that is over";
  EXPECT_LE(wait("soon").value(), 1.0) << "not understood";
  EXPECT_LE(wait("nan").value(), 1.0);
}

TEST(SeveralModels, AskedAsOftenAsTheirWeightsSay) {
  EXPECT_EQ(parse_weight("a/b:c").name, "a/b:c");
  EXPECT_EQ(parse_weight("a=0.5").weight, 0.5);
  EXPECT_EQ(parse_weight("a=b").name, "a=b");
  for (const char* text : {"", "=2", "a=0", "a=-1", "a=inf", "a=nan"}) EXPECT_THROW(parse_weight(text), Error) << text;
  struct Named final : Model {
    explicit Named(std::string called) : n(std::move(called)) {}
    [[nodiscard]] const std::string& name() const override { return n; }
    Reply ask(const Conversation&) override { return {}; }
    std::string n;
  };
  const std::vector<WeightedModel> models = {{std::make_shared<Named>("a"), 3}, {std::make_shared<Named>("b"), 1}};
  int a = 0;
  for (std::uint64_t n = 0; n < 4000; ++n) {
    a += choose(models, 5, n).name() == "a" ? 1 : 0;
    EXPECT_EQ(&choose(models, 5, n), &choose(models, 5, n));
  }
  EXPECT_NEAR(a, 3000, 150);
}

}  // namespace
}  // namespace heed::models
