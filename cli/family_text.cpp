#include "cli/family_text.hpp"

#include <fmt/format.h>

#include "base/text.hpp"
#include "report/table.hpp"
#include "variant/specialization.hpp"
#include "workload/features.hpp"

namespace heed::cli {
namespace {

std::vector<std::string> masks_of(const Family& family) {
  std::vector<std::string> names;
  for (const MaskKind mask : family.masks()) names.emplace_back(to_string(mask));
  return names;
}

std::vector<std::string> features_of(const Family& family) {
  std::vector<std::string> names;
  for (const FeatureName& feature : kFeatureNames)
    if (family.features().*(feature.member)) names.emplace_back(feature.name);
  return names;
}

nlohmann::json knobs_json(const std::vector<Knob>& knobs) {
  nlohmann::json all = nlohmann::json::array();
  for (const Knob& knob : knobs) {
    std::vector<std::string> values;
    for (const int value : knob.values) values.push_back(knob.text_of(value));
    all.push_back({{"name", knob.name}, {"values", values}, {"help", knob.help}});
  }
  return all;
}

// @param heading of the first column, "knob"
std::string knobs_text(const std::string& heading, const std::vector<Knob>& knobs) {
  report::Table table({"  " + heading, "values", "what it does"});
  table.align_left(1);
  table.align_left(2);
  for (const Knob& knob : knobs) {
    std::vector<std::string> values;
    for (const int value : knob.values) values.push_back(knob.text_of(value));
    table.add({"  " + knob.name, join(values, " "), knob.help});
  }
  return table.str();
}

}  // namespace

nlohmann::json family_json(const Family& family, const DeviceFacts& device) {
  std::vector<std::string> dtypes;
  for (const Dtype dtype : family.dtypes()) dtypes.emplace_back(to_string(dtype));
  return {{"name", family.name()},
          {"description", family.description()},
          {"device", to_string(family.device())},
          {"requires", family.requirements()},
          {"dtypes", dtypes},
          {"head_dims", family.head_dims().listed},
          {"masks", masks_of(family)},
          {"features", features_of(family)},
          {"quantised", family.quantised()},
          {"configs", space_size(variant_knobs(family))},
          {"available", family.device() == DeviceKind::cpu || device.kind == DeviceKind::cuda},
          {"knobs", knobs_json(family.knobs())},
          {"specialization", knobs_json(specialization_knobs(family.specializations()))}};
}

std::string family_text(const Family& family) {
  std::vector<std::string> dtypes;
  for (const Dtype dtype : family.dtypes()) dtypes.emplace_back(to_string(dtype));
  std::string text = fmt::format(
      "{}: {}\n  device {}, requires {}\n  dtypes {}; head dims {}; masks {}; any lengths, grouped heads; "
      "features: {}; quantised inputs: {}; "
      "{:.2g} configs\n",
      family.name(), family.description(), to_string(family.device()), family.requirements(), fmt::join(dtypes, ", "),
      family.head_dims().text(), fmt::join(masks_of(family), ", "),
      features_of(family).empty() ? "none" : join(features_of(family), ", "),
      family.quantised().empty() ? "none" : family.quantised(), space_size(variant_knobs(family)));
  text += knobs_text("knob", family.knobs());
  if (const std::vector<Knob> knobs = specialization_knobs(family.specializations()); !knobs.empty())
    text += "  specialization: a program for launches of the workload's shape alone\n" + knobs_text("part", knobs);
  return text;
}

}  // namespace heed::cli
