#include "evolve/json.hpp"

#include "evolve/run.hpp"

namespace heed::evolve {

nlohmann::json to_json(const DeviceFacts& f) {
  nlohmann::json json = {{"kind", to_string(f.kind)},
                         {"name", f.name},
                         {"arch", f.arch},
                         {"driver", f.driver},
                         {"processors", f.processors},
                         {"memory_bytes", f.memory_bytes},
                         {"cache_bytes", f.cache_bytes}};
  if (f.kind == DeviceKind::cuda) json["clock_mhz"] = f.clock_mhz;
  return json;
}

nlohmann::json to_json(const DeviceState& s) {
  return {{"clock_mhz", s.clock_mhz}, {"power_w", s.power_w}, {"temperature_c", s.temperature_c}};
}

nlohmann::json to_json(const jit::Resources& r) {
  return {{"registers", r.registers},
          {"spill_store_bytes", r.spill_store_bytes},
          {"spill_load_bytes", r.spill_load_bytes},
          {"stack_bytes", r.stack_bytes},
          {"static_shared_bytes", r.static_shared_bytes},
          {"code_bytes", r.code_bytes}};
}

nlohmann::json to_json(const measure::Ratio& r) {
  return {{"value", r.value}, {"low", r.low}, {"high", r.high}};
}

nlohmann::json to_json(const measure::Floor& f) {
  return {{"us", f.us()},
          {"bound", f.bound()},
          {"products_us", f.products_us},
          {"exponentials_us", f.exponentials_us},
          {"bytes_us", f.bytes_us},
          {"launch_us", f.launch_us}};
}

nlohmann::json to_json(const verify::ErrorStats& e) {
  return {{"max_abs", e.max_abs}, {"rel_rms", e.rel_rms}, {"worst_row", e.worst_row}};
}

nlohmann::json to_json(const verify::CheckResult& c) {
  nlohmann::json json = {{"name", c.name}, {"passed", c.passed}, {"required", c.required}, {"text", c.text}};
  if (!c.has_errors) return json;
  const auto numbers = [](const auto& e) {
    return nlohmann::json{{"max_abs", e.max_abs}, {"rel_rms", e.rel_rms}, {"worst_row", e.worst_row}, {"lse", e.lse}};
  };
  json["error"] = numbers(c.error);
  json["allowed"] = numbers(c.allowed);
  json["unfused"] = numbers(c.unfused);
  json["unresolved_rows"] = c.allowed.unresolved;
  return json;
}

nlohmann::json errors_json(const std::vector<verify::CheckResult>& checks) {
  nlohmann::json all = nlohmann::json::array();
  for (const verify::CheckResult& c : checks)
    if (c.has_errors)
      all.push_back({{"name", c.name},
                     {"max_abs", c.error.max_abs},
                     {"max_abs_allowed", c.allowed.max_abs},
                     {"rel_rms", c.error.rel_rms},
                     {"rel_rms_allowed", c.allowed.rel_rms},
                     {"lse", c.error.lse},
                     {"lse_allowed", c.allowed.lse}});
  return all;
}

nlohmann::json to_json(const measure::Counts& counts) {
  return {{"instructions", counts.instructions}, {"cycles", counts.cycles}};
}

nlohmann::json samples_json(const measure::PairResult& pair) {
  if (pair.ratios.empty()) return nlohmann::json::object();
  nlohmann::json json = {
      {"base_us", pair.base_us}, {"trial_us", pair.trial_us}, {"ratios", pair.ratios}, {"quads", pair.quads}};
  if (pair.base_counts && pair.trial_counts)
    json["counts"] = {{"base", to_json(*pair.base_counts)}, {"trial", to_json(*pair.trial_counts)}};
  return json;
}

measure::Ratio ratio_from_json(const nlohmann::json& json) {
  return {json.at("value").get<double>(), json.at("low").get<double>(), json.at("high").get<double>()};
}

nlohmann::json to_json(const RunOptions& o) {
  return {{"workload", to_string(o.workload)},
          {"families", o.families},
          {"strategy", to_string(o.strategy.kind)},
          {"population", o.strategy.population},
          {"drafts", o.strategy.drafts},
          {"islands", o.strategy.islands},
          {"migration_every", o.strategy.migration_every},
          {"seed", o.strategy.seed},
          {"found", o.found},
          {"trials", o.trials},
          {"budget_s", o.budget_s},
          {"peers", o.peers},
          {"python", o.python},
          {"profile", o.profile},
          {"tensors", o.tensors},
          {"tensors_digest", o.tensors_digest}};
}

RunOptions options_from_json(const nlohmann::json& json) {
  RunOptions o;
  o.workload = parse_workload(json.at("workload").get<std::string>());
  o.families = json.at("families").get<std::vector<std::string>>();
  o.strategy.kind = parse_strategy(json.at("strategy").get<std::string>());
  o.strategy.population = json.at("population").get<int>();
  o.strategy.drafts = json.at("drafts").get<int>();
  o.strategy.islands = json.at("islands").get<int>();
  o.strategy.migration_every = json.at("migration_every").get<int>();
  o.strategy.seed = json.at("seed").get<std::uint64_t>();
  o.found = json.value("found", std::vector<std::string>());
  o.trials = json.at("trials").get<int>();
  o.budget_s = json.at("budget_s").get<double>();
  o.peers = json.at("peers").get<bool>();
  o.python = json.at("python").get<std::string>();
  o.profile = json.at("profile").get<bool>();
  o.tensors = json.at("tensors").get<std::vector<std::string>>();
  o.tensors_digest = json.at("tensors_digest").get<std::string>();
  return o;
}

}  // namespace heed::evolve
