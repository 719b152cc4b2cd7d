/// What heed verify says of errors on inputs as models send them, beside the unfused computation's
/// (against_unfused.hpp).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "verify/against_unfused.hpp"

namespace heed::cli {

class UnfusedBar {
 public:
  /// Takes note of the checks of one variant: of given tensors alone where there are such, else of every class of
  /// inputs as models send them. Of a check with and without a log-sum-exp the worse one counts.
  /// @param file of given tensors; empty where inputs are drawn
  void add(const Workload& workload, const std::string& file, std::string_view family,
           const verify::GateReport& report);

  [[nodiscard]] bool is_empty() const { return rows_.empty(); }
  /// Whether every one keeps to the bar.
  [[nodiscard]] bool is_within() const;
  /// One line: how many were compared, the largest multiples, and how many are over the bar.
  [[nodiscard]] std::string summary() const;
  /// A line for each: errors, the unfused computation's, and how many times as large.
  [[nodiscard]] std::string table() const;
  /// The same as JSON, an object a line.
  [[nodiscard]] nlohmann::json rows() const;

 private:
  struct Row {
    Workload workload;
    std::string inputs;
    std::string family;
    verify::CheckResult check;
    verify::AgainstUnfused times;
  };
  std::vector<Row> rows_;
};

}  // namespace heed::cli
