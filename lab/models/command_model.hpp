/// A program that reads a prompt from its standard input and writes a reply to its standard output.
#pragma once

#include <string>

#include "models/model.hpp"

namespace heed::models {

class CommandModel final : public Model {
 public:
  /// @param command for /bin/sh, e.g. "llm -m some-model" @throws Error(usage) for an empty one
  CommandModel(std::string command, double limit_s);

  [[nodiscard]] const std::string& name() const override { return name_; }
  /// @throws Error(model) where the program fails, takes too long, or writes nothing or more than 10 MB
  Reply ask(const Conversation& conversation) override;

 private:
  std::string command_;
  std::string name_;  ///< the first word of the command
  double limit_s_;
};

}  // namespace heed::models
