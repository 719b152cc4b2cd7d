#include "cli/unfused_bar.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "record/json.hpp"
#include "report/table.hpp"

namespace heed::cli {
namespace {

// How near to the bar, or how far over it.
double share_of_bar(const verify::AgainstUnfused& times) {
  return std::max(times.max_abs / verify::kMostTimesMaxAbs, times.rel_rms / verify::kMostTimesRelRms);
}

}  // namespace

void UnfusedBar::add(const Workload& workload, const std::string& file, std::string_view family,
                     const verify::GateReport& report) {
  const std::size_t first = rows_.size();
  for (const verify::CheckResult& check : report.checks) {
    const auto times = verify::against_unfused(workload, check);
    const std::string name = check.name.substr(0, check.name.find(','));
    if (!times || (!file.empty() && name != verify::kGivenTensors)) continue;
    const std::string inputs = file.empty() ? name : std::filesystem::path(file).stem().string();
    const auto same = std::find_if(rows_.begin() + static_cast<std::ptrdiff_t>(first), rows_.end(),
                                   [&](const Row& row) { return row.inputs == inputs; });
    if (same == rows_.end())
      rows_.push_back({workload, inputs, std::string(family), check, *times});
    else if (share_of_bar(*times) > share_of_bar(same->times))
      *same = {workload, inputs, std::string(family), check, *times};
  }
}

bool UnfusedBar::is_within() const {
  return std::all_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.times.is_within(); });
}

std::string UnfusedBar::summary() const {
  verify::AgainstUnfused most;
  for (const Row& row : rows_) {
    most.max_abs = std::max(most.max_abs, row.times.max_abs);
    most.rel_rms = std::max(most.rel_rms, row.times.rel_rms);
  }
  const auto over = std::count_if(rows_.begin(), rows_.end(), [](const Row& row) { return !row.times.is_within(); });
  return fmt::format(
      "inputs as models send them: max|error| up to {:.2f}x, relative RMS up to {:.2f}x of the unfused computation's; "
      "{} of {} over the bar of {}x and {}x",
      most.max_abs, most.rel_rms, over, rows_.size(), verify::kMostTimesMaxAbs, verify::kMostTimesRelRms);
}

std::string UnfusedBar::table() const {
  report::Table table(
      {"inputs", "workload", "family", "max|error|", "unfused", "times", "rel. RMS", "unfused", "times"});
  table.align_left(1);
  table.align_left(2);
  for (const Row& row : rows_)
    table.add({row.inputs, to_string(row.workload), row.family, fmt::format("{:.2e}", row.check.error.max_abs),
               fmt::format("{:.2e}", row.check.unfused.max_abs), fmt::format("{:.2f}", row.times.max_abs),
               fmt::format("{:.2e}", row.check.error.rel_rms), fmt::format("{:.2e}", row.check.unfused.rel_rms),
               fmt::format("{:.2f}", row.times.rel_rms)});
  return table.str();
}

nlohmann::json UnfusedBar::rows() const {
  nlohmann::json all = nlohmann::json::array();
  for (const Row& row : rows_)
    all.push_back({{"inputs", row.inputs},
                   {"workload", to_string(row.workload)},
                   {"family", row.family},
                   {"error", record::to_json(row.check.error)},
                   {"unfused", record::to_json(row.check.unfused)},
                   {"times_unfused", {{"max_abs", row.times.max_abs}, {"rel_rms", row.times.rel_rms}}}});
  return all;
}

}  // namespace heed::cli
