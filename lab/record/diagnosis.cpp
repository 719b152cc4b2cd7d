#include "record/diagnosis.hpp"

namespace heed::record {

nlohmann::json to_json(const profile::Counters& counters) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, value] : profile::numbers_of(counters)) json[std::string(name)] = value;
  nlohmann::json stalls = nlohmann::json::array();
  for (const profile::Stall& stall : counters.stalls)
    stalls.push_back({{"reason", stall.reason}, {"warps", stall.warps}});
  json["stalls"] = stalls;
  return json;
}

nlohmann::json to_json(const profile::Diagnosis& d, const std::optional<profile::Counters>& counters) {
  nlohmann::json shares = nlohmann::json::object();
  for (const profile::Share& share : d.shares) shares[std::string(to_string(share.bound))] = share.value;
  return {{"bound", to_string(d.bound)},
          {"with_counters", d.with_counters},
          {"shares", shares},
          {"occupancy",
           {{"blocks", d.occupancy.blocks},
            {"blocks_per_processor", d.occupancy.blocks_per_processor},
            {"limit", d.occupancy.limit},
            {"warps_per_processor", d.occupancy.warps_per_processor},
            {"rounds", d.occupancy.rounds},
            {"idle_share", d.occupancy.idle_share}}},
          {"knobs", d.knobs},
          {"text", d.text},
          {"counters", counters ? to_json(*counters) : nlohmann::json()}};
}

Bound bound_of(const nlohmann::json& diagnosis) {
  return diagnosis.is_object() ? parse_bound(diagnosis.value("bound", std::string())) : Bound::unknown;
}

bool has_counters(const nlohmann::json& diagnosis) {
  return diagnosis.is_object() && diagnosis.value("with_counters", false);
}

}  // namespace heed::record
