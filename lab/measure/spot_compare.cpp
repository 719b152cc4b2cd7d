// Outputs that two slots left where they were stopped, compared with each other.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <numeric>

#include "base/parallel.hpp"
#include "measure/spot_check.hpp"
#include "workload/elements.hpp"

namespace heed::measure {
namespace {

constexpr std::size_t kAtOnce = 64;  // elements of a row

}  // namespace

SpotCheck::Outputs SpotCheck::outputs(worker::Worker& worker, const Image& image) const {
  Outputs result;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const std::byte* at = output_of(worker, image, i);
    result.writers.push_back(writer(outputs_[i], image.stopped));
    result.turned.push_back(is_turned(result.writers.back(), image.stopped));
    // The next slot's image takes the arena's place; a kept image stays.
    if (image.kept.empty()) at = result.copies.emplace_back(at, at + sets_.scene(0).o().bytes).data();
    result.at.push_back(at);
  }
  return result;
}

// Each is within the tolerance of the oracle, so they are within twice that of each other. It is calibrated on sampled
// rows: a row of larger outputs may be off by as much more.
verify::Comparison SpotCheck::compare(const Outputs& base, const Outputs& trial) const {
  verify::Comparison result;
  const auto whole = std::find_if(references_.begin(), references_.end(),
                                  [](const auto& one) { return std::get<double>(one.first) == 1; });
  if (whole == references_.end()) return result;
  const verify::Reference& reference = whole->second;
  const double absolute = 2 * reference.tolerance.max_abs;
  const double relative = 2 * reference.tolerance.worst_row;
  const double largest = std::max(reference.unfused.largest, 1e-30);
  const Workload& w = sets_.workload();
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (base.writers[i] != trial.writers[i] || base.turned[i] != trial.turned[i] || base.writers[i] == kUnderWay)
      continue;
    // Rows are as many in every replay.
    const int by = base.writers[i] == kEarlier ? last_writer(outputs_[i], sets_.plan().launches) : base.writers[i];
    const verify::Scene& scene = sets_.scene(sets_.sources(by).q);
    const std::int64_t rows = w.batch * w.heads * w.len_q;
    std::vector<double> errors(static_cast<std::size_t>(rows));  // squares
    std::vector<double> norms(static_cast<std::size_t>(rows));
    std::mutex mutex;
    const auto fail = [&](std::int64_t row, const std::string& text) {
      const std::lock_guard lock(mutex);
      result.finding = Finding::inexact;
      result.text = fmt::format(
          "in the timed launches (stopped in replay {}, launch {} of {}), output {}, (batch {}, head {}, row {}): {}",
          replays_ + 1, launches_, sets_.plan().launches, outputs_[i], row / w.len_q / w.heads, row / w.len_q % w.heads,
          row % w.len_q, text);
    };
    parallel_for(rows, 0, [&](std::int64_t row) {
      const RowIndex index{row / w.len_q / w.heads, row / w.len_q % w.heads, row % w.len_q};
      if (index.row >= scene.rows_of(index.batch)) return;  // an entry of fewer rows
      const std::size_t at = scene.o_index(index);
      double error = 0;
      double norm = 0;
      double worst = 0;
      double row_largest = 0;
      for (std::size_t begin = 0; begin < static_cast<std::size_t>(w.dim_v); begin += kAtOnce) {
        const std::size_t count = std::min(kAtOnce, static_cast<std::size_t>(w.dim_v) - begin);
        std::array<double, kAtOnce> want{};
        std::array<double, kAtOnce> got{};
        load_elements(w.dtype, base.at[i], at + begin, count, want.data());
        load_elements(w.dtype, trial.at[i], at + begin, count, got.data());
        for (std::size_t d = 0; d < count; ++d) {
          error += (got[d] - want[d]) * (got[d] - want[d]);
          norm += want[d] * want[d];
          worst = std::max(worst, std::abs(got[d] - want[d]));
          row_largest = std::max(row_largest, std::abs(want[d]));
        }
      }
      errors[static_cast<std::size_t>(row)] = error;
      norms[static_cast<std::size_t>(row)] = norm;
      const double limit = absolute * std::max(1.0, row_largest / largest);
      if (worst > limit) fail(row, fmt::format("{:.3g} from the base's output, allowed {:.3g}", worst, limit));
    });
    const double smallest = 0.1 * std::sqrt(std::accumulate(norms.begin(), norms.end(), 0.0) /
                                            static_cast<double>(std::max<std::int64_t>(1, rows)));
    for (std::int64_t row = 0; row < rows && result.finding == Finding::none; ++row) {
      const double norm = std::max(std::sqrt(norms[static_cast<std::size_t>(row)]), smallest);
      const double error = std::sqrt(errors[static_cast<std::size_t>(row)]);
      if (error > relative * norm)
        fail(row, fmt::format("{:.3g} of its norm from the base's output, allowed {:.3g}", error / norm, relative));
    }
    if (result.finding != Finding::none) return result;
  }
  return result;
}

}  // namespace heed::measure
