#include "profile/counters.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace heed::profile {
namespace {

struct Field {
  const char* key;
  std::optional<double> Counters::*member;
  std::vector<std::string> names;
};

// The tensor pipe of compute capability 8.9 is counted right by the second version of its metric.
const std::vector<Field>& fields() {
  static const std::vector<Field> all = {
      {"tensor_percent",
       &Counters::tensor_percent,
       {"sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"}},
      {"fma_percent",
       &Counters::fma_percent,
       {"sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"}},
      {"alu_percent",
       &Counters::alu_percent,
       {"sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active"}},
      {"xu_percent", &Counters::xu_percent, {"sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"}},
      {"issue_percent",
       &Counters::issue_percent,
       {"sm__issue_active.avg.pct_of_peak_sustained_active", "smsp__issue_active.avg.pct_of_peak_sustained_active"}},
      {"warps_percent", &Counters::warps_percent, {"sm__warps_active.avg.pct_of_peak_sustained_active"}},
      {"eligible_warps", &Counters::eligible_warps, {"smsp__warps_eligible.avg.per_cycle_active"}},
      {"active_percent", &Counters::active_percent, {"sm__cycles_active.avg.pct_of_peak_sustained_elapsed"}},
      {"dram_percent", &Counters::dram_percent, {"dram__throughput.avg.pct_of_peak_sustained_elapsed"}},
      {"dram_bytes", &Counters::dram_bytes, {"dram__bytes.sum"}},
      {"l2_percent", &Counters::l2_percent, {"lts__throughput.avg.pct_of_peak_sustained_elapsed"}},
      {"l2_bytes", &Counters::l2_bytes, {"lts__t_bytes.sum"}},
      {"shared_percent",
       &Counters::shared_percent,
       {"l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed"}},
      {"shared_wavefronts", &Counters::shared_wavefronts, {"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"}},
      {"shared_bank_conflicts",
       &Counters::shared_bank_conflicts,
       {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"}},
      {"cycles", &Counters::cycles, {"sm__cycles_elapsed.max"}},
      {"instructions", &Counters::instructions, {"sm__inst_executed.sum"}},
      {"duration_us", &Counters::duration_us, {"gpu__time_duration.sum"}},
      {"registers", &Counters::registers, {}},  // no counter: the worker asks the driver
  };
  return all;
}

constexpr std::array<std::string_view, 17> kStallReasons = {
    "barrier",          "branch_resolving", "dispatch_stall",     "drain",  "gmma",         "imc_miss",
    "lg_throttle",      "long_scoreboard",  "math_pipe_throttle", "membar", "mio_throttle", "no_instruction",
    "short_scoreboard", "sleeping",         "tex_throttle",       "wait",   "misc"};

std::string stall_key(std::string_view reason) {
  return "stall_" + std::string(reason);
}

}  // namespace

const std::vector<MetricChoice>& metric_choices() {
  static const std::vector<MetricChoice> all = [] {
    std::vector<MetricChoice> choices;
    for (const Field& field : fields())
      if (!field.names.empty()) choices.push_back({field.key, field.names});
    for (const std::string_view reason : kStallReasons)
      choices.push_back({stall_key(reason),
                         {"smsp__average_warps_issue_stalled_" + std::string(reason) + "_per_issue_active.ratio"}});
    return choices;
  }();
  return all;
}

std::optional<double> Counters::conflict_share() const {
  if (!shared_wavefronts || !shared_bank_conflicts || *shared_wavefronts <= 0) return std::nullopt;
  return std::clamp(*shared_bank_conflicts / *shared_wavefronts, 0.0, 1.0);
}

Counters counters_of(const CounterReading& reading) {
  Counters counters;
  const auto value = [&](const std::string& key) -> std::optional<double> {
    const auto found = reading.values.find(key);
    return found == reading.values.end() ? std::nullopt : std::optional(found->second);
  };
  for (const Field& field : fields()) counters.*field.member = value(field.key);
  if (counters.duration_us) *counters.duration_us /= 1000;  // CUPTI counts nanoseconds
  for (const std::string_view reason : kStallReasons)
    if (const auto warps = value(stall_key(reason)); warps && *warps > 0)
      counters.stalls.push_back({std::string(reason), *warps});
  std::stable_sort(counters.stalls.begin(), counters.stalls.end(),
                   [](const Stall& a, const Stall& b) { return a.warps > b.warps; });
  return counters;
}

std::vector<std::pair<std::string_view, double>> numbers_of(const Counters& counters) {
  std::vector<std::pair<std::string_view, double>> numbers;
  for (const Field& field : fields())
    if (const auto& value = counters.*field.member) numbers.emplace_back(field.key, *value);
  return numbers;
}

}  // namespace heed::profile
