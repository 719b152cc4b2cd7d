#include "record/model_options.hpp"

#include <fmt/format.h>

#include "heed/heed.hpp"

namespace heed::record {
namespace {

template <typename T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

template <typename T>
std::optional<T> optional_at(const nlohmann::json& object, const char* name) {
  const nlohmann::json& value = object.at(name);
  return value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

[[noreturn]] void refuse(const std::string& sentence, std::string value = {}) {
  throw Error(ErrorCode::usage, sentence, std::move(value));
}

}  // namespace

nlohmann::json to_json(const ModelOptions& o) {
  return {{"endpoint", o.endpoint},
          {"command", o.command},
          {"mailbox", o.mailbox},
          {"replay", o.replay},
          {"models", o.models},
          {"key_variable", o.key_variable},
          {"key_file", o.key_file},
          {"recording", o.recording},
          {"preset", o.preset},
          {"templates", o.templates},
          {"window_tokens", o.window_tokens},
          {"reply_tokens", o.reply_tokens},
          {"reply_limit_s", o.reply_limit_s},
          {"temperature", or_null(o.temperature)},
          {"request_fields", o.request_fields},
          {"most_tokens", or_null(o.most_tokens)},
          {"most_money", or_null(o.most_money)},
          {"prices", o.prices},
          {"repairs", o.repairs},
          {"share", o.share},
          {"bandit", o.is_bandit}};
}

ModelOptions model_options_from_json(const nlohmann::json& json) {
  ModelOptions o;
  o.endpoint = json.at("endpoint");
  o.command = json.at("command");
  o.mailbox = json.at("mailbox");
  o.replay = json.at("replay");
  o.models = json.at("models").get<std::vector<std::string>>();
  o.key_variable = json.at("key_variable");
  o.key_file = json.at("key_file");
  o.recording = json.at("recording");
  o.preset = json.at("preset");
  o.templates = json.at("templates");
  o.window_tokens = json.at("window_tokens");
  o.reply_tokens = json.at("reply_tokens");
  o.reply_limit_s = json.at("reply_limit_s");
  o.temperature = optional_at<double>(json, "temperature");
  o.request_fields = json.at("request_fields");
  o.most_tokens = optional_at<std::int64_t>(json, "most_tokens");
  o.most_money = optional_at<double>(json, "most_money");
  o.prices = json.at("prices");
  o.repairs = json.at("repairs");
  o.share = json.at("share");
  o.is_bandit = json.at("bandit");
  return o;
}

void expect_sound(const ModelOptions& o) {
  const int answering = !o.endpoint.empty() + !o.command.empty() + !o.mailbox.empty() + !o.replay.empty();
  if (answering > 1)
    refuse("--endpoint, --command, --mailbox and --replay each say who writes sources; give one of them");
  if (o.endpoint.empty() != o.models.empty())
    refuse(o.endpoint.empty() ? "--model names a model of an endpoint; give --endpoint, too"
                              : "--endpoint needs the name of a model that it serves; give --model",
           o.endpoint);
  if (o.endpoint.empty() && (!o.key_variable.empty() || !o.key_file.empty()))
    refuse("a key is for an endpoint; give --endpoint, or leave the key out");
  if (!o.key_variable.empty() && !o.key_file.empty()) refuse("--key-variable and --key-file both name a key; give one");
  if (!o.replay.empty() && !o.recording.empty())
    refuse("a replayed run has nothing to record; leave --record out", o.recording);
  if (!(o.share > 0 && o.share <= 1))
    refuse(fmt::format("a share of {} is none; models get a share of the trials above 0, up to 1", o.share),
           fmt::format("{}", o.share));
  if (o.reply_tokens < 1 || o.window_tokens <= o.reply_tokens)
    refuse(fmt::format("a window of {} tokens has no room for a prompt beside a reply of {}", o.window_tokens,
                       o.reply_tokens),
           std::to_string(o.window_tokens));
  if (o.reply_limit_s < 0 || (o.reply_limit_s == 0 && o.mailbox.empty()))
    refuse("a reply takes longer than --reply-limit 0 allows; only a mailbox is waited for without end");
  if (o.most_tokens && *o.most_tokens <= 0)
    refuse(fmt::format("--token-budget {} allows no prompt; leave it out, or allow some", *o.most_tokens),
           std::to_string(*o.most_tokens));
  if (o.most_money && !(*o.most_money > 0))
    refuse(fmt::format("--money-budget {} allows no prompt; leave it out, or allow some", *o.most_money),
           fmt::format("{}", *o.most_money));
  if (o.most_money && o.endpoint.empty())
    refuse(
        "--money-budget is of an endpoint's models, whose tokens --prices are for; a command, a mailbox and a replay "
        "have no price: leave it out, or limit tokens with --token-budget");
  if (o.most_money && o.prices.empty())
    refuse("--money-budget can be kept only where prices are known; name a file of them with --prices");
}

}  // namespace heed::record
