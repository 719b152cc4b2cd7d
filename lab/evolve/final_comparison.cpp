#include "evolve/final_comparison.hpp"

#include "record/json.hpp"

namespace heed::evolve {

nlohmann::json to_json(const FinalComparison& c) {
  nlohmann::json json = {{"trial", c.trial.number},
                         {"trial_id", c.trial.id},
                         {"variant", c.variant},
                         {"config", c.trial.config},
                         {"verdict", to_string(Verdict::ok)},
                         {"reason", ""},
                         {"search_ratio", c.trial.ratio},
                         {"ratio", record::to_json(c.pair.ratio)},
                         {"base_us", c.pair.base_median_us},
                         {"trial_us", c.pair.trial_median_us},
                         {"error", record::to_json(c.error)},
                         {"clocks", {{"before", record::to_json(c.before)}, {"after", record::to_json(c.after)}}},
                         {"samples", record::samples_json(c.pair)},
                         {"processes", c.pair.quads.size()},
                         {"measured_processes", c.contender.processes.size()},
                         {"large_us", c.large_us},
                         {"base_large_us", c.base_large_us}};
  if (c.dependent_us > 0) json["dependent_us"] = c.dependent_us;
  return json;
}

std::string_view to_string(Ending ending) {
  switch (ending) {
    case Ending::faster:
      return "faster";
    case Ending::not_faster:
      return "not_faster";
    case Ending::too_noisy:
      return "too_noisy";
    case Ending::no_variant:
      return "no_variant";
  }
  return "";
}

Ending ending_of(const measure::Ratio& ratio, double self_spread) {
  if (is_faster(ratio.low, self_spread)) return Ending::faster;
  return is_too_noisy_to_say(ratio.low, ratio.high, self_spread) ? Ending::too_noisy : Ending::not_faster;
}

}  // namespace heed::evolve
