/// Prompts as files in a folder, replies awaited there: for people, agents and batch systems.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

#include "models/model.hpp"

namespace heed::models {

/// A prompt is written to NUMBER-DIGEST.prompt.md; its reply is NUMBER-DIGEST.reply.md, written under another name and
/// renamed, or at once. Where a run that was interrupted asks again, the file of the same prompt is found by its
/// digest, and a reply that came meanwhile is taken.
class Mailbox final : public Model {
 public:
  /// @param limit_s seconds to wait for a reply; 0: without end
  /// @param on_wait is told which file is awaited, and where something other than a file stands in its place
  /// @throws Error(model) where the folder cannot be made or written
  Mailbox(std::filesystem::path folder, double limit_s, std::function<void(const std::string&)> on_wait = nullptr);

  [[nodiscard]] const std::string& name() const override { return name_; }
  /// @throws Error(model) for a reply that did not come in time, is empty or has more than 10 MB
  Reply ask(const Conversation& conversation) override;

 private:
  /// The path of a prompt, without its ending: that of an earlier one that is equal, else of the next number.
  std::filesystem::path place_for(const Conversation& conversation);

  std::filesystem::path folder_;
  std::string name_ = "mailbox";
  double limit_s_;
  std::function<void(const std::string&)> on_wait_;
  std::mutex mutex_;
};

}  // namespace heed::models
