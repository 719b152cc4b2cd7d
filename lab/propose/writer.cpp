#include "propose/writer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "source/apply.hpp"
#include "source/edits.hpp"
#include "source/refusals.hpp"

namespace heed::propose {
namespace {

constexpr const char* kFirst = "first";
constexpr const char* kAgain = "again";
constexpr const char* kRepair = "repair";
constexpr const char* kRepairAgain = "repair again";

std::string cut(const std::string& text, std::size_t most) {
  return text.size() <= most ? text : text.substr(0, most) + "\n...";
}

}  // namespace

Writer::Writer(const record::ModelOptions& options, const Panel& panel, models::Spending& spending, ExchangeLog& log)
    : options_(options), panel_(panel), spending_(spending), log_(log), templates_(options.templates) {}

bool Writer::ask(models::Conversation conversation, int generation, int place, const std::string& purpose,
                 Written& written) {
  written.asked = std::move(conversation);
  written.reply.clear();
  written.failure.clear();
  models::Model& model = panel_.model_for(generation, place);
  written.model = model.name();
  store::ExchangeRecord exchange;
  {
    const std::lock_guard lock(mutex_);
    if (std::optional<store::ExchangeRecord> known = log_.find(generation, place, purpose)) {
      written.asked = known->prompt.get<models::Conversation>();
      written.failure = known->failure;
      written.model = known->model;
      if (known->reply.is_object()) written.reply = known->reply.get<models::Reply>().text;
      return written.failure.empty();
    }
  }
  if (std::optional<std::string> refusal = spending_.refuses(written.asked, options_.reply_tokens)) {
    written.is_out_of_budget = true;
    written.failure = *refusal;
    return false;
  }
  exchange.generation = generation;
  exchange.place = place;
  exchange.purpose = purpose;
  exchange.model = written.model;
  exchange.prompt = written.asked;
  try {
    models::Reply reply = model.ask(written.asked);
    reply.cost = panel_.prices().cost(model.name(), reply.usage);
    spending_.add(written.asked, reply);
    exchange.reply = reply;
    written.reply = reply.text;
    written.seconds += reply.latency_s;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::model) throw;
    exchange.failure = written.failure = error.what();
  }
  exchange.created = store::utc_now();
  const std::lock_guard lock(mutex_);
  log_.keep(exchange);
  return written.failure.empty();
}

void Writer::take_edits(const Variant& parent, Written& written) const {
  written.overlay.reset();
  try {
    const source::Edits edits = source::parse_edits(written.reply);
    written.insight = edits.insight;
    Overlay overlay = source::apply(edits, parent);
    if (const std::optional<std::string> refusal = source::refusal_of(overlay)) throw source::EditError(*refusal);
    written.overlay = std::make_shared<const Overlay>(std::move(overlay));
    written.failure.clear();
  } catch (const source::EditError& error) {
    written.failure = error.what();
  }
}

Written Writer::write(const prompts::Task& task, const Variant& parent, int generation, int place) {
  Written written;
  const prompts::PromptLimits limits{.window_tokens = options_.window_tokens, .reply_tokens = options_.reply_tokens};
  models::Conversation first = prompts::first_prompt(templates_, prompts::parse_preset(options_.preset), task, limits);
  if (!ask(std::move(first), generation, place, kFirst, written)) return written;
  take_edits(parent, written);
  if (written.overlay) return written;
  const std::string before = written.failure;
  models::Conversation again = prompts::again_prompt(templates_, written.asked, written.reply, before);
  Written second = written;
  if (!ask(std::move(again), generation, place, kAgain, second)) {
    written.failure = fmt::format("{}; asked once more: {}", before, second.failure);
    return written;
  }
  take_edits(parent, second);
  if (!second.overlay) second.failure = fmt::format("{}; asked once more: {}", before, second.failure);
  return second;
}

Written Writer::repair(const Written& refused, const Variant& parent, const std::string& outcome,
                       const std::string& reason, int generation, int place) {
  constexpr std::size_t kMostReason = 6000;  // the compiler's first errors
  Written written = refused;
  written.overlay.reset();
  models::Conversation prompt =
      prompts::repair_prompt(templates_, refused.asked, refused.reply, outcome, cut(reason, kMostReason));
  if (!ask(std::move(prompt), generation, place, kRepair, written)) return written;
  take_edits(parent, written);
  if (written.overlay) return written;
  const std::string before = written.failure;
  models::Conversation again = prompts::again_prompt(templates_, written.asked, written.reply, before);
  Written second = written;
  if (!ask(std::move(again), generation, place, kRepairAgain, second)) {
    written.failure = fmt::format("{}; asked once more: {}", before, second.failure);
    return written;
  }
  take_edits(parent, second);
  if (!second.overlay) second.failure = fmt::format("{}; asked once more: {}", before, second.failure);
  return second;
}

RunLog::RunLog(store::Store& store, std::int64_t run, models::Spending& spending)
    : store_(store), run_(run), known_(store::exchanges(store, run)) {
  for (const store::ExchangeRecord& one : known_)
    if (one.reply.is_object()) spending.add(one.prompt.get<models::Conversation>(), one.reply.get<models::Reply>());
}

std::optional<store::ExchangeRecord> RunLog::find(int generation, int place, const std::string& purpose) {
  const auto at = std::find_if(known_.begin(), known_.end(), [&](const store::ExchangeRecord& one) {
    return one.generation == generation && one.place == place && one.purpose == purpose;
  });
  if (at == known_.end()) return std::nullopt;
  return *at;
}

void RunLog::keep(const store::ExchangeRecord& exchange) {
  store::ExchangeRecord one = exchange;
  one.run = run_;
  one.id = store::add_exchange(store_, one);
  known_.push_back(std::move(one));
}

}  // namespace heed::propose
