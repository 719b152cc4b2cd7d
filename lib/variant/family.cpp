#include "variant/family.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/text.hpp"
#include "variant/dispatch_table.hpp"
#include "variant/params_fields.hpp"
#include "variant/registry.hpp"
#include "variant/renames.hpp"
#include "variant/specialization.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"
#include "workload/quantised.hpp"

namespace heed {

namespace {

std::vector<const Family*>& registry() {
  // A device's default is its first.
  static std::vector<const Family*> all = {
      &cpu_family(),        &sm80_family(),    &sm90_decode_family(), &sm80_decode_family(), &sm90_persistent_family(),
      &sm90_split_family(), &sm90_fp8_family()};
  return all;
}

}  // namespace

std::span<const Family* const> families() {
  return registry();
}

void register_family(const Family& family) {
  for (const Family* known : families()) HEED_CHECK(known->name() != family.name());
  registry().push_back(&family);
}

const Family& find_family(std::string_view name) {
  for (const Family* family : families())
    if (family->name() == name) return *family;
  if (const std::string_view now = current_family_name(name); now != name)
    throw Error(ErrorCode::usage, fmt::format("the family {} is called {}, and its knobs have other names", name, now),
                std::string(name));
  std::vector<std::string_view> known;
  for (const Family* family : families()) known.push_back(family->name());
  throw Error(ErrorCode::usage, fmt::format("unknown family \"{}\"; {}", name, one_of(name, known)), std::string(name));
}

bool HeadDims::takes(std::int64_t dim) const {
  if (step > 0 && dim > 0 && dim <= most && dim % step == 0) return true;
  return std::find(listed.begin(), listed.end(), dim) != listed.end();
}

std::string HeadDims::text() const {
  if (step == 1) return fmt::format("any up to {}", most);
  return step > 1 ? fmt::format("multiples of {} up to {}", step, most) : fmt::format("{}", fmt::join(listed, " and "));
}

namespace {

// Why a dtype, head dim or mask is none that the family is written for.
std::optional<std::string> refused_by_capabilities(const Family& family, const Workload& w) {
  const std::vector<Dtype> dtypes = family.dtypes();
  if (std::find(dtypes.begin(), dtypes.end(), w.dtype) == dtypes.end()) {
    std::vector<std::string> names;
    for (const Dtype dtype : dtypes) names.emplace_back(to_string(dtype));
    return fmt::format("{} is not supported; it computes {}", to_string(w.dtype), join(names, " and "));
  }
  const HeadDims dims = family.head_dims();
  if (!dims.takes(w.dim)) return fmt::format("head dim {} is not supported; it takes {}", w.dim, dims.text());
  if (!dims.takes(w.dim_v)) return fmt::format("value dim {} is not supported; it takes {}", w.dim_v, dims.text());
  if (w.dim_v != w.dim)
    return fmt::format("the value dim {} differs from the head dim {}; they must be equal", w.dim_v, w.dim);
  const std::vector<MaskKind> masks = family.masks();
  if (std::find(masks.begin(), masks.end(), mask_kind(w)) == masks.end()) {
    std::vector<std::string> names;
    for (const MaskKind mask : masks) names.emplace_back(to_string(mask));
    return fmt::format("the mask {} is not supported; it computes {}", to_string(mask_kind(w)), join(names, " and "));
  }
  if (w.quantised && !family.reads(*w.quantised))
    return fmt::format("quantised inputs ({}) are not supported; it reads {}", words_of(*w.quantised),
                       family.quantised().empty() ? "none" : family.quantised());
  const Features has = family.features();
  const Features missing = without(features_of(w), has);
  if (has_features(missing))
    return fmt::format(
        "{} {} not supported; {}", words_of(missing),
        words_of(missing).find(" and ") == std::string::npos ? "is" : "are",
        has_features(has) ? fmt::format("it computes {}", words_of(has)) : "it computes none of the features");
  return std::nullopt;
}

}  // namespace

std::optional<std::string> Family::refuses(const Workload& workload, const DeviceFacts& on) const {
  if (auto reason = refuses_device(on)) return reason;
  if (auto reason = refused_by_capabilities(*this, workload)) return reason;
  if (workload.quantised)
    if (auto reason = refuses_inputs(*workload.quantised, on)) return reason;
  return refuses_sizes(workload);
}

std::optional<std::string> Family::is_illegal(const Config& config, const Specialization& specialization,
                                              const Workload& workload, const DeviceFacts& on) const {
  if (specialization.specialize != Specialize::none && workload.has_features())
    return "programs for one shape have no features; write specialize=none";
  if (specialization.specialize != Specialize::none && known_problem(workload).sizes.len_q == 0)
    return too_large_to_know(workload);
  if (auto reason = refuses_config(config, specialization, workload, on)) return reason;
  if (!(heed::canonical(specialization, support_of(config, workload)) == specialization))
    return one_name(config, specialization, workload);
  return std::nullopt;
}

std::string Family::one_name(const Config& config, const Specialization& specialization,
                             const Workload& workload) const {
  const Variant named = heed::canonical(make_variant(*this, config, workload, specialization), workload);
  return fmt::format("knobs without effect here have one name: write {}",
                     to_string(variant_knobs(*this), values_of(named)));
}

const Family& default_family(DeviceKind device) {
  for (const Family* family : families())
    if (family->device() == device) return *family;
  throw Error(ErrorCode::internal, fmt::format("no family for the device {}", to_string(device)));
}

namespace {

// "fwd_a, fwd_b: why; fwd_c: why", of the families that searches go through; of special ones those that read inputs
// which are quantised like that.
std::string refusals(const Workload& workload, const DeviceFacts& device) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  for (const Family* family : families()) {
    const bool reads = workload.quantised && family->reads(*workload.quantised);
    if (family->device() != device.kind || (family->is_special() && !reads)) continue;
    const std::string reason = family->refuses(workload, device).value_or("");
    const auto known =
        std::find_if(by_reason.begin(), by_reason.end(), [&](const auto& one) { return one.first == reason; });
    if (known != by_reason.end())
      known->second.emplace_back(family->name());
    else
      by_reason.push_back({reason, {std::string(family->name())}});
  }
  std::vector<std::string> parts;
  for (const auto& [reason, names] : by_reason) parts.push_back(join(names, ", ") + ": " + reason);
  return join(parts, "; ");
}

}  // namespace

