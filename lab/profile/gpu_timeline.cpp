#include "profile/gpu_timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "heed/heed.hpp"

namespace heed::profile {
namespace {

constexpr double kSeconds = 1e-9;  // exports count nanoseconds
constexpr double kMicroseconds = 1e-3;

// A report as CSV (RFC 4180): names of kernels hold commas, and stand in quotes.
class CsvReport {
 public:
  CsvReport(std::string_view text, std::string_view report) : rest_(text), report_(report) {
    std::vector<std::string> row;
    if (!next(row)) refuse("it is empty", "");
    columns_ = std::move(row);
  }

  [[nodiscard]] std::size_t column(std::string_view name) const {
    const auto found = std::find(columns_.begin(), columns_.end(), name);
    if (found == columns_.end())
      refuse(fmt::format("its first line names no column \"{}\"", name), columns_.empty() ? "" : columns_.front());
    return static_cast<std::size_t>(found - columns_.begin());
  }
  [[nodiscard]] std::optional<std::size_t> column_if_any(std::string_view name) const {
    const auto found = std::find(columns_.begin(), columns_.end(), name);
    if (found == columns_.end()) return std::nullopt;
    return static_cast<std::size_t>(found - columns_.begin());
  }

  // @throws Error(invalid_input) for a row with fewer or more fields than there are columns
  bool next_row(std::vector<std::string>& row) {
    do
      if (!next(row)) return false;
    while (row.size() == 1 && row.front().empty());
    if (row.size() != columns_.size())
      refuse(fmt::format("line {} has {} fields where the first has {}: it is truncated, or no such report", line_,
                         row.size(), columns_.size()),
             row.front());
    return true;
  }

  [[nodiscard]] std::int64_t integer(const std::vector<std::string>& row, std::size_t column) const {
    const std::string& text = row[column];
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      refuse(fmt::format("line {} has \"{}\" for {}, which is no whole number", line_, text, columns_[column]), text);
    return value;
  }

  // @return an interval of a row that gives its beginning and its end
  [[nodiscard]] Interval interval(const std::vector<std::string>& row, std::int64_t begin, std::int64_t end) const {
    if (end < begin) refuse(fmt::format("line {} ends before it begins", line_), row.front());
    return {begin, end};
  }

  [[noreturn]] void refuse(const std::string& why, const std::string& offending) const {
    throw Error(ErrorCode::invalid_input,
                fmt::format("the report {} of Nsight Systems cannot be read: {}", report_, why), offending);
  }

 private:
  bool next(std::vector<std::string>& row) {
    row.clear();
    if (rest_.empty()) return false;
    ++line_;
    std::string field;
    bool quoted = false;
    std::size_t at = 0;
    for (; at < rest_.size(); ++at) {
      const char c = rest_[at];
      if (quoted && c == '"' && at + 1 < rest_.size() && rest_[at + 1] == '"') {
        field += '"';
        ++at;
      } else if (c == '"') {
        quoted = !quoted;
      } else if (!quoted && c == ',') {
        row.push_back(std::move(field));
        field.clear();
      } else if (!quoted && c == '\n') {
        break;
      } else if (quoted || c != '\r') {
        field += c;
      }
    }
    if (quoted) refuse(fmt::format("a quote of line {} does not end: it is truncated", line_), field.substr(0, 80));
    row.push_back(std::move(field));
    rest_.remove_prefix(std::min(at + 1, rest_.size()));
    return true;
  }

