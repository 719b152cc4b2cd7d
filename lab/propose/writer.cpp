#include "propose/writer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "process/timeline.hpp"
#include "source/apply.hpp"
#include "source/edits.hpp"
#include "source/refusals.hpp"

namespace heed::propose {
namespace {

constexpr const char* kFirst = "first";
constexpr const char* kAgain = "again";
constexpr const char* kRepair = "repair";
constexpr const char* kRepairAgain = "repair again";

prompts::PromptLimits limits_of(const record::ModelOptions& options) {
  return {.window_tokens = options.window_tokens, .reply_tokens = options.reply_tokens};
}

}  // namespace

Writer::Writer(const record::ModelOptions& options, const Panel& panel, models::Spending& spending, ExchangeLog& log)
    : options_(options), panel_(panel), spending_(spending), log_(log), templates_(options.templates) {}

bool Writer::ask(models::Conversation conversation, int generation, int place, const std::string& purpose,
                 Written& written) {
  written.asked = std::move(conversation);
  written.reply.clear();
  written.is_cut_off = false;
  models::Model& model = panel_.model_for(generation, place);
  written.model = model.name();
  {
    const std::lock_guard lock(mutex_);
    if (const std::optional<store::ExchangeRecord> known = log_.find(generation, place, purpose)) {
      written.asked = known->prompt.get<models::Conversation>();
      if (known->failure.empty() && known->reply.is_object()) {
        written.model = known->model;
        const auto reply = known->reply.get<models::Reply>();
        written.reply = reply.text;
        written.is_cut_off = reply.is_cut_off;
        return true;
      }
    }
  }
  const models::Spending::Held held =
      spending_.hold(written.asked, options_.reply_tokens, panel_.prices(), model.name());
  if (held.refusal()) {
    written.ending = Written::Ending::out_of_budget;
    written.failure = *held.refusal();
    return false;
  }
  store::ExchangeRecord exchange;
  exchange.generation = generation;
  exchange.place = place;
  exchange.purpose = purpose;
  exchange.model = written.model;
  exchange.prompt = written.asked;
  exchange.created = store::utc_now();
  {
    const std::lock_guard lock(mutex_);
    log_.keep(exchange);
  }
  try {
    const TimelineRange range("model", model.name());
    models::Reply reply =
        model.ask_as(fmt::format("generation {}, place {}, {}", generation, place, purpose), written.asked);
    reply.cost = panel_.prices().cost(model.name(), reply.usage);
    spending_.add(written.asked, reply, panel_.prices(), model.name());
    exchange.reply = reply;
    written.reply = reply.text;
    written.is_cut_off = reply.is_cut_off;
    written.seconds += reply.latency_s;
  } catch (const models::UnusableReply& error) {
    models::Reply received = error.received();
    received.cost = panel_.prices().cost(model.name(), received.usage);
    spending_.add(written.asked, received, panel_.prices(), model.name());
    exchange.reply = received;
    written.ending = Written::Ending::no_reply;
    exchange.failure = written.failure = error.what();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::model) throw;
    written.ending = Written::Ending::no_reply;
    exchange.failure = written.failure = error.what();
  }
  exchange.created = store::utc_now();
  const std::lock_guard lock(mutex_);
  log_.keep(exchange);
  return exchange.failure.empty();
}

void Writer::take_edits(const Variant& parent, Written& written) const {
  written.overlay.reset();
  written.ending = Written::Ending::unusable;
  try {
    // Whole blocks of it may be half of an idea.
    if (written.is_cut_off)
      throw source::EditError(fmt::format(
          "the reply was cut off at its limit of {} tokens; answer with edits alone, as few as the idea needs",
          options_.reply_tokens));
    const source::Edits edits = source::parse_edits(written.reply);
    written.insight = edits.insight;
    Overlay overlay = source::apply(edits, parent);
    if (const std::optional<std::string> refusal = source::refusal_of(overlay)) throw source::EditError(*refusal);
    written.overlay = std::make_shared<const Overlay>(std::move(overlay));
    written.ending = Written::Ending::edits;
    written.failure.clear();
  } catch (const source::EditError& error) {
    written.failure = error.what();
  }
}

Written Writer::take_or_ask_again(Written written, const Variant& parent, int generation, int place,
                                  const std::string& purpose) {
  take_edits(parent, written);
  if (written.overlay) return written;
  Written second = written;
  if (ask(prompts::again_prompt(templates_, written.asked, written.reply, written.failure, limits_of(options_)),
          generation, place, purpose, second)) {
    take_edits(parent, second);
    if (second.overlay) return second;
  }
  written.failure += fmt::format("; asked once more: {}", second.failure);
  return written;
}

Written Writer::write(const prompts::Task& task, const Variant& parent, int generation, int place) {
  Written written;
  if (!ask(prompts::first_prompt(templates_, prompts::parse_preset(options_.preset), task, limits_of(options_)),
           generation, place, kFirst, written))
    return written;
  return take_or_ask_again(std::move(written), parent, generation, place, kAgain);
}

Written Writer::repair(const Written& refused, const Variant& parent, const std::string& outcome,
                       const std::string& reason, int generation, int place) {
  Written written = refused;
  written.seconds = 0;
  written.overlay.reset();
  if (!ask(prompts::repair_prompt(templates_, refused.asked, refused.reply, outcome, reason, limits_of(options_)),
           generation, place, kRepair, written))
    return written;
  return take_or_ask_again(std::move(written), parent, generation, place, kRepairAgain);
}

RunLog::RunLog(store::Store& store, std::int64_t run, models::Spending& spending, const models::Prices& prices)
    : store_(store), run_(run), known_(store::exchanges(store, run)) {
  for (const store::ExchangeRecord& one : known_)
    if (one.reply.is_object())
      spending.add(one.prompt.get<models::Conversation>(), one.reply.get<models::Reply>(), prices, one.model);
}

std::optional<store::ExchangeRecord> RunLog::find(int generation, int place, const std::string& purpose) {
  std::optional<store::ExchangeRecord> found;
  for (const store::ExchangeRecord& one : known_) {
    if (one.generation != generation || one.place != place || one.purpose != purpose) continue;
    found = one;
    if (!one.failure.empty())
      found->reply = nullptr;  // what came is none: its cost is counted, and the prompt sent again
    if (found->reply.is_object()) break;
  }
  return found;
}

void RunLog::keep(store::ExchangeRecord& exchange) {
  exchange.run = run_;
  if (exchange.id != 0) {
    store::end_exchange(store_, exchange);
    return;
  }
  exchange.id = store::add_exchange(store_, exchange);
}

}  // namespace heed::propose
