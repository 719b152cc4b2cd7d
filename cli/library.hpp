/// What the subcommands of heed library share: evidence that is whole at any time, and the programs that they run.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.hpp"

namespace heed::cli {

/// A document of evidence that grows row by row; its file is written anew with each, so that nothing is lost where the
/// process ends early.
class GrowingEvidence {
 public:
  /// @param path empty: none is written. @throws Error(store) where it cannot be
  GrowingEvidence(std::string path, const std::string& what, const DeviceFacts& device);

  /// Takes the rows of the file that is there, if it is, so that those alone are measured that it lacks.
  /// @throws Error(usage) where it is of another kind, device, sources or `setting`
  void resume(const std::string& setting);
  /// A field beside the rows: options, counts.
  void set(const std::string& field, nlohmann::json value) { document_[field] = std::move(value); }
  void add(nlohmann::json row);
  /// Everything was measured. @param table what people read of it
  void finish(const std::string& table);
  [[nodiscard]] const nlohmann::json& document() const { return document_; }
  [[nodiscard]] const nlohmann::json& rows() const { return document_["rows"]; }

 private:
  void write() const;

  std::string path_;
  nlohmann::json document_;
};

void add_library_host(CLI::App& library, int& exit_code);
void add_library_cases(CLI::App& library, int& exit_code);
void add_library_threads(CLI::App& library, int& exit_code);
void add_library_times(CLI::App& library, int& exit_code);
void add_library_neighbours(CLI::App& library, int& exit_code);

}  // namespace heed::cli
