/// Which models write kernel sources in a run, and how they are asked; stored with the run. Keys are not: their
/// variable or file is.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace heed::record {

struct ModelOptions {
  // Who answers: one of these four, or none.
  std::string endpoint;  ///< address of OpenAI-compatible chat completions
  std::string command;   ///< for /bin/sh
  std::string mailbox;   ///< folder
  std::string replay;    ///< file of recorded conversations

  std::vector<std::string> models;  ///< of the endpoint, "NAME" or "NAME=WEIGHT"
  std::string key_variable;
  std::string key_file;
  std::string recording;  ///< file that conversations are appended to; empty: none
  std::string preset = "full";
  std::string templates;  ///< folder of templates that replace those carried; empty: none
  std::int64_t window_tokens = 128'000;
  std::int64_t reply_tokens = 16'384;
  double reply_limit_s = 600;  ///< 0, for a mailbox alone: without end
  std::optional<double> temperature;
  nlohmann::json request_fields = nlohmann::json::object();
  std::optional<std::int64_t> most_tokens;
  std::optional<double> most_money;
  std::string prices;  ///< file; empty: none is known
  bool repairs = true;
  double share = 0.5;      ///< of the trials of a generation, where it is fixed
  bool is_bandit = false;  ///< the share follows what knobs and models gain a second

  [[nodiscard]] bool any() const {
    return !endpoint.empty() || !command.empty() || !mailbox.empty() || !replay.empty();
  }
};

nlohmann::json to_json(const ModelOptions& options);
/// @throws nlohmann::json::exception where one is missing or of another type
ModelOptions model_options_from_json(const nlohmann::json& json);

/// @throws Error(usage) for options that do not go together: several that answer, an endpoint without a model, a share
/// outside of 0 to 1, a window that the reply fills, a limit of money without prices, or where
/// nothing has a price
void expect_sound(const ModelOptions& options);

}  // namespace heed::record
