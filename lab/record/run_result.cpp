#include "record/run_result.hpp"

#include "base/faster.hpp"
#include "record/diagnosis.hpp"
#include "record/json.hpp"

namespace heed::record {
namespace {

nlohmann::json clocks_json(const FinalComparison& c) {
  return {{"before", to_json(c.before)}, {"after", to_json(c.after)}};
}

nlohmann::json times_json(const Alone& alone) {
  return {{"warm_us", alone.times.warm_us},           {"cold_us", alone.times.cold_us},
          {"eager_us", alone.times.eager_us},         {"eager_synchronised_us", alone.times.eager_synchronised_us},
          {"dependent_us", alone.times.dependent_us}, {"large_us", alone.large_us}};
}

}  // namespace

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

nlohmann::json to_json(const RunBase& base) {
  return {{"variant", base.variant},
          {"describe", base.describe},
          {"us", base.self.pair.base_median_us},
          {"self_ratio", to_json(base.self.pair.ratio)},
          {"self_spread", base.self.spread},
          {"noise", to_json(base.noise)},
          {"self_samples", samples_json(base.self.pair)},
          {"resources", to_json(base.resources)},
          {"floor", to_json(base.floor)}};
}

double self_spread_of(const nlohmann::json& base) {
  return base.at("self_spread").get<double>();
}

nlohmann::json to_json(const FinalComparison& c) {
  return {{"trial", c.trial},
          {"trial_id", c.trial_id},
          {"variant", c.variant},
          {"config", c.config},
          {"verdict", to_string(c.verdict)},
          {"reason", c.reason},
          {"search_ratio", c.search_ratio},
          {"ratio", to_json(c.pair.ratio)},
          {"base_us", c.pair.base_median_us},
          {"trial_us", c.pair.trial_median_us},
          {"error", to_json(c.error)},
          {"clocks", clocks_json(c)},
          {"samples", samples_json(c.pair)}};
}

nlohmann::json to_json(const Champion& champion) {
  nlohmann::json json = to_json(champion.comparison);
  json["processes"] = champion.comparison.pair.quads.size();
  json["measured_processes"] = champion.measured_processes;
  json["large_us"] = champion.large_us;
  json["base_large_us"] = champion.base_large_us;
  json["resources"] = to_json(champion.resources);
  if (champion.dependent_us > 0) json["dependent_us"] = champion.dependent_us;
  return json;
}

nlohmann::json to_json(const AblationRow& row) {
  nlohmann::json json = {{"knob", row.knob},     {"default", row.of_default},         {"champion", row.of_champion},
                         {"config", row.config}, {"verdict", to_string(row.verdict)}, {"reason", row.reason}};
  if (row.bought) {
    json["bought"] = to_json(*row.bought);
    json["without_us"] = row.without_us;
  }
  if (row.without_dependent_us > 0) {
    json["dependent_us"] = row.dependent_us;
    json["without_dependent_us"] = row.without_dependent_us;
  }
  return json;
}

nlohmann::json to_json(const PeerRow& row) {
  nlohmann::json json = {{"backend", row.backend}, {"kernels", row.kernels}, {"refused", row.refused}};
  if (row.pair) {
    json["us"] = row.pair->base_median_us;
    json["champion_us"] = row.pair->trial_median_us;
    json["ratio"] = to_json(row.pair->ratio);
    json["max_abs"] = row.max_abs;
    json["samples"] = samples_json(*row.pair);
  }
  return json;
}

const PeerRow* PeerComparison::best() const {
  const PeerRow* best = nullptr;
  for (const PeerRow& row : rows)
    if (row.pair && (best == nullptr || row.pair->ratio.value < best->pair->ratio.value)) best = &row;
  return best;
}

nlohmann::json to_json(const PeerComparison& peers) {
  nlohmann::json json = {{"rows", nlohmann::json::array()}};
  for (const PeerRow& row : peers.rows) json["rows"].push_back(to_json(row));
  if (!peers.reason.empty()) {
    json["reason"] = peers.reason;
    return json;
  }
  json["torch"] = peers.torch;
  json["cudnn"] = peers.cudnn;
  if (const PeerRow* best = peers.best()) {
    json["best"] = best->backend;
    json["best_us"] = best->pair->base_median_us;
    json["best_ratio"] = to_json(best->pair->ratio);
  }
  return json;
}

nlohmann::json to_json(const RunResult& r) {
  nlohmann::json json = {{"trials", r.trials},
                         {"drafts", r.drafts},
                         {"self_spread", r.self_spread},
                         {"noise", to_json(r.noise)},
                         {"outcome", to_string(r.ending)},
                         {"summary", r.summary},
                         {"elapsed_s", r.elapsed_s},
                         {"time", to_json(r.time)}};
  if (!r.measured) {
    json["refused"] = r.refused;
    return json;
  }
  const MeasuredChampion& m = *r.measured;
  const double champion_s = m.champion.comparison.pair.trial_median_us * 1e-6;
  json["final"] = to_json(m.champion);
  json["base_times"] = times_json(m.base_alone);
  json["champion_times"] = times_json(m.champion_alone);
  json["floor"] = to_json(m.floor);
  json["tflops"] = m.flops / champion_s * 1e-12;
  json["peak_share"] = m.flops / champion_s / m.peak_flops;
  json["floor_share"] = m.floor.us() * 1e-6 / champion_s;
  json["profile"] = {{"base", to_json(m.base_alone.diagnosis, m.base_alone.counters)},
                     {"champion", to_json(m.champion_alone.diagnosis, m.champion_alone.counters)}};
  json["ablation"] = nlohmann::json::array();
  for (const AblationRow& row : m.ablation) json["ablation"].push_back(to_json(row));
  json["peers"] = to_json(m.peers);
  return json;
}

}  // namespace heed::record
