// A family's space as a strategy sees it.
#include "evolve/strategy.hpp"

namespace heed::evolve {

Space space_of(const Family& family, const Workload& workload, const DeviceFacts& device) {
  const auto variant = [&family, workload](const Config& values) { return variant_of(family, values, workload); };
  Space space;
  space.knobs = &variant_knobs(family);
  space.default_config = values_of(make_variant(family, family.default_config(workload, device), workload));
  space.is_legal = [variant, workload, device](const Config& values) {
    return !variant(values).is_illegal(workload, device);
  };
  space.canonical = [variant, workload](const Config& values) {
    return values_of(canonical(variant(values), workload));
  };
  space.name = family.name();
  return space;
}

}  // namespace heed::evolve
