#include "propose/panel.hpp"

#include <fmt/format.h>

#include "base/random.hpp"
#include "base/text.hpp"
#include "heed/heed.hpp"
#include "models/chat_client.hpp"
#include "models/command_model.hpp"
#include "models/mailbox.hpp"
#include "models/recording.hpp"

namespace heed::propose {
namespace {

constexpr std::uint64_t kChoosing = 11;  // of the random numbers that choose models

}  // namespace

Panel::Panel(const record::ModelOptions& o, std::uint64_t seed, std::function<void(const std::string&)> on_wait)
    : seed_(substream(seed, kChoosing)) {
  record::expect_sound(o);
  if (!o.prices.empty()) prices_ = models::Prices::from_file(o.prices);
  if (!o.endpoint.empty()) {
    models::Endpoint endpoint;
    endpoint.url = o.endpoint;
    if (!o.key_variable.empty()) endpoint.key = models::Secret::from_environment(o.key_variable);
    if (!o.key_file.empty()) endpoint.key = models::Secret::from_file(o.key_file);
    endpoint.limit_s = o.reply_limit_s;
    endpoint.reply_tokens = o.reply_tokens;
    endpoint.temperature = o.temperature;
    endpoint.extra = o.request_fields;
    for (const std::string& text : o.models) {
      const models::NamedWeight one = models::parse_weight(text);
      if (o.most_money && !prices_.knows(one.name))
        throw Error(
            ErrorCode::usage,
            fmt::format("{} has no price of {}, so that --money-budget cannot be kept; add it", o.prices, one.name),
            one.name);
      endpoint.model = one.name;
      models_.push_back({std::make_shared<models::ChatClient>(endpoint, on_wait), one.weight});
    }
    text_ = fmt::format("{} at {}", join(o.models, ", "), o.endpoint);
  } else if (!o.command.empty()) {
    models_.push_back({std::make_shared<models::CommandModel>(o.command, o.reply_limit_s)});
    text_ = fmt::format("the command {}", models_.back().model->name());
  } else if (!o.mailbox.empty()) {
    models_.push_back({std::make_shared<models::Mailbox>(o.mailbox, o.reply_limit_s, on_wait)});
    text_ = fmt::format("the mailbox {}", o.mailbox);
  } else if (!o.replay.empty()) {
    models_.push_back({std::make_shared<models::Replay>(o.replay, on_wait)});
    text_ = fmt::format("the recording {}", o.replay);
  } else {
    throw Error(ErrorCode::usage, "nobody writes sources; --endpoint, --command, --mailbox or --replay says who does");
  }
  if (!o.recording.empty())
    for (models::WeightedModel& one : models_)
      one.model = std::make_shared<models::Recorder>(one.model, o.recording, on_wait);
}

models::Model& Panel::model_for(int generation, int place) const {
  constexpr std::uint64_t kPlaces = 4096;
  return models::choose(models_, seed_,
                        static_cast<std::uint64_t>(generation) * kPlaces + static_cast<std::uint64_t>(place));
}

}  // namespace heed::propose
