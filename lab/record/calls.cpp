#include "record/calls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "json/fields.hpp"
#include "json/text.hpp"

namespace heed::record {
namespace {

using fields::member;
using nlohmann::json;

constexpr int kSchema = 1;
constexpr std::string_view kWhat = "calls";
constexpr std::string_view kWriter = "heed.record(\"calls.json\") of the Python package heed writes one";

// A row of a file, and the place it is named by.
class Row {
 public:
  Row(const json& row, std::string place) : row_(row), place_(std::move(place)) {
    if (!row.is_object()) refuse("is no object", json_text(row));
  }

  [[nodiscard]] std::string text(const char* key, bool needed) const {
    const json& value = member(row_, key);
    if (value.is_null() && !needed) return "";
    if (!value.is_string()) refuse(fmt::format("has {} where the text \"{}\" belongs", json_text(value), key), value);
    return value.get<std::string>();
  }

  [[nodiscard]] std::int64_t calls() const {
    const json& value = member(row_, "calls");
    const bool fits =
        value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1U << 31U);
    if (!fits || value.get<std::int64_t>() < 1)
      refuse(fmt::format("has {} where the number of calls, \"calls\", belongs: a whole number from 1 on",
                         json_text(value)),
             value);
    return value.get<std::int64_t>();
  }

  [[nodiscard]] double seconds() const {
    const json& value = member(row_, "seconds");
    if (value.is_null()) return 0;
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
      refuse(
          fmt::format("has {} where the time of the calls, \"seconds\", belongs: a number from 0 on", json_text(value)),
          value);
    return value.get<double>();
  }

  [[nodiscard]] Workload workload(const std::string& text) const {
    try {
      Workload workload = parse_workload(text);
      validate(workload);
      return reduced(workload);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", place_, error.what()), text);
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const json& value) const {
    throw Error(ErrorCode::usage, fmt::format("{} {}", place_, what), json_text(value));
  }

  const json& row_;
  std::string place_;
};

void add(std::vector<Calls>& all, const Calls& more) {
  const auto same = std::find_if(all.begin(), all.end(),
                                 [&](const Calls& one) { return to_string(one.workload) == to_string(more.workload); });
  if (same == all.end()) {
    all.push_back(more);
    return;
  }
  same->calls += more.calls;
  same->seconds += more.seconds;
}

}  // namespace

RecordedCalls parse_calls(std::string_view text, std::string_view name) {
  const json document = parse_json(text);
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::usage, fmt::format("{} {}; {}", name, what, kWriter), std::string(name));
  };
  if (document.is_discarded()) refuse("is no JSON");
  if (!document.is_object() || member(document, "what") != kWhat || !member(document, "rows").is_array())
    refuse("holds no calls of a model");
  if (member(document, "schema") != kSchema)
    refuse(fmt::format("is of schema {}; this Heed reads schema {}", json_text(member(document, "schema")), kSchema));
  RecordedCalls recorded;
  if (const json& device = member(document, "device"); device.is_string()) recorded.device = device.get<std::string>();
  std::size_t number = 0;
  for (const json& entry : document["rows"]) {
    const Row row(entry, fmt::format("{}: row {}", name, ++number));
    const std::string workload = row.text("workload", /*needed=*/true);
    const std::string form = row.text("form", /*needed=*/false);
    if (!workload.empty() && form.empty())
      add(recorded.calls, {.workload = row.workload(workload), .calls = row.calls(), .seconds = row.seconds()});
    else
      recorded.others.push_back({.workload = workload,
                                 .calls = row.calls(),
                                 .seconds = row.seconds(),
                                 .reason = !workload.empty() ? "has " + form
                                           : form.empty()    ? "no form of attention"
                                                             : "no form of attention: " + form});
  }
  return recorded;
}

}  // namespace heed::record