const Family& default_family(const Workload& workload, const DeviceFacts& device) {
  const auto runs = [&](const Family& family) {
    return family.device() == device.kind && !family.refuses(workload, device);
  };
  for (const DispatchRow& row : dispatch_table())
    if (runs(row.family()) && row.holds(workload, device)) return row.family();
  for (const Family* family : families())
    if (!family->is_special() && runs(*family)) return *family;
  throw Error(ErrorCode::unsupported,
              fmt::format("no family runs {} on {}: {}", to_string(workload), device.name, refusals(workload, device)),
              to_string(workload));
}

std::vector<const Family*> searched_families(const Workload& workload, const DeviceFacts& device) {
  std::vector<const Family*> all = {&default_family(workload, device)};
  for (const Family* family : families())
    if (family != all.front() && family->device() == device.kind && !family->refuses(workload, device) &&
        (!family->is_special() || !family->made_for(workload, device).empty()))
      all.push_back(family);
  return all;
}

Workload with_keys_of_a_tile(const Workload& workload) {
  if (!workload.has_left_bound()) return workload;
  constexpr std::int64_t kRows = 64;
  const std::int64_t right = workload.window.right != Window::kAll ? workload.window.right
                             : workload.has_right_bound()          ? 0
                                                                   : workload.len_k;
  Workload seen = workload;
  seen.mask = Mask::none;
  seen.window = {};
  seen.len_k = std::min(workload.len_k, workload.window.left + right + kRows);
  return seen;
}

Problem problem_of(const Workload& workload) {
  return {.element = facts_of(workload.dtype).element,
          .head_dim = static_cast<int>(workload.dim),
          .mask = mask_kind(workload),
          .features = features_of(workload),
          .inputs = inputs_of(workload)};
}

namespace {

// Tensors of a launch whose sizes a program may know: the gate has it run a chain of seven, and no smaller ones in
// their place. Longer launches are slowed by nothing that constants do away with.
constexpr double kMostFixedBytes = 64 << 20;

TensorStrides dense_strides(const Workload& w) {
  if (w.layout == Layout::bhld)
    return {.batch = w.heads * w.len_q * w.dim_v, .head = w.len_q * w.dim_v, .row = w.dim_v};
  return {.batch = w.len_q * w.heads * w.dim_v, .head = w.dim_v, .row = w.heads * w.dim_v};
}

}  // namespace

