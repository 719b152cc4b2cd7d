/// Every point of a reduced space with its time: searches are compared on it without a device.
///
/// Stored in the auto-tuning community's T4 format (schema 1.0.0, https://github.com/odgaard/TuningSchema), so that
/// other tuners run on the same file; what that has no place for stands beside the results under "heed".
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evolve/strategy.hpp"

namespace heed::landscape {

/// What became of one config.
struct Point {
  double us = 0;     ///< 0 where it has no time
  double ratio = 0;  ///< time of the family's default / its time
  double low = 0;    ///< of the ratio's 95% interval
  double high = 0;
  std::string invalidity;  ///< "correct", or T4's word for why not: "compile", "runtime", "correctness", "timeout"
  std::string reason;      ///< of any but "correct"
  Bound bound = Bound::unknown;
  double build_ms = 0;
  std::vector<double> readings_us;
  [[nodiscard]] bool ok() const { return invalidity == "correct"; }
};

struct Landscape {
  std::string workload;
  std::string family;
  nlohmann::json device;
  std::string heed;
  std::string source_digest;
  std::vector<Knob> knobs;   ///< that vary, with the values that they take here
  Config default_config;     ///< of these knobs
  std::string others;        ///< the other knobs, which all points share: "family:knob=value,..." of the default
  double base_us = 0;        ///< of the default, as it was measured first
  bool is_verified = false;  ///< whether each point passed the gate
  std::map<Config, Point> points;

  /// The fastest. None where no point has a time.
  [[nodiscard]] const std::pair<const Config, Point>* best() const;
  /// us of the fastest; 0 where there is none.
  [[nodiscard]] double best_us() const { return best() == nullptr ? 0 : best()->second.us; }
};

nlohmann::json to_json(const Landscape& landscape);
/// @throws Error(usage) for what to_json never wrote @param source for messages
Landscape landscape_from_json(const nlohmann::json& json, const std::string& source);

}  // namespace heed::landscape
