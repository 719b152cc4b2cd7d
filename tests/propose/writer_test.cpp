// What becomes of a model's replies before anything is built: edits, second tries, repairs, limits, and what a resumed
// run asks again.
#include "propose/writer.hpp"

#include <deque>
#include <future>
#include <map>

#include "source/editable.hpp"
#include "testing.hpp"

namespace heed::propose {
namespace {

using Ending = Written::Ending;
using ::testing::HasSubstr;

constexpr const char* kLine = "  return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");\n";

constexpr const char* kCutOff = "cut off: ";  // before a reply that its model did not end
constexpr const char* kCharged = "charged for no text";
constexpr const char* kUncounted = "no JSON, and nobody counts it";

std::string edit(const std::string& replacement, const std::string& search = kLine) {
  return "<insight>divides less</insight>\ncpu/rows.hpp\n<<<<<<< SEARCH\n" + search + "=======\n" + replacement +
         ">>>>>>> REPLACE\n";
}

// A recording is a model that answers what a test wrote.
class Answers {
 public:
  explicit Answers(const std::vector<std::string>& replies) {
    std::string text;
    for (const std::string& reply : replies) {
      nlohmann::json exchange = {{"messages", nlohmann::json::array()}};
      if (reply.rfind("failure: ", 0) == 0)
        exchange["failure"] = reply.substr(9);
      else if (reply.rfind(kCharged, 0) == 0)
        exchange.update(
            {{"failure", "no text"}, {"reply", {{"content", ""}, {"prompt_tokens", 100}, {"completion_tokens", 50}}}});
      else if (reply.rfind(kUncounted, 0) == 0)
        exchange.update({{"failure", "no JSON"}, {"reply", {{"content", "<html>"}}}});
      else if (reply.rfind(kCutOff, 0) == 0)
        exchange["reply"] = {{"content", reply.substr(std::string(kCutOff).size())}, {"is_cut_off", true}};
      else
        exchange["reply"] = {{"content", reply}, {"prompt_tokens", 100}, {"completion_tokens", 50}};
      text += exchange.dump() + "\n";
    }
    write_file_atomically(folder_.path() / "replies", text, ErrorCode::internal);
    options_.replay = folder_.file("replies");
  }
  record::ModelOptions& options() { return options_; }

