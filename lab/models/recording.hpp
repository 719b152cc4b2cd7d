/// Conversations as files, so that a run repeats without a network: one JSON object a line, with the digest, the name
/// in its run ("for") and the messages of a prompt and the reply, or the failure with what came in place of a reply.
/// The messages may be left out of a file that is kept; files of before prompts had names have none.
#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "models/model.hpp"

namespace heed::models {

/// Asks another model and appends what was sent and received to a file. Where the file cannot be written later on, the
/// replies go on to those that asked, each next exchange is tried again, and of one that fails no part stays.
class Recorder final : public Model {
 public:
  /// @param on_trouble is told once why an exchange could not be appended
  /// @throws Error(model) where the file cannot be written
  Recorder(std::shared_ptr<Model> model, std::filesystem::path file,
           std::function<void(const std::string&)> on_trouble = nullptr);
  [[nodiscard]] const std::string& name() const override { return model_->name(); }
  Reply ask(const Conversation& conversation) override { return ask_as({}, conversation); }
  Reply ask_as(const std::string& name, const Conversation& conversation) override;

 private:
  void append(const nlohmann::json& exchange);
  std::shared_ptr<Model> model_;
  std::filesystem::path file_;
  std::function<void(const std::string&)> on_trouble_;
  bool has_told_ = false;
};

/// Answers from a file that a Recorder wrote. A prompt takes the first reply to an equal prompt that is left, found by
/// its digest; where there is none, since prompts hold measured times, that to the prompt of its name, so that replies
/// do not depend on the order in which several are asked for; else the first reply that is left. A failure that was
/// recorded fails again, and costs what it did. A last line that is cut off, as by a kill, is left out.
class Replay final : public Model {
 public:
  /// @param on_left_out is told of a last line that is cut off
  /// @throws Error(usage) for a file that is missing, or a line that is no exchange
  explicit Replay(const std::filesystem::path& file, const std::function<void(const std::string&)>& on_left_out = {});
  [[nodiscard]] const std::string& name() const override { return name_; }
  /// @throws Error(model) when all replies are used
  Reply ask(const Conversation& conversation) override { return ask_as({}, conversation); }
  Reply ask_as(const std::string& name, const Conversation& conversation) override;
  /// Prompts so far that were not equal to any of the file.
  [[nodiscard]] int other_prompts() const;

 private:
  struct Exchange {
    std::string digest;
    std::string name;     ///< empty where the file has none
    Reply reply;          ///< beside a failure what came in place of one, where has_received
    std::string failure;  ///< empty where there is a reply
    bool has_received = false;
  };
  std::filesystem::path file_;
  std::string name_ = "replay";
  mutable std::mutex mutex_;
  std::deque<Exchange> left_;
  std::size_t all_ = 0;
  int others_ = 0;
};

}  // namespace heed::models
