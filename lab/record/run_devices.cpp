#include "record/run_devices.hpp"

#include "json/fields.hpp"
#include "record/json.hpp"

namespace heed::record {
namespace {

// The record of a device, made where there is none.
nlohmann::json& device_in(nlohmann::json& base, const std::string& name) {
  if (!base.is_object()) base = nlohmann::json::object();
  nlohmann::json& devices = base["devices"];
  if (!devices.is_array()) devices = nlohmann::json::array();
  for (nlohmann::json& one : devices)
    if (fields::text_of(one, "name") == name) return one;
  return devices.emplace_back(nlohmann::json{{"name", name}});
}

}  // namespace

void note_device(nlohmann::json& base, const DeviceReading& reading) {
  nlohmann::json& device = device_in(base, reading.name);
  device.update({{"lost", nullptr},
                 {"self_spread", reading.self_spread},
                 {"processors", reading.processors},
                 {"processors_of_workers", reading.processors_of_workers}});
  if (reading.us) device["us"] = *reading.us;
  if (reading.self_ratio) device["self_ratio"] = to_json(*reading.self_ratio);
}

void note_first_device(nlohmann::json& base, const std::string& name) {
  const nlohmann::json us = fields::member(base, "us");
  const nlohmann::json self_ratio = fields::member(base, "self_ratio");
  device_in(base, name).update({{"us", us}, {"self_ratio", self_ratio}});
}

void note_lost_device(nlohmann::json& base, const std::string& name, const std::string& why) {
  device_in(base, name)["lost"] = why;
}

void note_search(nlohmann::json& base, const SearchBegin& search) {
  base["searches"].push_back(
      {{"began_s", search.began_s}, {"trials_before", search.trials_before}, {"devices", search.devices}});
}

std::optional<double> self_spread_on(const nlohmann::json& base, const std::string& name) {
  for (const nlohmann::json& one : fields::member(base, "devices"))
    if (fields::text_of(one, "name") == name && fields::member(one, "self_spread").is_number())
      return fields::number(one, "self_spread");
  return std::nullopt;
}

}  // namespace heed::record
