#include "models/model.hpp"

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/enum_names.hpp"
#include "heed/heed.hpp"
#include "json/integer.hpp"

namespace heed::models {
namespace {

constexpr std::int64_t kBytesAToken = 3;
constexpr std::int64_t kTokensAMessage = 8;  // around its text: role and separators

[[noreturn]] void refuse(std::string_view what, const nlohmann::json& json) {
  std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 80) + "...";
  throw Error(ErrorCode::invalid_input, fmt::format("{} stands where {} belongs", text, what), text);
}

nlohmann::json or_null(const auto& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

std::string_view to_string(Role role) {
  switch (role) {
    case Role::system:
      return "system";
    case Role::user:
      return "user";
    case Role::assistant:
      return "assistant";
  }
  return "user";
}

UnusableReply::UnusableReply(const std::string& message, Reply received, std::string value)
    : Error(ErrorCode::model, message, std::move(value)), received_(std::move(received)) {
  if (received_.text.size() > kMostKeptBytes) received_.text.resize(kMostKeptBytes);
}

std::string digest_of(const Conversation& conversation) {
  Digester digester;
  for (const Message& message : conversation) digester.add(to_string(message.role)).add(message.text);
  return digester.hex();
}

std::string text_of(const Conversation& conversation) {
  std::string text;
  for (const Message& message : conversation) {
    if (!text.empty()) text += fmt::format("\n\n---- {} ----\n\n", to_string(message.role));
    text += message.text;
  }
  if (!text.ends_with('\n')) text += '\n';
  return text;
}

std::int64_t estimated_tokens(std::string_view text) {
  return (std::ssize(text) + kBytesAToken - 1) / kBytesAToken;
}

std::int64_t estimated_tokens(const Conversation& conversation) {
  std::int64_t tokens = 0;
  for (const Message& message : conversation) tokens += kTokensAMessage + estimated_tokens(message.text);
  return tokens;
}

void to_json(nlohmann::json& json, const Message& message) {
  json = {{"role", to_string(message.role)}, {"content", message.text}};
}

void from_json(const nlohmann::json& json, Message& message) {
  if (!json.is_object() || !json.contains("role") || !json.contains("content") || !json["content"].is_string())
    refuse("a message with a role and a text as its content", json);
  message.text = json["content"];
  for (const Role role : {Role::system, Role::user, Role::assistant})
    if (json["role"] == to_string(role)) {
      message.role = role;
      return;
    }
  refuse("a role, which is system, user or assistant,", json["role"]);
}

void to_json(nlohmann::json& json, const Reply& reply) {
  json = {{"content", reply.text},
          {"model", reply.model},
          {"prompt_tokens", or_null(reply.usage.prompt_tokens)},
          {"completion_tokens", or_null(reply.usage.completion_tokens)},
          {"cached_tokens", or_null(reply.usage.cached_tokens)},
          {"usage", reply.usage.raw},
          {"latency_s", reply.latency_s},
          {"attempts", reply.attempts},
          {"lost_attempts", reply.lost},
          {"is_cut_off", reply.is_cut_off},
          {"cost", or_null(reply.cost)}};
}

void from_json(const nlohmann::json& json, Reply& reply) {
  if (!json.is_object() || !json.contains("content") || !json["content"].is_string())
    refuse("a reply with a text as its content", json);
  reply = Reply{};
  reply.text = json["content"];
  try {
    reply.model = json.value("model", std::string());
    reply.latency_s = json.value("latency_s", 0.0);
    reply.attempts = json.value("attempts", 1);
    reply.is_cut_off = json.value("is_cut_off", false);
    if (const auto cost = json.find("cost"); cost != json.end() && cost->is_number()) reply.cost = cost->get<double>();
  } catch (const nlohmann::json::exception&) {
    refuse("a reply", json);
  }
  reply.lost = integer_at<std::uint16_t>(json, "lost_attempts").value_or(0);
  reply.usage.prompt_tokens = integer_at<std::uint32_t>(json, "prompt_tokens");
  reply.usage.completion_tokens = integer_at<std::uint32_t>(json, "completion_tokens");
  reply.usage.cached_tokens = integer_at<std::uint32_t>(json, "cached_tokens");
  if (json.contains("usage")) reply.usage.raw = json["usage"];
}

}  // namespace heed::models
