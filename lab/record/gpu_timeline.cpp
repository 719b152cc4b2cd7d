#include "record/gpu_timeline.hpp"

namespace heed::record {

nlohmann::json to_json(const profile::Gaps& gaps) {
  return {{"count", gaps.count},
          {"median_us", gaps.median_us},
          {"lower_quartile_us", gaps.lower_quartile_us},
          {"upper_quartile_us", gaps.upper_quartile_us},
          {"largest_us", gaps.largest_us}};
}

nlohmann::json to_json(const profile::TimelineSummary& summary) {
  nlohmann::json ranges = nlohmann::json::array();
  for (const profile::RangeSummary& range : summary.ranges)
    ranges.push_back({{"name", range.name},
                      {"count", range.count},
                      {"seconds", range.seconds},
                      {"busy_seconds", range.busy_seconds}});
  return {{"kernels", summary.kernels},
          {"copies", summary.copies},
          {"sets", summary.sets},
          {"seconds", summary.seconds},
          {"busy_share", summary.busy_share},
          {"kernel_share", summary.kernel_share},
          {"copy_seconds", summary.copy_seconds},
          {"overlap_share", summary.overlap_share},
          {"gaps", to_json(summary.gaps)},
          {"own_gaps", to_json(summary.own_gaps)},
          {"ranges", std::move(ranges)}};
}

}  // namespace heed::record
