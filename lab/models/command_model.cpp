#include "models/command_model.hpp"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "base/text.hpp"
#include "heed/heed.hpp"
#include "process/process.hpp"

namespace heed::models {
namespace {

constexpr std::size_t kMostQuotedOutput = 300;

std::string end_of(const std::string& text) {
  const std::string whole = trim(text);
  return whole.size() > kMostQuotedOutput ? "..." + whole.substr(whole.size() - kMostQuotedOutput) : whole;
}

}  // namespace

CommandModel::CommandModel(std::string command, double limit_s) : command_(std::move(command)), limit_s_(limit_s) {
  const std::string words = trim(command_);
  if (words.empty()) throw Error(ErrorCode::usage, "the command that answers prompts is empty");
  name_ = std::filesystem::path(words.substr(0, words.find_first_of(" \t\n"))).filename().string();
}

Reply CommandModel::ask(const Conversation& conversation) {
  const auto begin = std::chrono::steady_clock::now();
  const ProcessResult result =
      run_process({"/bin/sh", "-c", command_}, text_of(conversation), limit_s_, {}, Errors::apart);
  if (result.interrupted) throw Error(ErrorCode::interrupted, "interrupted while a command answered a prompt");
  const auto refuse = [&](const std::string& what) {
    const std::string complaints = end_of(result.errors);
    const std::string why =
        fmt::format("the command {} {}{}{}", name_, what, complaints.empty() ? "" : ": ", complaints);
    // A command that failed without a word has asked nobody, as far as can be told.
    if (!result.started || (!result.timed_out && result.exit_code != 0 && trim(result.output).empty()))
      throw Error(ErrorCode::model, why, command_);
    Reply received;
    received.text = result.output;
    received.model = name_;
    received.latency_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    throw UnusableReply(why, std::move(received), command_);
  };
  if (!result.started) refuse(fmt::format("could not be started ({})", result.output));
  if (result.timed_out) refuse(fmt::format("took more than {:.0f} s; allow more with --reply-limit", limit_s_));
  if (result.signal != 0) refuse(fmt::format("was ended by signal {}", result.signal));
  if (result.exit_code != 0) refuse(fmt::format("ended with exit code {}", result.exit_code));
  if (result.output.size() > kMostReplyBytes) refuse("wrote more than 10 MB; a patch is far smaller");
  if (trim(result.output).empty()) refuse("wrote no reply");
  Reply reply;
  reply.text = result.output;
  reply.model = name_;
  reply.latency_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return reply;
}

}  // namespace heed::models