 private:
  testing_support::TemporaryFolder folder_;
  record::ModelOptions options_;
};

class Log final : public ExchangeLog {
 public:
  std::optional<store::ExchangeRecord> find(int generation, int place, const std::string& purpose) override {
    for (const store::ExchangeRecord& one : kept)
      if (one.generation == generation && one.place == place && one.purpose == purpose) return one;
    return std::nullopt;
  }
  void keep(store::ExchangeRecord& exchange) override {
    if (exchange.id == 0) {
      kept.push_back(exchange);
      exchange.id = std::ssize(kept);
    }
    kept.at(static_cast<std::size_t>(exchange.id) - 1) = exchange;
  }
  std::vector<store::ExchangeRecord> kept;
};

struct Asked {
  explicit Asked(const std::vector<std::string>& replies, models::SpendingLimits limits = {})
      : answers(replies), panel(answers.options(), 1, nullptr), spending(limits) {}
  Answers answers;
  Panel panel;
  models::Spending spending;
  Log log;
  Writer writer{answers.options(), panel, spending, log};
};

Variant parent() {
  Variant variant;
  variant.family = &find_family("fwd_cpu");
  return variant;
}

prompts::Task task() {
  prompts::Task task;
  task.family = "fwd_cpu";
  for (const auto& [path, text] : source::editable(*parent().family)) task.sources.push_back({path, text, 1});
  return task;
}

TEST(Writer, EditsThatApply) {
  Asked setup({edit("  return 1.0F / sum;\n")});
  const Written written = setup.writer.write(task(), parent(), 2, 3);
  ASSERT_EQ(written.ending, Ending::edits);
  EXPECT_EQ(written.insight, "divides less");
  EXPECT_THAT(*written.overlay->find("cpu/rows.hpp"), HasSubstr("  return 1.0F / sum;\n"));
  ASSERT_EQ(setup.log.kept.size(), 1U);
  EXPECT_EQ(setup.log.kept[0].generation, 2);
  EXPECT_EQ(setup.log.kept[0].place, 3);
  EXPECT_EQ(setup.log.kept[0].purpose, "first");
  EXPECT_EQ(setup.spending.tokens(), 150);
}

TEST(Writer, EditsThatDoNotApplyAreWrittenOnceMore) {
  Asked setup({edit("x\n", "  return sum > 1 ? 1.0F / sum : 0;\n"), edit("  return 1.0F / sum;\n")});
  EXPECT_EQ(setup.writer.write(task(), parent(), 0, 0).ending, Ending::edits);
  ASSERT_EQ(setup.log.kept.size(), 2U);
  EXPECT_EQ(setup.log.kept[1].purpose, "again");
  const auto prompt = setup.log.kept[1].prompt.get<models::Conversation>();
  ASSERT_EQ(prompt.size(), 4U);
  EXPECT_THAT(prompt[3].text, HasSubstr("return sum > 0 ? 1.0F")) << "the nearest line";
}

TEST(Writer, TwoUnusableRepliesAreATrialWithoutEdits) {
  Asked setup({"I would unroll the loop.",
               "cpu/rows.hpp\n<<<<<<< SEARCH\n#pragma once\n=======\n#include <time.h>\n>>>>>>> REPLACE\n"});
  const Written written = setup.writer.write(task(), parent(), 0, 0);
  EXPECT_EQ(written.ending, Ending::unusable);
  EXPECT_EQ(written.overlay, nullptr);
  EXPECT_THAT(written.failure, HasSubstr("asked once more: "));
  EXPECT_THAT(written.failure, HasSubstr("line 2 of cpu/rows.hpp includes something by other means"));
}

TEST(Writer, NothingOfAReplyThatWasCutOffIsTaken) {
  const std::string half = kCutOff + edit("  return 1.0F / sum;\n") + "\nThen, in another file,\n";
  Asked setup({half, half});
  const Written written = setup.writer.write(task(), parent(), 0, 0);
  EXPECT_EQ(written.ending, Ending::unusable);
  EXPECT_THAT(written.failure, HasSubstr("cut off at its limit of 16384 tokens"));
  EXPECT_THAT(setup.log.kept.at(1).prompt.get<models::Conversation>().at(3).text, HasSubstr("cut off"));
  Asked resumed({"failure: nobody is there"});
  resumed.log.kept = setup.log.kept;
  EXPECT_EQ(resumed.writer.write(task(), parent(), 0, 0).ending, Ending::unusable) << "a resumed run neither";
}

TEST(Writer, AModelThatFails) {
  Asked setup({"failure: the endpoint is down"});
  const Written written = setup.writer.write(task(), parent(), 0, 0);
  EXPECT_EQ(written.ending, Ending::no_reply);
  EXPECT_EQ(written.failure, "the endpoint is down");
  EXPECT_EQ(setup.log.kept.at(0).failure, "the endpoint is down");
}

TEST(Writer, RepliesThatCannotBeUsedCost) {
  Asked setup({kCharged, kUncounted, edit("  return 1.0F / sum;\n")});
  EXPECT_EQ(setup.writer.write(task(), parent(), 0, 0).ending, Ending::no_reply);
  EXPECT_EQ(setup.spending.tokens(), 150);
  const store::ExchangeRecord first = setup.log.kept.at(0);
  EXPECT_EQ(first.failure, "no text");
  EXPECT_EQ(first.reply["completion_tokens"], 50);
  EXPECT_EQ(setup.writer.write(task(), parent(), 0, 1).ending, Ending::no_reply);
  EXPECT_GT(setup.spending.tokens(),
            150 + models::estimated_tokens(setup.log.kept.at(1).prompt.get<models::Conversation>()) - 1);
  EXPECT_EQ(setup.log.kept.at(1).reply["content"], "<html>");
  EXPECT_THAT(setup.spending.text("USD"), HasSubstr("2 replies"));
  // A run that goes on sends the prompt again.
  setup.log.kept.resize(1);
  EXPECT_EQ(setup.writer.write(task(), parent(), 0, 0).ending, Ending::edits);
  EXPECT_EQ(setup.log.kept.size(), 2U);
}

TEST(Writer, LimitsSendNothing) {
  Asked setup({edit("  return 1.0F / sum;\n")}, {.tokens = 500, .money = {}});
  const Written written = setup.writer.write(task(), parent(), 0, 0);
  EXPECT_EQ(written.ending, Ending::out_of_budget);
  EXPECT_TRUE(setup.log.kept.empty());
}

// Room for one prompt: of four threads one sends it, and the others wait for what its reply leaves.
TEST(Writer, LimitsHoldForPromptsThatAreUnderWayTogether) {
  const std::string good = edit("  return 1.0F / sum;\n");
  Asked free({good});
  (void)free.writer.write(task(), parent(), 0, 0);
  const auto prompt = free.log.kept.at(0).prompt.get<models::Conversation>();
  const std::int64_t one = models::estimated_tokens(prompt) + free.answers.options().reply_tokens / 4;
  Asked setup({good, good, good, good}, {.tokens = one + 100, .money = {}});  // a reply with its prompt took 150
  std::vector<std::future<Written>> all;
  for (int place = 0; place < 4; ++place)
    all.push_back(
        std::async(std::launch::async, [&setup, place] { return setup.writer.write(task(), parent(), 0, place); }));
  std::map<Ending, int> endings;
  for (std::future<Written>& written : all) ++endings[written.get().ending];
  EXPECT_EQ(endings, (std::map<Ending, int>{{Ending::edits, 1}, {Ending::out_of_budget, 3}}));
  EXPECT_EQ(setup.log.kept.size(), 1U);
}

TEST(Writer, ARepairIsOfTheSourcesThatWereShown) {
  Asked setup({edit("  return oops;\n"), edit("  return 1.0F / sum;\n")});
  const Written first = setup.writer.write(task(), parent(), 0, 0);
  const Written mended = setup.writer.repair(first, parent(), "build_failed", "error: oops", 0, 0);
  ASSERT_EQ(mended.ending, Ending::edits);
  EXPECT_THAT(*mended.overlay->find("cpu/rows.hpp"), HasSubstr("return 1.0F / sum;"));
  EXPECT_EQ(setup.log.kept.at(1).purpose, "repair");
  EXPECT_THAT(setup.log.kept[1].prompt.get<models::Conversation>().at(3).text, HasSubstr("error: oops"));
}

TEST(Writer, EditsOfAnEditedParent) {
  Asked setup({edit("  return 1.0F / sum;\n"), edit("  return sum;\n", "  return 1.0F / sum;\n")});
  Variant edited = parent();
  edited.overlay = setup.writer.write(task(), parent(), 0, 0).overlay;
  const Written second = setup.writer.write(task(), edited, 0, 1);
  ASSERT_EQ(second.ending, Ending::edits) << second.failure;
  EXPECT_THAT(*second.overlay->find("cpu/rows.hpp"), HasSubstr("  return sum;\n"));
}

TEST(Writer, AResumedRunTakesTheReplyThatItHas) {
  Asked before({edit("  return 1.0F / sum;\n")});
  const Written first = before.writer.write(task(), parent(), 0, 0);
  Asked after({"failure: nobody is there"});
  after.log.kept = before.log.kept;
  const Written again = after.writer.write(task(), parent(), 0, 0);
  ASSERT_EQ(again.ending, Ending::edits);
  EXPECT_EQ(*again.overlay, *first.overlay);
  EXPECT_EQ(after.log.kept.size(), 1U) << "nothing was sent";
}

TEST(Writer, AResumedRunAsksThePromptThatGotNoReply) {
  Asked before({"failure: the endpoint is down"});
  prompts::Task first = task();
  first.base_us = 1;
  (void)before.writer.write(first, parent(), 0, 0);
  Asked after({edit("  return 1.0F / sum;\n")});
  after.log.kept = before.log.kept;
  first.base_us = 2;  // measured again
  const Written again = after.writer.write(first, parent(), 0, 0);
  ASSERT_EQ(again.ending, Ending::edits);
  EXPECT_EQ(again.asked, before.log.kept.at(0).prompt.get<models::Conversation>());
}

TEST(Writer, ALogInTheStore) {
  const testing_support::TemporaryFolder folder;
  store::Store store(folder.file("a.db"));
  store::RunRecord run;
  run.options = run.device = nlohmann::json::object();
  const std::int64_t id = store.add_run(run);
  models::Spending spending({});
  {
    RunLog log(store, id, spending);
    store::ExchangeRecord exchange;
    exchange.generation = 1;
    exchange.purpose = "first";
    exchange.prompt = nlohmann::json(models::Conversation{{models::Role::user, "p"}});
    models::Reply reply;
    reply.text = "r";
    reply.usage.prompt_tokens = 10;
    reply.usage.completion_tokens = 5;
    log.keep(exchange);
    EXPECT_TRUE(store::exchanges(store, id).at(0).is_awaited()) << "kept before it is sent";
    exchange.reply = reply;
    log.keep(exchange);
    exchange.id = 0;
    exchange.place = 1;
    exchange.reply = nullptr;
    log.keep(exchange);
    exchange.failure = "down";
    log.keep(exchange);
  }
  EXPECT_EQ(store::exchanges(store, id).size(), 2U);
  EXPECT_EQ(spending.tokens(), 0) << "counted by who asks";
  RunLog log(store, id, spending);
  EXPECT_EQ(spending.tokens(), 15);
  EXPECT_EQ(log.find(1, 0, "first")->reply["content"], "r");
  EXPECT_EQ(log.find(1, 1, "first")->failure, "down");
  EXPECT_FALSE(log.find(0, 0, "first"));
  // What came in place of a reply costs what it does, and is none.
  store::ExchangeRecord charged = store::exchanges(store, id).at(1);
  models::Reply received;
  received.usage.prompt_tokens = 100;
  received.usage.completion_tokens = 1;
  charged.reply = received;
  store::end_exchange(store, charged);
  models::Spending again({});
  RunLog resumed(store, id, again);
  EXPECT_EQ(again.tokens(), 116);
  EXPECT_EQ(resumed.find(1, 1, "first")->failure, "down");
  EXPECT_TRUE(resumed.find(1, 1, "first")->reply.is_null());
}

TEST(Panel, OptionsThatGiveNone) {
  const auto refusal = [](const record::ModelOptions& options) {
    try {
      const Panel panel(options, 1, nullptr);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      return std::string(error.what());
    }
    return std::string("none");
  };
  record::ModelOptions o;
  EXPECT_THAT(refusal(o), HasSubstr("nobody writes sources"));
  o.endpoint = "http://localhost:1/v1";
  EXPECT_THAT(refusal(o), HasSubstr("give --model"));
  o.models = {"a", "b=2"};
  EXPECT_EQ(refusal(o), "none");
  o.key_variable = "HEED_NO_SUCH_KEY";
  EXPECT_THAT(refusal(o), HasSubstr("no key in environment variable HEED_NO_SUCH_KEY"));
  o.key_variable.clear();
  o.command = "cat";
  EXPECT_THAT(refusal(o), HasSubstr("give one of them"));
  o.endpoint.clear();
  o.models.clear();
  o.key_file = "key";
  EXPECT_THAT(refusal(o), HasSubstr("a key is for an endpoint"));
  o.key_file.clear();
  for (const double share : {0.0, -1.0, 1.5}) {
    o.share = share;
    EXPECT_THAT(refusal(o), HasSubstr("share"));
  }
  o.share = 1;
  o.window_tokens = o.reply_tokens;
  EXPECT_THAT(refusal(o), HasSubstr("no room for a prompt"));
  o.window_tokens *= 2;
  o.reply_limit_s = 0;
  EXPECT_THAT(refusal(o), HasSubstr("only a mailbox"));
  o.reply_limit_s = 1;
  o.most_tokens = 0;
  EXPECT_THAT(refusal(o), HasSubstr("--token-budget 0 allows no prompt"));
  o.most_tokens.reset();
  o.most_money = 1;
  EXPECT_THAT(refusal(o), HasSubstr("have no price: leave it out"));
  o.command.clear();
  o.endpoint = "http://localhost:1/v1";
  o.models = {"a"};
  EXPECT_THAT(refusal(o), HasSubstr("name a file of them with --prices"));
  o.most_money.reset();
  EXPECT_EQ(refusal(o), "none");
}

TEST(ModelOptions, AreStored) {
  record::ModelOptions o;
  o.endpoint = "http://localhost:1/v1";
  o.models = {"a=2"};
  o.temperature = 0.5;
  o.most_tokens = 7;
  o.request_fields = {{"top_p", 1}};
  o.is_bandit = true;
  EXPECT_EQ(to_json(record::model_options_from_json(to_json(o))), to_json(o));
}

}  // namespace
}  // namespace heed::propose
