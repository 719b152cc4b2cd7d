#include "record/time_shares.hpp"

namespace heed::record {
namespace {

nlohmann::json phase_json(const trial::PhaseTimes& times) {
  return {{"wall_s", times.wall_s}, {"busy_s", times.busy_s}, {"recorded_s", times.recorded_s}};
}

}  // namespace

BuildTimes& BuildTimes::operator+=(const BuildTimes& other) {
  made += other.made;
  made_s += other.made_s;
  waited_s += other.waited_s;
  return *this;
}

nlohmann::json to_json(const TimeShares& t) {
  const trial::Shares shares = trial::shares_of(t.phases, t.seconds, t.of_gpu);
  nlohmann::json json = {
      {"of", t.of_gpu ? "gpu" : "wall"},
      {"seconds", t.seconds},
      {"elsewhere_s", t.elsewhere_s},
      {"measure", shares.measure},
      {"gate", shares.gate},
      {"screen", shares.screen},
      {"idle", shares.idle},
      {"waiting", shares.waiting},
      {"phases",
       {{"measure", phase_json(t.phases.measure)},
        {"gate", phase_json(t.phases.gate)},
        {"screen", phase_json(t.phases.screen)}}},
      {"spot_checks_s", t.phases.spot_checks_s},
      {"builds", {{"made", t.builds.made}, {"made_s", t.builds.made_s}, {"waited_s", t.builds.waited_s}}},
      {"parts", nlohmann::json::array()}};
  for (const auto& [name, seconds] : t.parts) json["parts"].push_back({{"part", name}, {"seconds", seconds}});
  if (!t.no_records.empty()) json["no_records"] = t.no_records;
  return json;
}

}  // namespace heed::record
