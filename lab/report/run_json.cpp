// Runs and trials as JSON, whole.
#include "report/devices.hpp"
#include "report/models.hpp"
#include "report/run_report.hpp"

namespace heed::report {

using nlohmann::json;

namespace {

// That judged what was written in a conversation; empty where none did, or the run was given none to choose from.
std::string device_of(const store::ExchangeRecord& exchange, const std::vector<store::TrialRecord>& trials) {
  const std::string_view operation = exchange.purpose.rfind("repair", 0) == 0 ? "repair" : "edit";
  for (const store::TrialRecord& t : trials)
    if (t.generation == exchange.generation && t.place == exchange.place && t.operation == operation) return t.device;
  return {};
}

}  // namespace

json trial_json(const store::TrialRecord& t) {
  json drafts = json::array();
  for (const store::DraftRecord& draft : t.drafts) drafts.push_back(store::to_json(draft));
  return {{"id", t.id},
          {"run", t.run},
          {"number", t.number},
          {"generation", t.generation},
          {"island", t.island},
          {"place", t.place},
          {"device", t.device},
          {"variant", t.variant},
          {"config", t.config},
          {"edits", t.edits},
          {"operation", t.operation},
          {"parents", t.parents},
          {"why", t.why},
          {"drafts", drafts},
          {"verdict", to_string(t.verdict)},
          {"finding", to_string(t.finding)},
          {"reason", t.reason},
          {"check", t.check},
          {"ratio", {{"value", t.ratio}, {"low", t.ratio_low}, {"high", t.ratio_high}}},
          {"base_us", t.base_us},
          {"trial_us", t.trial_us},
          {"error", {{"max_abs", t.max_abs}, {"rel_rms", t.rel_rms}, {"worst_row", t.worst_row}}},
          {"gate_checks", t.gate_checks},
          {"seed", t.seed},
          {"source_digest", t.source_digest},
          {"machine_code", t.machine_code},
          {"resources", t.resources},
          {"samples", t.samples},
          {"clocks", t.clocks},
          {"diagnosis", t.diagnosis},
          {"build_ms", t.build_ms},
          {"verify_ms", t.verify_ms},
          {"measure_ms", t.measure_ms},
          {"run_elapsed_s", t.run_elapsed_s},
          {"finished", t.finished}};
}

json run_json(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials,
              const std::vector<store::ComparisonRecord>& comparisons,
              const std::vector<store::ExchangeRecord>& exchanges) {
  json all_trials = json::array();
  for (const store::TrialRecord& t : trials) all_trials.push_back(trial_json(t));
  json all_comparisons = json::array();
  for (const store::ComparisonRecord& c : comparisons)
    all_comparisons.push_back({{"kind", c.kind}, {"subject", c.subject}, {"against", c.against}, {"data", c.data}});
  json all_exchanges = json::array();
  for (const store::ExchangeRecord& e : exchanges)
    all_exchanges.push_back({{"generation", e.generation},
                             {"place", e.place},
                             {"purpose", e.purpose},
                             {"device", device_of(e, trials)},
                             {"model", e.model},
                             {"messages", e.prompt},
                             {"reply", e.reply},
                             {"failure", e.failure},
                             {"created", e.created}});
  return {{"id", run.id},
          {"created", run.created},
          {"workload", run.workload},
          {"families", run.families},
          {"device", run.device},
          {"options", run.options},
          {"heed", run.heed},
          {"source_digest", run.source_digest},
          {"state", to_string(run.state)},
          {"base", run.base},
          {"result", run.result},
          {"devices", devices_json(run, trials)},
          {"trials", all_trials},
          {"comparisons", all_comparisons},
          {"models", to_json(model_statistics(trials, exchanges))},
          {"exchanges", all_exchanges}};
}

}  // namespace heed::report
