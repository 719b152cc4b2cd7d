#include "record/emulation.hpp"

namespace heed::record {

nlohmann::json to_json(const emulator::Report& report) {
  return {{"outcome", to_string(report.outcome)},
          {"verdict", to_string(report.verdict)},
          {"finding", to_string(report.finding)},
          {"check", report.check},
          {"reason", report.reason},
          {"workloads", report.workloads},
          {"launches", report.launches},
          {"build_ms", report.build_ms},
          {"run_ms", report.run_ms},
          {"seed", report.seed},
          {"emulator", report.digest}};
}

nlohmann::json of_trial(const emulator::Report& report, std::int64_t trial_id) {
  nlohmann::json json = to_json(report);
  json["trial_id"] = trial_id;
  return json;
}

}  // namespace heed::record
