// heed library: libheed's C interface on this machine, checked and timed
#include "cli/library.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/files.hpp"
#include "json/text.hpp"
#include "record/json.hpp"
#include "report/evidence.hpp"

namespace heed::cli {

GrowingEvidence::GrowingEvidence(std::string path, const std::string& what, const DeviceFacts& device)
    : path_(std::move(path)), document_(report::evidence_header(what, record::to_json(device), sources())) {
  document_["complete"] = false;
  document_["rows"] = nlohmann::json::array();
  if (!path_.empty()) expect_writable(path_, ErrorCode::store);
}

void GrowingEvidence::resume(const std::string& setting) {
  std::error_code error;
  if (path_.empty() || !std::filesystem::exists(path_, error)) return;
  const auto earlier = parse_json(read_file(path_, ErrorCode::store));
  for (const std::string& field : {std::string("what"), std::string("device"), std::string("source_digest"), setting})
    if (!earlier.is_object() || earlier.value(field, nlohmann::json()) != document_.value(field, nlohmann::json()))
      throw Error(
          ErrorCode::usage,
          fmt::format("{} cannot be gone on with: its \"{}\" is another; name a file that is not there", path_, field),
          path_);
  for (const nlohmann::json& row : earlier.value("rows", nlohmann::json::array())) document_["rows"].push_back(row);
}

void GrowingEvidence::add(nlohmann::json row) {
  document_["rows"].push_back(std::move(row));
  write();
}

void GrowingEvidence::finish(const std::string& table) {
  document_["complete"] = true;
  document_["table"] = table;
  write();
}

void GrowingEvidence::write() const {
  if (!path_.empty()) write_file_atomically(path_, json_text(document_, 1) + "\n", ErrorCode::store);
}

void add_library(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("library", "Check and time libheed's C interface on this machine");
  command->require_subcommand(1);
  add_library_cases(*command, exit_code);
  add_library_threads(*command, exit_code);
  add_library_host(*command, exit_code);
  add_library_times(*command, exit_code);
  add_library_neighbours(*command, exit_code);
  command->footer(
      "Each takes --evidence FILE, which is whole at any time.\nExamples:\n"
      "  heed library cases --cases tests/cases/forward.txt --sanitize\n"
      "  heed library threads --seconds 60\n"
      "  heed library host --shapes b1h8l512d64,b1h32hkv8l1k4096d128:bf16\n"
      "  heed library times --shapes b1h8l512d64,b4h16l512d64\n"
      "  heed library neighbours --champions champions.json");
}

}  // namespace heed::cli
