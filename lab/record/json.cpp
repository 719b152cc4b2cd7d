#include "record/json.hpp"

#include "base/faster.hpp"

namespace heed::record {

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

nlohmann::json to_json(const verify::Accuracy& a) {
  return {{"rel_rms", a.rel_rms}, {"rel_l1", a.rel_l1}, {"cosine", a.cosine}, {"worst_row", a.worst_row}};
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
  if (c.total) json["total_error"] = to_json(*c.total);
  return json;
}

nlohmann::json to_json(const measure::Counts& counts) {
  return {{"instructions", counts.instructions}, {"cycles", counts.cycles}};
}

nlohmann::json to_json(const trial::Noise& noise) {
  return {{"self_spread", noise.self_spread},          {"block_spread", noise.block_spread},
          {"others_busy", noise.others.busy},          {"stolen", noise.others.stolen},
          {"load_average", noise.others.load_average}, {"threshold", kTooNoisy},
          {"too_noisy", is_too_noisy(noise)}};
}

nlohmann::json samples_json(const measure::PairResult& pair) {
  if (pair.ratios.empty()) return nlohmann::json::object();
  nlohmann::json json = {
      {"base_us", pair.base_us}, {"trial_us", pair.trial_us}, {"ratios", pair.ratios}, {"quads", pair.quads}};
  if (pair.base_counts && pair.trial_counts)
    json["counts"] = {{"base", to_json(*pair.base_counts)}, {"trial", to_json(*pair.trial_counts)}};
  return json;
}

}  // namespace heed::record
