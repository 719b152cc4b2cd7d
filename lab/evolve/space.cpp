// A family's space as a strategy sees it.
#include <fmt/format.h>

#include "evolve/strategy.hpp"

namespace heed::evolve {

Variant default_with(const Family& family, std::string_view hold, const Workload& workload, const DeviceFacts& device) {
  const Variant standard = make_variant(family, family.default_config(workload, device), workload);
  if (hold.empty()) return standard;
  const auto refused = [&](std::string_view why) {
    return Error(ErrorCode::usage,
                 fmt::format("--hold {}: {}: {}. Hold what every family of the run has, or name families with --family",
                             hold, family.name(), why),
                 std::string(hold));
  };
  Config values;
  try {
    values = parse_config(variant_knobs(family), values_of(standard), hold);
  } catch (const Error& error) {
    throw refused(error.what());
  }
  Variant held = canonical(variant_of(family, values, workload), workload);
  if (const auto why = held.is_illegal(workload, device)) throw refused(*why);
  return held;
}

Space space_of(const Family& family, const Workload& workload, const DeviceFacts& device, std::string_view hold) {
  const auto variant = [&family, workload](const Config& values) { return variant_of(family, values, workload); };
  Space space;
  space.knobs = &variant_knobs(family);
  space.default_config = values_of(default_with(family, hold, workload, device));
  for (std::size_t i = 0; i < space.knobs->size(); ++i) {
    const Knob& knob = (*space.knobs)[i];
    if (knob.of_accuracy || (',' + std::string(hold)).find(fmt::format(",{}=", knob.name)) != std::string::npos)
      space.held.push_back(i);
  }
  space.is_legal = [variant, workload, device](const Config& values) {
    return !variant(values).is_illegal(workload, device);
  };
  space.canonical = [variant, workload](const Config& values) {
    return values_of(canonical(variant(values), workload));
  };
  space.name = family.name();
  return space;
}

Config with_held(const Space& space, Config config) {
  for (const std::size_t i : space.held) config[i] = space.default_config[i];
  return config;
}

}  // namespace heed::evolve
