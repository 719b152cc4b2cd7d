#include "cli/stored_trial.hpp"

#include <fmt/format.h>

#include "cli/command.hpp"
#include "compile/embedded.hpp"
#include "process/process.hpp"
#include "source/edits.hpp"
#include "source/stored.hpp"
#include "variant/renames.hpp"

namespace heed::cli {

bool is_trial(const std::string& text) {
  return text.size() > 1 && text[0] == 't' && text.find_first_not_of("0123456789", 1) == std::string::npos;
}

std::int64_t trial_number(const std::string& text) {
  const auto number = id_in(text.starts_with("t") ? std::string_view(text).substr(1) : std::string_view(text));
  if (!number)
    throw Error(
        ErrorCode::usage,
        fmt::format("\"{}\" is no trial; heed show RUN --json lists the ids, and 17 or t17 is the trial that heed "
                    "replay 17 measures",
                    text),
        text);
  return *number;
}

StoredTrial find_trial(store::Store& store, std::int64_t id) {
  std::optional<store::TrialRecord> trial = store.find_trial(id);
  if (!trial)
    throw Error(ErrorCode::usage, fmt::format("there is no trial {}; heed show RUN --json lists the ids", id),
                std::to_string(id));
  store::RunRecord run = *store.find_run(trial->run);
  const Workload workload = parse_workload(run.workload);
  return {std::move(run), std::move(*trial), workload};
}

Variant variant_of(const StoredTrial& stored, const DeviceFacts& device) {
  const store::TrialRecord& trial = stored.trial;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::unsupported,
                fmt::format("the edits of trial {} were made for sources {}, and this Heed has {}: {}", trial.id,
                            trial.source_digest, compile::source_digest(), why),
                std::to_string(trial.id));
  };
  Variant variant = parse_variant(with_current_names(trial.config), stored.workload, device);
  try {
    variant = source::with_stored(std::move(variant), trial.edits);
  } catch (const source::EditError& error) {
    refuse(error.what());
  }
  if (!source::is_as_stored(variant, trial.edits)) refuse("they make other texts of them than those that were judged");
  return variant;
}

DeviceFacts device_of(const StoredTrial& stored) {
  if (stored.run.device_kind != "cuda") return cpu_facts();
  return device_named(stored.run.device.value("arch", std::string("sm_90a")));
}

std::vector<std::string> gate_of_trial(std::int64_t id, const std::string& database, double limit_s) {
  std::vector<std::string> command = {
      self_executable(),      "verify", fmt::format("t{}", id), "--device", "cuda", "--launch-limit",
      std::to_string(limit_s)};
  if (!database.empty()) command.insert(command.end(), {"--db", database});
  return command;
}

}  // namespace heed::cli
