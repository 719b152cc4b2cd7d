#include "models/chat_client.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>

#include "heed/heed.hpp"
#include "models/chat_reply.hpp"

namespace heed::models {
namespace {

// Fields that a model or a server may not know. The first has a successor.
constexpr std::array<std::string_view, 4> kOptional = {"max_tokens", "stream_options", "temperature", "stream"};
constexpr double kIdle_s = 120;

// Services charge nothing for what they refuse, and nobody for what was not sent.
bool may_be_charged(const HttpReply& answer) {
  return answer.is_sent && (answer.status == 0 || answer.status == 200);
}

std::string completions_url(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  constexpr std::string_view path = "/chat/completions";
  return url.ends_with(path) ? url : url + std::string(path);
}

}  // namespace

ChatClient::ChatClient(Endpoint endpoint, std::function<void(const std::string&)> on_wait)
    : endpoint_(std::move(endpoint)),
      url_(completions_url(endpoint_.url)),
      on_wait_(std::move(on_wait)),
      random_(fresh_seed()) {
  if (endpoint_.url.rfind("http://", 0) != 0 && endpoint_.url.rfind("https://", 0) != 0)
    throw Error(ErrorCode::usage,
                fmt::format("the endpoint {} is no address; one is http://localhost:8000/v1", endpoint_.url),
                endpoint_.url);
  if (endpoint_.model.empty())
    throw Error(ErrorCode::usage, "an endpoint needs the name of a model that it serves (--model)");
  if (!endpoint_.extra.is_object())
    throw Error(ErrorCode::usage, "further fields of a request are a JSON object", endpoint_.extra.dump());
}

HttpRequest ChatClient::request_for(const Conversation& conversation) const {
  const std::lock_guard lock(mutex_);
  const auto knows = [&](const char* field) { return refused_.count(field) == 0; };
  nlohmann::json body = endpoint_.extra;
  body["model"] = endpoint_.model;
  body["messages"] = conversation;
  body[knows("max_tokens") ? "max_tokens" : "max_completion_tokens"] = endpoint_.reply_tokens;
  if (endpoint_.temperature && knows("temperature")) body["temperature"] = *endpoint_.temperature;
  const bool streams = endpoint_.streams && knows("stream");
  if (streams) {
    body["stream"] = true;
    if (knows("stream_options")) body["stream_options"] = {{"include_usage", true}};
  }
  HttpRequest request;
  request.url = url_;
  request.headers = {"Content-Type: application/json",
                     streams ? "Accept: text/event-stream, application/json" : "Accept: application/json",
                     "Expect:"};  // no round trip before a long body
  if (endpoint_.key.is_given()) request.headers.push_back(endpoint_.key.as_header());
  request.body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  request.limit_s = endpoint_.limit_s;
  // A reply in one piece is silent until it is there.
  request.idle_s = streams ? std::min(kIdle_s, endpoint_.limit_s) : endpoint_.limit_s;
  return request;
}

bool ChatClient::leaves_out_what(const std::string& refusal) {
  const std::lock_guard lock(mutex_);
  for (const std::string_view field : kOptional)
    if (refusal.find(field) != std::string::npos && refused_.insert(std::string(field)).second) return true;
  return false;
}

std::string ChatClient::sentence_for(const HttpReply& reply) const {
  const std::string said = refusal_of(reply, endpoint_.key);
  switch (reply.failure) {
    case HttpReply::Failure::unreachable:
      return fmt::format("the endpoint {} cannot be reached: {}", url_, reply.why);
    case HttpReply::Failure::broken:
      return fmt::format("the connection to {} broke off: {}", url_, reply.why);
    case HttpReply::Failure::timed_out:
      return fmt::format("{} sent no whole reply within {:.0f} s; allow more with --reply-limit", url_,
                         endpoint_.limit_s);
    case HttpReply::Failure::too_large:
      return fmt::format("{} sent a reply of more than 10 MB; a patch is far smaller", url_);
    case HttpReply::Failure::none:
      break;
  }
  if (reply.status == 401 || reply.status == 403)
    return endpoint_.key.is_given()
               ? fmt::format("{} refused the key in {} (status {}): {}", url_, endpoint_.key.source(), reply.status,
                             said)
               : fmt::format(
                     "{} asks for a key (status {}); name its environment variable with --key-variable, or a "
                     "file with --key-file",
                     url_, reply.status);
  if (reply.status == 404)
    return fmt::format("{} knows no such address or no model {} (status 404): {}", url_, endpoint_.model, said);
  const std::optional<double> asked = may_succeed_later(reply) ? retry_after(reply) : std::nullopt;
  if (asked && *asked > endpoint_.retry.longest_wait_s)
    return fmt::format(
        "{} answered with status {} and asks to wait {:.0f} s, longer than the {:.0f} s that heed waits: {}", url_,
        reply.status, *asked, endpoint_.retry.longest_wait_s, said);
  return fmt::format("{} answered with status {}: {}", url_, reply.status, said);
}

Reply ChatClient::completed(Reply reply, const Reply& known) const {
  if (reply.model.empty()) reply.model = endpoint_.model;
  reply.latency_s = known.latency_s;
  reply.attempts = known.attempts;
  reply.lost = known.lost;
  return reply;
}

Reply ChatClient::reply_in(const HttpReply& answer, const Reply& known) const {
  try {
    return completed(chat_reply(answer, endpoint_.key), known);
  } catch (const Error& error) {
    throw UnusableReply(error.what(), completed(received_of(answer, endpoint_.key), known), endpoint_.model);
  }
}

void ChatClient::give_up(const HttpReply& answer, const Reply& known) const {
  const std::string after = known.attempts > 1 ? fmt::format(" ({} attempts)", known.attempts) : std::string();
  if (may_be_charged(answer))
    throw UnusableReply(sentence_for(answer) + after, completed(received_of(answer, endpoint_.key), known),
                        endpoint_.model);
  if (known.lost == 0) throw Error(ErrorCode::model, sentence_for(answer) + after, endpoint_.model);
  Reply lost = completed({}, known);
  --lost.lost;  // it stands for one of them
  throw UnusableReply(sentence_for(answer) + after, std::move(lost), endpoint_.model);
}

Reply ChatClient::ask(const Conversation& conversation) {
  using Clock = std::chrono::steady_clock;
  Reply known;
  for (;; ++known.attempts) {
    const auto begin = Clock::now();
    HttpReply answer = post(request_for(conversation));
    known.latency_s = std::chrono::duration<double>(Clock::now() - begin).count();
    const bool came = answer.failure == HttpReply::Failure::none && answer.status == 200;
    const bool is_part = answer.status == 200 && (came ? ends_early(answer) : may_succeed_later(answer));
    // A service that has counted the tokens of a part charges for it, and would for another one.
    const bool is_counted = is_part && !received_of(answer, endpoint_.key).usage.raw.is_null();
    if (came && (!is_part || is_counted)) return reply_in(answer, known);
    if (came) {
      answer.failure = HttpReply::Failure::broken;
      answer.why = "the stream ended before the reply did";
    }
    const bool is_refused =
        answer.failure == HttpReply::Failure::none && (answer.status == 400 || answer.status == 422);
    if (is_refused && leaves_out_what(refusal_of(answer, endpoint_.key))) continue;
    std::optional<double> wait;
    if (may_succeed_later(answer) && !is_counted) {
      const std::lock_guard lock(mutex_);
      wait = wait_before_next(endpoint_.retry, known.attempts, answer, random_);
    }
    if (!wait) give_up(answer, known);
    known.lost += may_be_charged(answer) ? 1 : 0;
    if (on_wait_) on_wait_(fmt::format("{}; again in {:.0f} s", sentence_for(answer), *wait));
    sleep_for(*wait);
  }
}

}  // namespace heed::models