FixedSizes whole_sizes_of(const Workload& workload) {
  const MaskBounds keys = mask_bounds(workload);
  return {.batch = static_cast<int>(workload.batch),
          .heads = static_cast<int>(workload.heads),
          .heads_kv = static_cast<int>(workload.heads_kv),
          .len_q = static_cast<int>(workload.len_q),
          .len_k = keys.len_k,
          .right_offset = keys.right_offset,
          .left_offset = keys.left_offset};
}

FixedSizes sizes_of(const Workload& workload) {
  return trimmed(whole_sizes_of(workload), mask_kind(workload));
}

Problem sized_problem_of(const Workload& workload, bool dense_output) {
  Problem problem = problem_of(workload);
  problem.sizes = sizes_of(workload);
  if (dense_output) problem.sizes.o_strides = dense_strides(workload);
  return problem;
}

Problem specialized_problem(const Workload& workload, const Specialization& specialization) {
  if (specialization.specialize == Specialize::none) return problem_of(workload);
  Problem problem = sized_problem_of(workload, specialization.o_layout == OutputLayout::dense);
  problem.specialization = specialization;
  return problem;
}

Problem known_problem(const Workload& workload) {
  const bool is_known = !workload.has_features() && workload.bytes() <= kMostFixedBytes;
  return is_known ? sized_problem_of(workload) : problem_of(workload);
}

std::string too_large_to_know(const Workload& workload) {
  return fmt::format(
      "its tensors take {:.0f} MB; programs may know the sizes of up to {:.0f} MB; write specialize=none",
      workload.bytes() / 1e6, kMostFixedBytes / 1e6);
}

namespace {

std::string literal(const Features& features) {
  std::vector<std::string> fields;
  for (const FeatureName& f : kFeatureNames)
    if (features.*(f.member)) fields.push_back(fmt::format(".{} = true", f.name));
  return fmt::format("{{{}}}", join(fields, ", "));
}

// Designated initialisers, in the order of the fields.
std::string literal(const FixedSizes& sizes) {
  std::vector<std::string> fields;
  for (const auto& field : kIntFields)
    if (field.fixed != nullptr) fields.push_back(fmt::format(".{} = {}", field.name, sizes.*field.fixed));
  for (const auto& field : kStridesFields)
    if (field.fixed != nullptr && (sizes.*field.fixed).row != 0) {
      const TensorStrides& strides = sizes.*field.fixed;
      fields.push_back(fmt::format(".{} = {{{}, {}, {}}}", field.name, strides.batch, strides.head, strides.row));
    }
  return fmt::format("{{{}}}", join(fields, ", "));
}

}  // namespace

std::string literal(const Problem& problem) {
  std::string text = fmt::format("{{.element = heed::Element::{}, .head_dim = {}, .mask = heed::MaskKind::{}",
                                 to_string(problem.element), problem.head_dim, to_string(problem.mask));
  if (problem.sizes.len_q != 0) text += ", .sizes = " + literal(problem.sizes);
  if (!(problem.specialization == Specialization{})) text += ", .specialization = " + literal(problem.specialization);
  if (has_features(problem.features)) text += ", .features = " + literal(problem.features);
  if (const Inputs& inputs = problem.inputs; inputs.quantised)
    text += fmt::format(
        ", .inputs = {{.quantised = true, .q = heed::Element::{}, .k = heed::Element::{}, .v = heed::Element::{}}}",
        to_string(inputs.q), to_string(inputs.k), to_string(inputs.v));
  return text + "}";
}

std::string to_string(const Problem& problem) {
  const FixedSizes& s = problem.sizes;
  std::string text = fmt::format("{}_d{}", to_string(problem.element), problem.head_dim);
  if (problem.mask != MaskKind::none) text += fmt::format("_{}", to_string(problem.mask));
  if (const Inputs& inputs = problem.inputs; inputs.quantised)
    text += fmt::format("_q{}_k{}_v{}", to_string(inputs.q), to_string(inputs.k), to_string(inputs.v));
  if (has_features(problem.features)) text += "_" + to_string(problem.features);
  if (s.len_q == 0) return text;
  text += "_";
  for (const auto& field : kIntFields)
    if (field.fixed != nullptr && (!field.is_offset || s.*field.fixed != 0))
      text += fmt::format("{}{}", field.tag, s.*field.fixed);
  if (s.o_strides.row != 0) {
    // Where both layouts have the same strides, of one head and one query, they are one problem and have one name.
    const bool is_blhd = s.o_strides.head == problem.head_dim && s.o_strides.row == s.heads * problem.head_dim;
    text += is_blhd ? "_blhd" : "_bhld";
  }
  return text;
}

}  // namespace heed
