#include "api/builds.hpp"

#include <fmt/format.h>

#include "dispatch/built_programs.hpp"

namespace heed::api {
namespace {

std::shared_ptr<const dispatch::ProgramFile> found_or_built(dispatch::BuiltPrograms& built, const Variant& variant,
                                                            const Workload& workload, const Options& options,
                                                            const DeviceFacts& device, std::string& remark) {
  auto file = built.find(variant, device.arch);
  if (file != nullptr || options.build == HEED_BUILD_OFF) return file;
  if (options.build == HEED_BUILD_BACKGROUND) {
    built.start(variant, workload, device);
    remark = built.progress(variant, device.arch);
    return nullptr;
  }
  try {
    return built.build(variant, workload, device);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_compiler && error.code() != ErrorCode::build_failed) throw;
    remark = error.what();
    return nullptr;
  }
}

}  // namespace

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
  const auto result = [&]() -> Choice {
    if (refusal) throw Error(*refusal);
    return std::move(*chosen);
  };
  // Champions and what was tuned nearby come before the rule.
  if (chosen && chosen->step != dispatch::Step::rule) return result();
  const Family* family = nullptr;
  try {
    family = &default_family(w, device);
  } catch (const Error&) {
    return result();
  }
  const Variant wanted = make_variant(*family, family->default_config(w, device), w);
  if (chosen && chosen->variant.family == family && chosen->variant.config == wanted.config) return result();
  dispatch::BuiltPrograms built;
  std::string remark;
  if (const auto file = found_or_built(built, wanted, w, options, device, remark)) {
    const dispatch::ProgramRecord& record = file->records()[0];
    return {
        .variant = wanted,
        .image = file->image(record),
        .digest = record.digest,
        .origin = file->name(),
        .reason = fmt::format("the rule of {} names it for this problem; it was built on this machine", family->name()),
        .arch = record.arch};
  }
  if (remark.empty()) return result();
  const std::string text = fmt::format("; of the program that the rule of {} names: {}", family->name(), remark);
  if (refusal) throw Error(refusal->code(), refusal->what() + text, refusal->value());
  chosen->reason += text;
  chosen->is_building = options.build == HEED_BUILD_BACKGROUND;
  return result();
}

}  // namespace heed::api
