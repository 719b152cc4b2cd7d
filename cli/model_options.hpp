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
  /// Files and folders of it are absolute paths, which a resumed run finds from any folder.
  /// @throws Error(usage) for options that do not go together, and a missing key, file or price
  [[nodiscard]] record::ModelOptions chosen(const CLI::App& app) const;
  /// Those of a stored run that goes on: with another key or other limits where they are given.
  /// @throws Error(usage) as chosen() does, and for an option that a stored run does not change
  [[nodiscard]] record::ModelOptions resumed(const CLI::App& app, record::ModelOptions stored) const;
};

}  // namespace heed::cli
