#include "dispatch/selection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "padding/padding.hpp"

namespace heed::dispatch {
namespace {

int differing_knobs(const Config& a, const Config& b) {
  int count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 0 : 1;
  return count;
}

}  // namespace

Programs::Programs(std::shared_ptr<const ProgramFile> file, const DeviceFacts& device)
    : file_(std::move(file)), device_(device) {
  for (const ProgramRecord& record : file_->records()) {
    const ArchFit fit = arch_fit(record.arch, device_);
    if (fit == ArchFit::none) continue;
    if (record.variant == padding::kCopyProgram) {
      if (copies_ == nullptr || fit > arch_fit(copies_->arch, device_)) copies_ = &record;
      continue;
    }
    try {
      entries_.push_back({&record, parse_variant(record.variant, parse_workload(record.workload), device_), fit});
    } catch (const Error& error) {
      throw Error(ErrorCode::programs,
                  fmt::format("{} holds a program that this library does not know: {}", file_->name(), error.what()),
                  record.variant);
    }
  }
}

std::pair<const Programs::Entry*, int> Programs::nearest(const Family& family, const Workload& workload) const {
  const Config wanted = family.default_config(workload, device_);
  const Entry* best = nullptr;
  int fewest = 0;
  for (const Entry& entry : entries_) {
    const Variant& v = entry.variant;
    if (v.family != &family || !v.runs(workload) || v.is_illegal(workload, device_)) continue;
    const int differ = differing_knobs(v.config, wanted) + (v.specialization == Specialization{} ? 0 : 1);
    if (best != nullptr && (entry.fit < best->fit || (entry.fit == best->fit && differ >= fewest))) continue;
    best = &entry;
    fewest = differ;
  }
  return {best, fewest};
}

Selection Programs::select(const Workload& workload) const {
  const Family& own = default_family(workload, device_);  // throws where none runs it
  std::vector<const Family*> order = {&own};
  for (const Family* family : searched_families(workload, device_))
    if (family != &own) order.push_back(family);
  for (const Family* family : order) {
    if (family->refuses(workload, device_)) continue;
    const auto [best, differ] = nearest(*family, workload);
    if (best == nullptr) continue;
    const std::string why = differ == 0
                                ? fmt::format("the rule of {} names it for this problem", family->name())
                                : fmt::format("of {}'s programs it is nearest to what the rule names, {} knobs differ",
                                              family->name(), differ);
    return {best->record, best->variant, why + fit_remark(best->record->arch, device_)};
  }
  std::set<std::string> there;
  for (const Entry& entry : entries_) there.insert(to_string(entry.variant.problem));
  throw Error(ErrorCode::unsupported,
              fmt::format("{} holds no program for {} on {}; for that architecture it has {}", file_->name(),
                          to_string(problem_of(workload)), device_.arch,
                          there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", "))),
              to_string(workload));
}

Selection Programs::find(const Variant& variant) const {
  for (const Entry& entry : entries_)
    if (entry.variant.family == variant.family && entry.variant.config == variant.config &&
        entry.variant.specialization == variant.specialization && entry.variant.problem == variant.problem)
      return {entry.record, entry.variant, "it was asked for" + fit_remark(entry.record->arch, device_)};
  throw Error(ErrorCode::unsupported,
              fmt::format("{} holds no program of {}; build it with heed build and give its image", file_->name(),
                          describe(variant)),
              describe(variant));
}

}  // namespace heed::dispatch
