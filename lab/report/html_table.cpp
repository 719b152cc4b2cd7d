#include "report/html_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/text.hpp"
#include "report/svg.hpp"

namespace heed::report {

using nlohmann::json;

HtmlTable::HtmlTable(const std::string& caption, const std::vector<std::string>& head, std::size_t numeric_from,
                     std::size_t numeric_to)
    : numeric_from_(numeric_from), numeric_to_(numeric_to) {
  html_ = "<div class=\"scroll\"><table>";
  if (!caption.empty()) html_ += "<caption>" + escape(caption) + "</caption>";
  html_ += "<thead><tr>";
  for (std::size_t i = 0; i < head.size(); ++i)
    html_ += fmt::format("<th scope=\"col\"{}>{}</th>", is_number(i) ? " class=\"n\"" : "", escape(head[i]));
  html_ += "</tr></thead><tbody>";
}

void HtmlTable::add(const std::vector<std::string>& cells, const char* style) {
  html_ += *style != '\0' ? fmt::format("<tr class=\"{}\">", style) : std::string("<tr>");
  for (std::size_t i = 0; i < cells.size(); ++i)
    html_ += fmt::format("<td{}>{}</td>", is_number(i) ? " class=\"n\"" : "", escape(cells[i]));
  html_ += "</tr>";
  ++rows_;
}

std::string scalar_text(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  if (value.is_null()) return "-";
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

namespace {

void flatten(const json& value, const std::string& path, std::vector<std::pair<std::string, std::string>>& rows) {
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + " / " + key; };
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) flatten(inner, below(key), rows);
    return;
  }
  const bool nested =
      value.is_array() && std::any_of(value.begin(), value.end(), [](const json& v) { return v.is_structured(); });
  if (nested) {
    for (std::size_t i = 0; i < value.size(); ++i) flatten(value[i], below(std::to_string(i + 1)), rows);
    return;
  }
  if (!value.is_array()) {
    rows.emplace_back(path, scalar_text(value));
    return;
  }
  std::vector<std::string> parts;
  for (const json& part : value) parts.push_back(scalar_text(part));
  rows.emplace_back(path, join(parts, ", "));
}

}  // namespace

std::string fields_table(const std::string& caption, const json& object) {
  std::vector<std::pair<std::string, std::string>> rows;
  flatten(object, "", rows);
  HtmlTable table(caption, {"", ""}, 2);
  for (const auto& [name, value] : rows) table.add({name, value});
  return table.empty() ? std::string() : table.str();
}

std::string comparison_table(const std::string& caption, const json& base, const json& champion) {
  std::vector<std::pair<std::string, std::string>> left, right;
  if (base.is_structured()) flatten(base, "", left);
  if (champion.is_structured()) flatten(champion, "", right);
  std::vector<std::string> order;
  std::map<std::string, std::pair<std::string, std::string>> rows;
  for (const auto& [name, value] : left) {
    order.push_back(name);
    rows[name].first = value;
  }
  for (const auto& [name, value] : right) {
    if (rows.count(name) == 0) order.push_back(name);
    rows[name].second = value;
  }
  HtmlTable table(caption, {"", "base", "champion"});
  for (const std::string& name : order)
    table.add(
        {name, rows[name].first.empty() ? "-" : rows[name].first, rows[name].second.empty() ? "-" : rows[name].second});
  return table.empty() ? std::string() : table.str();
}

}  // namespace heed::report
