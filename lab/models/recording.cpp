#include "models/recording.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "base/files.hpp"
#include "base/text.hpp"
#include "json/text.hpp"

namespace heed::models {

Recorder::Recorder(std::shared_ptr<Model> model, std::filesystem::path file)
    : model_(std::move(model)), file_(std::move(file)) {
  expect_writable(file_, ErrorCode::model);
}

Reply Recorder::ask_as(const std::string& prompt, const Conversation& conversation) {
  nlohmann::json exchange = {{"digest", digest_of(conversation)}, {"messages", conversation}, {"model", name()}};
  if (!prompt.empty()) exchange["for"] = prompt;
  try {
    Reply reply = model_->ask_as(prompt, conversation);
    exchange["reply"] = reply;
    append(exchange);
    return reply;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::model) {
      exchange["failure"] = error.what();
      append(exchange);
    }
    throw;
  }
}

// One write a line: what a kill cuts off is the last line alone.
void Recorder::append(const nlohmann::json& exchange) {
  const std::string line = json_text(exchange) + "\n";
  const std::lock_guard lock(mutex_);
  std::ofstream file(file_, std::ios::app | std::ios::binary);
  file << line << std::flush;
  if (!file)
    throw Error(ErrorCode::model, fmt::format("cannot write to {}: {}", file_.string(), last_system_error()),
                file_.string());
}

Replay::Replay(const std::filesystem::path& file) : file_(file) {
  int number = 0;
  for (const std::string& line : split(read_file(file, ErrorCode::usage), '\n')) {
    ++number;
    if (trim(line).empty()) continue;
    try {
      const nlohmann::json json = parse_json(line);
      if (!json.is_object()) throw Error(ErrorCode::usage, "it is no JSON object");
      Exchange exchange;
      // A recording without the prompts, which take nearly all of its bytes, names them by their digests.
      exchange.digest = json.contains("messages") ? digest_of(json["messages"].get<Conversation>())
                                                  : json.at("digest").get<std::string>();
      exchange.name = json.value("for", std::string());
      if (json.contains("failure"))
        exchange.failure = json["failure"].get<std::string>();
      else
        exchange.reply = json.at("reply").get<Reply>();
      left_.push_back(std::move(exchange));
    } catch (const std::exception& error) {
      const std::string_view why = error.what();  // of nlohmann/json behind its name in brackets
      throw Error(ErrorCode::usage,
                  fmt::format("line {} of {} is no exchange with a model, as --record writes it: {}", number,
                              file.string(), why.starts_with('[') ? why.substr(why.find(']') + 2) : why),
                  file.string());
    }
  }
  all_ = left_.size();
}

Reply Replay::ask_as(const std::string& prompt, const Conversation& conversation) {
  const std::lock_guard lock(mutex_);
  if (left_.empty())
    throw Error(ErrorCode::model,
                fmt::format("{} holds {} replies, and all are used; record the run again", file_.string(), all_),
                file_.string());
  const std::string digest = digest_of(conversation);
  auto at = std::find_if(left_.begin(), left_.end(), [&](const Exchange& one) { return one.digest == digest; });
  if (at == left_.end()) {
    ++others_;
    if (!prompt.empty())
      at = std::find_if(left_.begin(), left_.end(), [&](const Exchange& one) { return one.name == prompt; });
    if (at == left_.end()) at = left_.begin();
  }
  const Exchange exchange = std::move(*at);
  left_.erase(at);
  if (!exchange.failure.empty()) throw Error(ErrorCode::model, exchange.failure, file_.string());
  return exchange.reply;
}

int Replay::other_prompts() const {
  const std::lock_guard lock(mutex_);
  return others_;
}

}  // namespace heed::models
