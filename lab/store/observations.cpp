#include "store/observations.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "heed/heed.hpp"

namespace heed::store {
namespace {

constexpr const char* kObservationColumns =
    "id, family, change, diff, sentence, workload, arch, device, bound_before, bound_after, ratio, low, high, origin, "
    "created";

bool is_ratio(double value) {
  return std::isfinite(value) && value > 0;
}

}  // namespace

bool add_observation(Store& store, const ObservationRecord& o) {
  Database& database = store.database();
  Transaction transaction(database);
  Statement known = database.prepare("SELECT id FROM observations WHERE origin = ? AND change = ?");
  known.add(o.origin).add(o.change);
  if (known.step()) return false;
  Statement insert = database.prepare(fmt::format(
      "INSERT INTO observations ({}) VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", kObservationColumns));
  for (const std::string* text :
       {&o.family, &o.change, &o.diff, &o.sentence, &o.workload, &o.arch, &o.device, &o.bound_before, &o.bound_after})
    insert.add(*text);
  insert.add(o.ratio).add(o.low).add(o.high).add(o.origin).add(o.created);
  insert.run();
  transaction.commit();
  return true;
}

std::vector<ObservationRecord> observations(Store& store, const std::optional<std::string>& family) {
  Database& database = store.database();
  Statement row = database.prepare(
      fmt::format("SELECT {} FROM observations {} ORDER BY id", kObservationColumns, family ? "WHERE family = ?" : ""));
  if (family) row.add(*family);
  std::vector<ObservationRecord> all;
  while (row.step()) {
    ObservationRecord o;
    int column = 0;
    o.id = row.integer(column++);
    for (std::string* text :
         {&o.family, &o.change, &o.diff, &o.sentence, &o.workload, &o.arch, &o.device, &o.bound_before, &o.bound_after})
      *text = row.text(column++);
    for (double* value : {&o.ratio, &o.low, &o.high}) *value = row.real(column++);
    o.origin = row.text(column++);
    o.created = row.text(column);
    if (!is_ratio(o.ratio) || !is_ratio(o.low) || !is_ratio(o.high))
      throw Error(ErrorCode::store,
                  fmt::format("the database {} is damaged: observation {} has no ratio", database.path(), o.id),
                  database.path());
    all.push_back(std::move(o));
  }
  return all;
}

nlohmann::json to_json(const ObservationRecord& o) {
  return {{"family", o.family},           {"change", o.change},  {"diff", o.diff},     {"sentence", o.sentence},
          {"workload", o.workload},       {"arch", o.arch},      {"device", o.device}, {"bound_before", o.bound_before},
          {"bound_after", o.bound_after}, {"ratio", o.ratio},    {"low", o.low},       {"high", o.high},
          {"origin", o.origin},           {"created", o.created}};
}

ObservationRecord observation_from_json(const nlohmann::json& json) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::usage, fmt::format("an observation {}; heed insights export writes whole ones", what));
  };
  if (!json.is_object()) refuse("is an object");
  const auto text = [&](const char* name) {
    if (!json.contains(name) || !json[name].is_string()) refuse(fmt::format("has a text \"{}\"", name));
    return json[name].get<std::string>();
  };
  const auto ratio = [&](const char* name) {
    const double value = json.contains(name) && json[name].is_number() ? json[name].get<double>() : 0;
    if (!is_ratio(value)) refuse(fmt::format("has a positive number \"{}\"", name));
    return value;
  };
  ObservationRecord o;
  o.family = text("family");
  o.change = text("change");
  o.diff = text("diff");
  o.sentence = text("sentence");
  o.workload = text("workload");
  o.arch = text("arch");
  o.device = text("device");
  o.bound_before = text("bound_before");
  o.bound_after = text("bound_after");
  o.ratio = ratio("ratio");
  o.low = ratio("low");
  o.high = ratio("high");
  if (o.low > o.ratio || o.ratio > o.high) refuse("has an interval around its ratio");
  o.origin = text("origin");
  o.created = text("created");
  if (o.family.empty() || o.change.empty() || o.origin.empty()) refuse("names its family, change and origin");
  return o;
}

}  // namespace heed::store
