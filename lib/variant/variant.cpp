// Variants: a family's config and a specialization, as text, as values and as source.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/check.hpp"
#include "base/digest.hpp"
#include "variant/family.hpp"
#include "variant/specialization.hpp"
#include "workload/features.hpp"

namespace heed {

bool Variant::runs(const Workload& workload) const {
  Problem wanted = specialized_problem(workload, specialization);
  if (!covers(problem.features, wanted.features)) return false;
  wanted.features = problem.features;
  return wanted == problem;
}

Features Variant::spare_features(const Workload& workload) const {
  return without(problem.features, features_of(workload));
}

std::optional<std::string> Variant::is_illegal(const Workload& workload, const DeviceFacts& device) const {
  return family->is_illegal(config, specialization, with_features(workload, problem.features), device);
}

std::string Variant::unit() const {
  HEED_CHECK(source.empty() || overlay == nullptr);
  const std::string* edited = overlay ? overlay->find(Overlay::kEntry) : nullptr;
  if (edited != nullptr) return family->prelude(config, problem) + *edited;
  return family->prelude(config, problem) + (source.empty() ? family->entry() : source);
}

LaunchPlan Variant::plan(const Workload& workload, const DeviceFacts& device) const {
  HEED_CHECK(runs(workload));
  // Scratch and shared memory are those of the program's features. Boxes are those of the launch: a program that could
  // read pages, but has none to read, waits for the bytes of whole tiles, for ever where a page's box brings fewer.
  const Workload whole = with_features(workload, problem.features);
  LaunchPlan plan = family->plan(config, whole, device);
  if (plan.tensor_maps && whole != workload) plan.tensor_maps = family->plan(config, workload, device).tensor_maps;
  plan.semaphores = std::max(plan.semaphores, extras.semaphores);
  plan.shared_bytes += extras.shared_bytes;
  plan.supports_pdl = plan.supports_pdl || extras.supports_pdl;
  if (problem.sizes.o_strides.row != 0) plan.o_strides = problem.sizes.o_strides;
  return plan;
}

std::string Variant::id() const {
  const std::vector<Knob>& knobs = variant_knobs(*family);
  const Config values = values_of(*this);
  const std::string readable = label.empty() ? to_compact_string(knobs, values) : label;
  const std::string hash = Digester()
                               .add(family->name())
                               .add(to_string(problem))
                               .add(to_string(knobs, values))
                               .add(source)
                               .hex()
                               .substr(0, 8);
  return fmt::format("{}_{}.{}.{}{}", family->name(), to_string(problem), readable, hash,
                     overlay ? "+src:" + overlay->digest().substr(0, 8) : "");
}

Variant make_variant(const Family& family, const Config& config, const Workload& workload,
                     const Specialization& specialization) {
  return {.family = &family,
          .config = config,
          .specialization = specialization,
          .problem = specialized_problem(workload, specialization),
          .label = {},
          .source = {},
          .extras = {}};
}

const std::vector<Knob>& variant_knobs(const Family& family) {
  static std::mutex mutex;
  static std::map<const Family*, std::vector<Knob>> all;
  const std::scoped_lock lock(mutex);
  std::vector<Knob>& knobs = all[&family];
  if (knobs.empty()) {
    knobs = family.knobs();
    for (Knob& knob : specialization_knobs(family.specializations())) knobs.push_back(std::move(knob));
  }
  return knobs;
}

Config values_of(const Variant& variant) {
  Config values = variant.config;
  for (const int value : specialization_values(variant.specialization, variant.family->specializations()))
    values.push_back(value);
  return values;
}

Variant variant_of(const Family& family, const Config& values, const Workload& workload) {
  const auto border = values.begin() + static_cast<std::ptrdiff_t>(family.knobs().size());
  return make_variant(family, {values.begin(), border}, workload,
                      specialization_of({border, values.end()}, family.specializations()));
}

Variant canonical(const Variant& variant, const Workload& workload) {
  const Family& family = *variant.family;
  // What specializations there are depends on the config, and one of its knobs may have another name with one.
  const Config config = family.canonical(variant.config, {}, workload);
  const Specialization specialization = canonical(variant.specialization, family.support_of(config, workload));
  Variant result = variant;
  result.config = family.canonical(config, specialization, workload);
  result.specialization = specialization;
  result.problem = specialized_problem(workload, specialization);
  return result;
}

Variant parse_variant(std::string_view text, const Workload& workload, const DeviceFacts& device) {
  const std::size_t colon = text.find(':');
  const Family& family = find_family(text.substr(0, colon));
  const std::string_view knobs = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  // Defaults are chosen only for a workload the family accepts; the caller reports a refusal in its own words.
  if (const auto reason = family.refuses(workload, device))
    throw Error(ErrorCode::unsupported,
                fmt::format("{} cannot run {}: {}", family.name(), to_string(workload), *reason), to_string(workload));
  const Config defaults = values_of(make_variant(family, family.default_config(workload, device), workload));
  Variant named = variant_of(family, parse_config(variant_knobs(family), defaults, knobs), workload);
  // On a CPU a default's value that contradicts a named one gives way, as split_keys does beside lanes=queries; on a
  // GPU the refusal says what to write.
  if (family.device() != DeviceKind::cpu || !named.is_illegal(workload, device)) return named;
  Variant reconciled = canonical(named, workload);
  const Config values = values_of(reconciled);
  const bool keeps_named = parse_config(variant_knobs(family), values, knobs) == values;
  return keeps_named && !reconciled.is_illegal(workload, device) ? reconciled : named;
}

std::string describe(const Variant& variant) {
  if (!variant.label.empty()) return variant.label;
  return fmt::format("{}:{}", variant.family->name(), to_string(variant_knobs(*variant.family), values_of(variant)));
}

}  // namespace heed
