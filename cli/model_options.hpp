/// Which models write kernel sources in heed evolve.
#pragma once

#include <CLI/CLI.hpp>

#include "record/model_options.hpp"

namespace heed::cli {

/// --endpoint, --model, --command, --mailbox, --replay and what belongs to them
struct ModelArguments {
  record::ModelOptions options;
  double temperature = -1;  ///< below 0: the model's own
  std::int64_t tokens = -1;
  double money = -1;
  std::string request_fields;
  bool no_repair = false;

  void add_to(CLI::App& app);
  /// @throws Error(usage) for options that do not go together
  [[nodiscard]] record::ModelOptions chosen(const CLI::App& app) const;
  /// Names of the options that were given, with commas between; empty: none.
  [[nodiscard]] static std::string given(const CLI::App& app);
};

}  // namespace heed::cli
