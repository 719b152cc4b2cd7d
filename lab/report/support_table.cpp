#include "report/support_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "variant/family.hpp"
#include "workload/features.hpp"

namespace heed::report {
namespace {

constexpr std::string_view kTeachingFamily = "ladder";  // of `heed ladder`, which serves no one

template <typename Cell>
std::string row(std::string_view heading, const Cell& cell) {
  std::string text = fmt::format("| {} |", heading);
  for (const Family* family : families())
    if (family->name() != kTeachingFamily) text += fmt::format(" {} |", cell(*family));
  return text + "\n";
}

std::string names_of(const std::vector<Dtype>& dtypes) {
  std::vector<std::string_view> names;
  for (const Dtype dtype : dtypes) names.push_back(to_string(dtype));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string names_of(const std::vector<MaskKind>& masks) {
  std::vector<std::string_view> names;
  for (const MaskKind mask : masks) names.push_back(to_string(mask));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string support_table() {
  std::string text = row("", [](const Family& f) { return fmt::format("`{}`", f.name()); });
  text += row("---", [](const Family&) { return "---"; });
  text += row("dtypes", [](const Family& f) { return names_of(f.dtypes()); });
  text += row("head dims", [](const Family& f) { return f.head_dims().text(); });
  text += row("masks", [](const Family& f) { return names_of(f.masks()); });
  for (const FeatureName& feature : kFeatureNames)
    text += row(feature.words, [&](const Family& f) { return f.features().*(feature.member) ? "yes" : "no"; });
  text += row("quantised inputs", [](const Family& f) { return f.quantised().empty() ? "none" : f.quantised(); });
  return text;
}

}  // namespace heed::report
