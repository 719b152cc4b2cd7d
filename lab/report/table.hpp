/// Plain-text tables: first column left, the others right, two spaces between.
#pragma once

#include <string>
#include <vector>

namespace heed::report {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// Columns that hold words are aligned left.
  void align_left(std::size_t column) { left_.push_back(column); }
  [[nodiscard]] std::string str() const;
  [[nodiscard]] bool empty() const { return rows_.size() == 1; }

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> left_ = {0};
};

}  // namespace heed::report
