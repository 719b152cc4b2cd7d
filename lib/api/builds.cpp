#include "api/builds.hpp"

#include <fmt/format.h>

#include "dispatch/built_programs.hpp"

namespace heed::api {
namespace {

// Nothing where no family runs the workload.
std::optional<Variant> named_by_rule(const Workload& workload, const DeviceFacts& device) {
  try {
    const Family& family = default_family(workload, device);
    return make_variant(family, family.default_config(workload, device), workload);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return std::nullopt;
  }
}

// The file, or why there is none.
struct Build {
  std::shared_ptr<const dispatch::ProgramFile> file;
  dispatch::BuiltPrograms::Progress progress;
};

Build found_or_built(const Variant& variant, const Workload& workload, const Options& options,
                     const DeviceFacts& device) {
  dispatch::BuiltPrograms built;
  if (auto file = built.find(variant, device.arch); file != nullptr || options.build == HEED_BUILD_OFF)
    return {std::move(file), {}};
  if (options.build == HEED_BUILD_BACKGROUND) {
    built.start(variant, workload, device);
    return {nullptr, built.progress(variant, device.arch)};
  }
  try {
    return {built.build(variant, workload, device), {}};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_compiler && error.code() != ErrorCode::build_failed) throw;
    return {nullptr, {.is_building = false, .failure = error.what()}};
  }
}

}  // namespace

bool is_being_built(const Problem& problem, const DeviceFacts& device) {
  const std::optional<Variant> variant = named_by_rule(problem.workload, device);
  return variant && dispatch::BuiltPrograms().progress(*variant, device.arch).is_building;
}

Choice better_of_builds(const Problem& problem, const Options& options, const DeviceFacts& device,
                        const std::function<Choice()>& choose) {
  const Workload& w = problem.workload;
  std::optional<Choice> chosen;
  std::optional<Error> refusal;
  try {
    chosen = choose();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::programs) throw;
    refusal = error;
  }
  const std::optional<Variant> named = named_by_rule(w, device);
  // Champions and what was tuned nearby come before the rule.
  const bool is_best = chosen && (!named || chosen->step != dispatch::Step::rule ||
                                  (chosen->variant.family == named->family && chosen->variant.config == named->config &&
                                   chosen->variant.problem.features == named->problem.features));
  if (is_best) return std::move(*chosen);
  if (!named) throw Error(*refusal);
  const Build build = found_or_built(*named, w, options, device);
  if (build.file != nullptr) {
    const dispatch::ProgramRecord& record = build.file->records()[0];
    return {.variant = *named,
            .image = build.file->kept_image(record),
            .digest = record.digest,
            .origin = build.file->name(),
            .reason = fmt::format("the rule of {} names it for this problem; it was built on this machine",
                                  named->family->name()),
            .arch = record.arch};
  }
  const std::string state = build.progress.is_building ? "it is being built" : build.progress.failure;
  const std::string told =
      state.empty() ? "" : fmt::format("; of the program that the rule of {} names: {}", named->family->name(), state);
  if (refusal) throw Error(refusal->code(), refusal->what() + told, refusal->value());
  chosen->reason += told;
  chosen->is_building = build.progress.is_building;
  return std::move(*chosen);
}

}  // namespace heed::api
