#include "record/run_options.hpp"

#include <fmt/format.h>

#include "base/text.hpp"

namespace heed::record {

std::string_view to_string(StrategyKind kind) {
  switch (kind) {
    case StrategyKind::single:
      return "single";
    case StrategyKind::elite:
      return "elite";
    case StrategyKind::islands:
      return "islands";
  }
  return "?";
}

StrategyKind parse_strategy(std::string_view text) {
  for (const StrategyKind kind : {StrategyKind::single, StrategyKind::elite, StrategyKind::islands})
    if (to_string(kind) == text) return kind;
  throw Error(ErrorCode::usage,
              fmt::format("unknown strategy \"{}\"; {}", text, one_of(text, {"single", "elite", "islands"})),
              std::string(text));
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
          {"hold", o.hold},
          {"found", o.found},
          {"trials", o.trials},
          {"budget_s", o.budget_s},
          {"peers", o.peers},
          {"python", o.python},
          {"profile", o.profile},
          {"tensors", o.tensors},
          {"tensors_digest", o.tensors_digest},
          {"models", o.models.any() ? to_json(o.models) : nlohmann::json()}};
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
  o.hold = json.value("hold", std::string());
  o.found = json.value("found", std::vector<std::string>());
  o.trials = json.at("trials").get<int>();
  o.budget_s = json.at("budget_s").get<double>();
  o.peers = json.at("peers").get<bool>();
  o.python = json.at("python").get<std::string>();
  o.profile = json.at("profile").get<bool>();
  o.tensors = json.at("tensors").get<std::vector<std::string>>();
  o.tensors_digest = json.at("tensors_digest").get<std::string>();
  if (const nlohmann::json& models = json.at("models"); !models.is_null()) o.models = model_options_from_json(models);
  return o;
}

}  // namespace heed::record
