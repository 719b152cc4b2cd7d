/// Tables of a page: of cells, of the fields of JSON, and of two objects side by side.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace heed::report {

/// A table; cells are escaped here. Columns [numeric_from, numeric_to) are numbers.
class HtmlTable {
 public:
  HtmlTable(const std::string& caption, const std::vector<std::string>& head, std::size_t numeric_from = 1,
            std::size_t numeric_to = 99);
  void add(const std::vector<std::string>& cells, const char* style = "");
  [[nodiscard]] bool empty() const { return rows_ == 0; }
  [[nodiscard]] std::string str() const { return html_ + "</tbody></table></div>\n"; }

 private:
  [[nodiscard]] bool is_number(std::size_t column) const { return column >= numeric_from_ && column < numeric_to_; }
  std::string html_;
  std::size_t numeric_from_;
  std::size_t numeric_to_;
  int rows_ = 0;
};

std::string scalar_text(const nlohmann::json& value);
/// Nested objects as "a / b / c" and text, arrays of scalars in one line; empty where there is no field.
std::string fields_table(const std::string& caption, const nlohmann::json& object);
/// Two objects of like shape side by side; empty where neither has a field.
std::string comparison_table(const std::string& caption, const nlohmann::json& base, const nlohmann::json& champion);

}  // namespace heed::report
