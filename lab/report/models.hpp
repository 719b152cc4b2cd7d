/// What models wrote in a run, what became of it, and what it took.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "store/exchanges.hpp"
#include "store/records.hpp"

namespace heed::report {

struct ModelStatistics {
  int edits = 0;            ///< trials of first edits: of a prompt and, where they did not apply, of a second one
  int valid = 0;            ///< of them passed build and gate
  int duplicates = 0;       ///< were turned away as equal to an earlier trial
  int unusable = 0;         ///< held no edits that apply
  int repairs = 0;          ///< trials of edits after a build error or a failed gate
  int repaired = 0;         ///< of them passed
  int prompts = 0;          ///< that were sent and are not awaited, all kinds
  int failures = 0;         ///< of them without a reply that can be used
  int charged = 0;          ///< failures, and lost attempts before a reply, that may have cost something
  int cut_off = 0;          ///< replies that reached their limit of tokens, whose edits are not taken
  std::int64_t tokens = 0;  ///< of prompts and replies whose service counts them
  int uncounted = 0;        ///< replies, and what is charged besides, whose tokens nobody counted
  double cost = 0;
  int unknown_costs = 0;  ///< the same without a price
  double waited_s = 0;    ///< for replies, side by side or not
  std::string best;       ///< the variant with the highest lower end among edits and repairs; empty where none passed
  double best_low = 0;

  [[nodiscard]] bool any() const { return prompts > 0; }
  /// Of first edits that were no duplicates; 0 where there are none. EvoEngineer (arXiv 2510.03760) calls it validity.
  [[nodiscard]] double validity() const;
};

ModelStatistics model_statistics(const std::vector<store::TrialRecord>& trials,
                                 const std::vector<store::ExchangeRecord>& exchanges);
nlohmann::json to_json(const ModelStatistics& statistics);
/// Adds what models wrote to the evidence of a run, and to the table of it; nothing where none was asked.
void add_models(nlohmann::json& evidence, const ModelStatistics& s);
/// A few lines for a terminal; empty where no prompt was sent.
std::string text_of(const ModelStatistics& statistics);

}  // namespace heed::report
