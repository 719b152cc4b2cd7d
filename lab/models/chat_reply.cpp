#include "models/chat_reply.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "heed/heed.hpp"
#include "json/fields.hpp"
#include "json/integer.hpp"
#include "json/text.hpp"
#include "models/event_stream.hpp"

namespace heed::models {
namespace {

constexpr std::size_t kMostQuoted = 300;

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& what, const std::string& value = {}) {
  throw Error(ErrorCode::model, what, value);
}

// Without the key, which a cut through its middle would hide.
std::string first_line_of(std::string_view text, const Secret& key) {
  std::string line = key.removed_from(trim(text.substr(0, text.find('\n'))));
  if (line.size() > kMostQuoted) line = line.substr(0, kMostQuoted) + "...";
  return line;
}

std::string line_of_json(const Json& json, const Secret& key) {
  return first_line_of(key.removed_from_all_of(json).dump(-1, ' ', false, Json::error_handler_t::replace), key);
}

// A text, or a list of parts of which some are texts.
std::string text_at(const Json& json, const char* name) {
  const auto at = json.find(name);
  if (at == json.end()) return {};
  if (at->is_string()) return *at;
  std::string text;
  if (at->is_array())
    for (const Json& part : *at)
      if (part.is_object() && part.contains("text") && part["text"].is_string()) text += part["text"];
  return text;
}

void take_usage(const Json& body, Usage& usage) {
  const auto at = body.find("usage");
  if (at == body.end() || !at->is_object()) return;
  usage.raw = *at;
  usage.prompt_tokens = integer_at<std::uint32_t>(*at, "prompt_tokens");
  usage.completion_tokens = integer_at<std::uint32_t>(*at, "completion_tokens");
  if (const auto details = at->find("prompt_tokens_details"); details != at->end() && details->is_object())
    usage.cached_tokens = integer_at<std::uint32_t>(*details, "cached_tokens");
}

void remove(const Secret& key, Reply& reply) {
  reply.text = key.removed_from(std::move(reply.text));
  reply.model = key.removed_from(std::move(reply.model));
  reply.usage.raw = key.removed_from_all_of(reply.usage.raw);
}

// An object that says what went wrong, with status 200 all the same.
void expect_no_error(const Json& body, const Secret& key) {
  if (!body.is_object()) refuse(fmt::format("the endpoint sent {} where an object belongs", line_of_json(body, key)));
  if (const auto error = body.find("error"); error != body.end() && !error->is_null()) {
    const std::string why = error->is_object()   ? text_at(*error, "message")
                            : error->is_string() ? error->get<std::string>()
                                                 : "";
    refuse(fmt::format("the endpoint answered with an error: {}",
                       why.empty() ? line_of_json(*error, key) : first_line_of(why, key)));
  }
}

// The first choice, where there is one.
const Json* choice_of(const Json& body) {
  const auto choices = body.find("choices");
  if (choices == body.end() || !choices->is_array() || choices->empty() || !choices->front().is_object())
    return nullptr;
  return &choices->front();
}

// The text of a chunk of a stream, or of a whole reply.
std::string text_of_choice(const Json& choice) {
  for (const char* name : {"delta", "message"})
    if (const auto at = choice.find(name); at != choice.end() && at->is_object()) return text_at(*at, "content");
  return {};
}

bool is_stream(const HttpReply& reply) {
  const auto type = reply.headers.find("content-type");
  return type != reply.headers.end() && type->second.find("text/event-stream") != std::string::npos;
}

Reply of_stream(const std::string& body, const Secret& key) {
  Reply reply;
  bool has_ended = false;
  for (const std::string& data : event_data(body)) {
    if (trim(data) == "[DONE]") {
      has_ended = true;
      break;
    }
    const Json chunk = parse_json(data);
    if (chunk.is_discarded())
      refuse(fmt::format("the endpoint's stream holds an event that is no JSON: {}", first_line_of(data, key)),
             first_line_of(data, key));
    expect_no_error(chunk, key);
    if (std::string model = fields::text_of(chunk, "model"); !model.empty()) reply.model = std::move(model);
    take_usage(chunk, reply.usage);
    const Json* choice = choice_of(chunk);
    if (choice == nullptr) continue;  // the last chunk holds the usage alone
    reply.text += text_of_choice(*choice);
    if (const std::string finish = fields::text_of(*choice, "finish_reason"); !finish.empty()) {
      has_ended = true;
      reply.is_cut_off = finish == "length";
    }
  }
  if (!has_ended) refuse("the endpoint's stream broke off before the reply ended");
  return reply;
}

Reply of_object(const std::string& body, const Secret& key) {
  const Json json = parse_json(body);
  if (json.is_discarded())
    refuse(body.empty() ? "the endpoint sent an empty reply"
                        : fmt::format("the endpoint's reply is no JSON: {}", first_line_of(body, key)),
           first_line_of(body, key));
  expect_no_error(json, key);
  const Json* choice = choice_of(json);
  if (choice == nullptr) refuse("the endpoint's reply holds no choices", first_line_of(body, key));
  Reply reply;
  reply.model = fields::text_of(json, "model");
  take_usage(json, reply.usage);
  reply.text = text_of_choice(*choice);
  reply.is_cut_off = fields::text_of(*choice, "finish_reason") == "length";
  return reply;
}

}  // namespace

Reply chat_reply(const HttpReply& reply, const Secret& key) {
  Reply result = is_stream(reply) ? of_stream(reply.body, key) : of_object(reply.body, key);
  if (trim(result.text).empty())
    refuse(result.is_cut_off ? "the model used up its tokens before it wrote any text; allow more with --reply-tokens"
                             : "the model's reply holds no text");
  remove(key, result);
  return result;
}

Reply received_of(const HttpReply& reply, const Secret& key) {
  Reply received;
  for (const std::string& data : is_stream(reply) ? event_data(reply.body) : std::vector{reply.body}) {
    const Json json = parse_json(data);
    if (!json.is_object()) continue;
    if (std::string model = fields::text_of(json, "model"); !model.empty()) received.model = std::move(model);
    take_usage(json, received.usage);
    if (const Json* choice = choice_of(json)) received.text += text_of_choice(*choice);
  }
  if (trim(received.text).empty()) received.text = reply.body;
  remove(key, received);
  return received;
}

bool ends_early(const HttpReply& reply) {
  if (!is_stream(reply)) return false;
  const std::vector<std::string> events = event_data(reply.body);
  const bool is_cut = !reply.body.ends_with("\n") && !reply.body.ends_with("\r");
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (trim(events[i]) == "[DONE]") return false;
    const Json chunk = parse_json(events[i]);
    if (!chunk.is_object()) return is_cut && i + 1 == events.size() && chunk.is_discarded();
    if (const auto error = chunk.find("error"); error != chunk.end() && !error->is_null()) return false;
    const Json* choice = choice_of(chunk);
    if (choice != nullptr && !fields::text_of(*choice, "finish_reason").empty()) return false;
  }
  return true;
}

std::string refusal_of(const HttpReply& reply, const Secret& key) {
  const Json json = parse_json(reply.body);
  if (json.is_object()) {
    for (const char* name : {"error", "detail", "message"}) {
      const auto at = json.find(name);
      if (at == json.end()) continue;
      if (at->is_string()) return first_line_of(at->get<std::string>(), key);
      if (at->is_object() && at->contains("message") && (*at)["message"].is_string())
        return first_line_of((*at)["message"].get<std::string>(), key);
      return line_of_json(*at, key);
    }
  }
  return first_line_of(reply.body, key);
}

}  // namespace heed::models
