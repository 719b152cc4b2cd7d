#include "landscape/landscape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "heed/heed.hpp"

namespace heed::landscape {
namespace {

using nlohmann::json;

constexpr double kUsAMs = 1000;

json knob_json(const Knob& knob) {
  std::vector<std::string> acts;
  for (const Bound bound : knob.acts_on) acts.emplace_back(to_string(bound));
  json one = {{"name", knob.name},         {"values", knob.values}, {"names", knob.names},
              {"standard", knob.standard}, {"acts_on", acts},       {"shares_work", knob.shares_work}};
  one["known"] = knob.known ? json(*knob.known) : json();
  return one;
}

Knob knob_from(const json& one) {
  Knob knob;
  knob.name = one.at("name");
  knob.values = one.at("values").get<std::vector<int>>();
  knob.names = one.at("names").get<std::vector<std::string>>();
  knob.standard = one.at("standard");
  for (const std::string& text : one.at("acts_on").get<std::vector<std::string>>())
    knob.acts_on.push_back(parse_bound(text));
  knob.shares_work = one.at("shares_work");
  if (!one.at("known").is_null()) knob.known = one.at("known").get<int>();
  if (knob.values.empty() || (knob.is_named() && knob.names.size() != knob.values.size()))
    throw Error(ErrorCode::usage, fmt::format("knob {} has no values, or not a name for each", knob.name), knob.name);
  return knob;
}

// T4 has texts and numbers for values.
json value_json(const Knob& knob, int value) {
  return knob.is_named() ? json(knob.text_of(value)) : json(value);
}

int value_from(const Knob& knob, const json& value) {
  const int number = value.is_string() ? knob.parse(value.get<std::string>()) : value.get<int>();
  if (knob.index_of(number) < 0)
    throw Error(ErrorCode::usage, fmt::format("{} is no value of {}", value.dump(), knob.name), value.dump());
  return number;
}

json result_json(const Landscape& l, const Config& config, const Point& point) {
  json configuration = json::object();
  for (std::size_t i = 0; i < l.knobs.size(); ++i) configuration[l.knobs[i].name] = value_json(l.knobs[i], config[i]);
  json runtimes = json::array();
  for (const double us : point.readings_us) runtimes.push_back(us / kUsAMs);
  json measurements = json::array();
  if (point.ok())
    measurements = {{{"name", "time"}, {"value", point.us / kUsAMs}, {"unit", "ms"}},
                    {{"name", "ratio"}, {"value", point.ratio}, {"unit", ""}},
                    {{"name", "ratio_low"}, {"value", point.low}, {"unit", ""}},
                    {{"name", "ratio_high"}, {"value", point.high}, {"unit", ""}},
                    {{"name", "bound"}, {"value", to_string(point.bound)}, {"unit", ""}}};
  json one = {
      {"configuration", configuration}, {"times", {{"compilation_time", point.build_ms}, {"runtimes", runtimes}}},
      {"invalidity", point.invalidity}, {"correctness", point.ok() ? 1 : 0},
      {"measurements", measurements},   {"objectives", {"time"}}};
  if (!point.ok()) one["reason"] = point.reason;
  return one;
}

Point point_from(const json& result) {
  Point point;
  point.invalidity = result.at("invalidity");
  point.build_ms = result.at("times").value("compilation_time", 0.0);
  for (const json& ms : result.at("times").value("runtimes", json::array()))
    point.readings_us.push_back(ms.get<double>() * kUsAMs);
  point.reason = result.value("reason", std::string());
  for (const json& one : result.at("measurements")) {
    const std::string name = one.at("name");
    if (name == "time") point.us = one.at("value").get<double>() * kUsAMs;
    if (name == "ratio") point.ratio = one.at("value");
    if (name == "ratio_low") point.low = one.at("value");
    if (name == "ratio_high") point.high = one.at("value");
    if (name == "bound") point.bound = parse_bound(one.at("value").get<std::string>());
  }
  if (point.ok() && !(std::isfinite(point.us) && point.us > 0 && point.ratio > 0))
    throw Error(ErrorCode::usage, "a result that is correct has no time");
  return point;
}

}  // namespace

const std::pair<const Config, Point>* Landscape::best() const {
  const std::pair<const Config, Point>* fastest = nullptr;
  for (const auto& one : points)
    if (one.second.ok() && (fastest == nullptr || one.second.us < fastest->second.us)) fastest = &one;
  return fastest;
}

json to_json(const Landscape& l) {
  json knobs = json::array();
  for (const Knob& knob : l.knobs) knobs.push_back(knob_json(knob));
  json results = json::array();
  for (const auto& [config, point] : l.points) results.push_back(result_json(l, config, point));
  return {{"schema_version", "1.0.0"},
          {"heed",
           {{"version", l.heed},
            {"source_digest", l.source_digest},
            {"workload", l.workload},
            {"family", l.family},
            {"device", l.device},
            {"knobs", knobs},
            {"default", l.default_config},
            {"others", l.others},
            {"base_us", l.base_us},
            {"verified", l.is_verified}}},
          {"results", results}};
}

Landscape landscape_from_json(const json& document, const std::string& source) {
  try {
    const json& heed = document.at("heed");
    Landscape l;
    l.heed = heed.at("version");
    l.source_digest = heed.at("source_digest");
    l.workload = heed.at("workload");
    l.family = heed.at("family");
    l.device = heed.at("device");
    for (const json& knob : heed.at("knobs")) l.knobs.push_back(knob_from(knob));
    l.default_config = heed.at("default").get<Config>();
    l.others = heed.at("others");
    l.base_us = heed.at("base_us");
    l.is_verified = heed.at("verified");
    if (l.knobs.empty() || l.default_config.size() != l.knobs.size())
      throw Error(ErrorCode::usage, "it has no default of its knobs");
    for (const json& result : document.at("results")) {
      Config config;
      for (const Knob& knob : l.knobs) config.push_back(value_from(knob, result.at("configuration").at(knob.name)));
      l.points[config] = point_from(result);
    }
    return l;
  } catch (const json::exception& error) {
    throw Error(ErrorCode::usage, fmt::format("{} is no landscape that heed landscape wrote: {}", source, error.what()),
                source);
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, fmt::format("{} is no landscape that heed landscape wrote: {}", source, error.what()),
                source);
  }
}

}  // namespace heed::landscape
