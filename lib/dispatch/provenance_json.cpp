#include "dispatch/provenance_json.hpp"

#include <limits>

namespace heed::dispatch {
namespace {

using nlohmann::json;

double number_of(const json& object, const char* key) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  return at != object.end() && at->is_number() ? at->get<double>() : 0.0;
}
json member(const json& object, const char* key) {
  return object.is_object() ? object.value(key, json()) : json();
}
RatioInterval interval_of(const json& object) {
  return {number_of(object, "value"), number_of(object, "low"), number_of(object, "high")};
}
json interval_json(const RatioInterval& ratio) {
  return {{"value", ratio.value}, {"low", ratio.low}, {"high", ratio.high}};
}

}  // namespace

std::int64_t integer_of(const json& object, const char* key, std::int64_t otherwise) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  if (at == object.end() || !at->is_number_integer()) return otherwise;
  if (at->is_number_unsigned() &&
      at->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return otherwise;
  return at->get<std::int64_t>();
}

Provenance provenance_of(const json& entry) {
  Provenance p;
  p.device = text_of(entry, "device");
  p.date = text_of(entry, "date");
  p.heed = text_of(entry, "heed");
  p.source_digest = text_of(entry, "source_digest");
  const std::int64_t referee = integer_of(entry, "referee", 0);
  p.referee = referee > 0 && referee <= std::numeric_limits<int>::max() ? static_cast<int>(referee) : 0;
  const json base = member(entry, "base");
  p.base = text_of(base, "variant");
  p.base_config = text_of(base, "config");
  p.base_us = number_of(base, "us");
  p.us = number_of(entry, "us");
  p.ratio = interval_of(member(base, "ratio"));
  if (const json peer = member(entry, "peer"); peer.is_object())
    p.peer = {text_of(peer, "backend"), text_of(peer, "torch"), text_of(peer, "cudnn"), number_of(peer, "us"),
              interval_of(member(peer, "ratio"))};
  p.run = integer_of(entry, "run", 0);
  p.trial = integer_of(entry, "trial", -1);
  p.trials = integer_of(entry, "trials", 0);
  return p;
}

json to_json(const Provenance& p) {
  json entry = {
      {"device", p.device},   {"date", p.date},
      {"heed", p.heed},       {"source_digest", p.source_digest},
      {"referee", p.referee}, {"base", {{"variant", p.base}, {"us", p.base_us}, {"ratio", interval_json(p.ratio)}}},
      {"us", p.us},           {"trials", p.trials}};
  if (!p.base_config.empty()) entry["base"]["config"] = p.base_config;
  if (p.peer)
    entry["peer"] = {{"backend", p.peer->backend},
                     {"torch", p.peer->torch},
                     {"cudnn", p.peer->cudnn},
                     {"us", p.peer->us},
                     {"ratio", interval_json(p.peer->ratio)}};
  if (p.run > 0) entry["run"] = p.run;
  if (p.trial >= 0) entry["trial"] = p.trial;
  return entry;
}

}  // namespace heed::dispatch