  std::string_view rest_;
  std::string report_;
  std::vector<std::string> columns_;
  std::size_t line_ = 0;
};

GpuActivity::Kind kind_of(std::string_view name) {
  if (name.starts_with("[CUDA memcpy")) return GpuActivity::Kind::copy;
  if (name.starts_with("[CUDA memset")) return GpuActivity::Kind::set;
  return GpuActivity::Kind::kernel;
}

Gaps gaps_of(std::vector<double> us) {
  Gaps gaps;
  gaps.count = us.size();
  if (us.empty()) return gaps;
  std::sort(us.begin(), us.end());
  const auto quantile = [&](double share) {
    const double place = share * static_cast<double>(us.size() - 1);
    const auto below = static_cast<std::size_t>(std::floor(place));
    const std::size_t above = std::min(below + 1, us.size() - 1);
    return us[below] + (place - std::floor(place)) * (us[above] - us[below]);
  };
  gaps.median_us = quantile(0.5);
  gaps.lower_quartile_us = quantile(0.25);
  gaps.upper_quartile_us = quantile(0.75);
  gaps.largest_us = us.back();
  return gaps;
}

std::string first_word(const std::string& name) {
  return name.substr(0, name.find(' '));
}

}  // namespace

std::vector<GpuActivity> read_gpu_trace(std::string_view csv) {
  CsvReport report(csv, "cuda_gpu_trace");
  const std::size_t start = report.column("Start (ns)");
  const std::size_t duration = report.column("Duration (ns)");
  const std::size_t name = report.column("Name");
  const std::optional<std::size_t> device = report.column_if_any("Device");
  std::vector<GpuActivity> activities;
  for (std::vector<std::string> row; report.next_row(row);) {
    const std::int64_t begin = report.integer(row, start);
    GpuActivity& one = activities.emplace_back();
    one.ns = report.interval(row, begin, begin + report.integer(row, duration));
    one.name = row[name];
    one.kind = kind_of(one.name);
    if (device) one.device = row[*device];
  }
  return activities;
}

std::vector<NamedRange> read_range_trace(std::string_view csv) {
  CsvReport report(csv, "nvtx_pushpop_trace");
  const std::size_t start = report.column("Start (ns)");
  const std::size_t end = report.column("End (ns)");
  const std::size_t name = report.column("Name");
  std::vector<NamedRange> ranges;
  for (std::vector<std::string> row; report.next_row(row);) {
    NamedRange& one = ranges.emplace_back();
    one.ns = report.interval(row, report.integer(row, start), report.integer(row, end));
    // "domain:name"; the default domain has an empty name. A name of ours begins with a word, and may hold colons.
    one.name = row[name].substr(row[name].starts_with(':') ? 1 : row[name].starts_with("heed:") ? 5 : 0);
  }
  return ranges;
}

TimelineSummary summarise(const GpuTimeline& timeline, std::string_view entry) {
  TimelineSummary summary;
  std::vector<Interval> all, kernels, copies;
  std::map<std::string, std::vector<const GpuActivity*>> by_device;
  for (const GpuActivity& one : timeline.activities) {
    all.push_back(one.ns);
    switch (one.kind) {
      case GpuActivity::Kind::kernel:
        ++summary.kernels;
        kernels.push_back(one.ns);
        by_device[one.device].push_back(&one);
        break;
      case GpuActivity::Kind::copy:
        ++summary.copies;
        copies.push_back(one.ns);
        break;
      case GpuActivity::Kind::set:
        ++summary.sets;
        break;
    }
  }
  if (kernels.empty())
    throw Error(ErrorCode::invalid_input,
                "the timeline holds no kernel: Nsight Systems has recorded nothing of the GPU; it must be able to "
                "follow the worker processes of Heed, and must be of a version that knows the driver");
  std::int64_t begin = all.front().begin;
  std::int64_t end = all.front().end;
  for (const Interval& one : all) {
    begin = std::min(begin, one.begin);
    end = std::max(end, one.end);
  }
  const double span = std::max(1.0, static_cast<double>(end - begin));
  const std::vector<Interval> busy = merged(all);
  kernels = merged(std::move(kernels));
  copies = merged(std::move(copies));
  summary.seconds = span * kSeconds;
  summary.busy_share = length_of(busy) / span;
  summary.kernel_share = length_of(kernels) / span;
  summary.copy_seconds = length_of(copies) * kSeconds;
  if (!copies.empty()) summary.overlap_share = overlap_of(copies, kernels) / length_of(copies);

  std::vector<double> gaps, own;
  for (auto& [device, launches] : by_device) {
    std::stable_sort(launches.begin(), launches.end(),
                     [](const GpuActivity* a, const GpuActivity* b) { return a->ns.begin < b->ns.begin; });
    std::int64_t ended = launches.front()->ns.end;
    for (std::size_t i = 1; i < launches.size(); ++i) {
      const std::int64_t gap = std::max<std::int64_t>(0, launches[i]->ns.begin - ended);
      gaps.push_back(static_cast<double>(gap) * kMicroseconds);
      if (launches[i - 1]->name == entry && launches[i]->name == entry) own.push_back(gaps.back());
      ended = std::max(ended, launches[i]->ns.end);
    }
  }
  summary.gaps = gaps_of(std::move(gaps));
  summary.own_gaps = gaps_of(std::move(own));

  std::map<std::string, std::vector<Interval>> by_name;
  for (const NamedRange& one : timeline.ranges) by_name[first_word(one.name)].push_back(one.ns);
  for (auto& [name, intervals] : by_name) {
    RangeSummary& range = summary.ranges.emplace_back();
    range.name = name;
    range.count = intervals.size();
    for (const Interval& one : intervals) range.seconds += static_cast<double>(one.end - one.begin) * kSeconds;
    range.busy_seconds = overlap_of(merged(std::move(intervals)), busy) * kSeconds;
  }
  std::stable_sort(summary.ranges.begin(), summary.ranges.end(),
                   [](const RangeSummary& a, const RangeSummary& b) { return a.seconds > b.seconds; });
  return summary;
}

}  // namespace heed::profile
