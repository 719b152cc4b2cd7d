#include "report/devices.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "json/fields.hpp"
#include "report/table.hpp"
#include "report/values.hpp"

namespace heed::report {

using fields::member;
using fields::number;
using fields::text_of;

namespace {

using nlohmann::json;

// Trials of processes that worked on the search, over the minutes in which they did. 0 where that is not known.
double trials_a_minute(const json& searches, const std::vector<store::TrialRecord>& trials) {
  double seconds = 0;
  std::size_t made = 0;
  for (std::size_t i = 0; i < searches.size(); ++i) {
    const auto begin = static_cast<std::size_t>(number(searches[i], "trials_before"));
    const auto end =
        i + 1 < searches.size() ? static_cast<std::size_t>(number(searches[i + 1], "trials_before")) : trials.size();
    double last_s = number(searches[i], "began_s");
    for (std::size_t n = begin; n < std::min(end, trials.size()); ++n) {
      if (trials[n].device.empty()) continue;  // what an ablation found is judged behind the search
      ++made;
      last_s = std::max(last_s, trials[n].run_elapsed_s);
    }
    seconds += last_s - number(searches[i], "began_s");
  }
  return seconds > 0 ? 60 * static_cast<double>(made) / seconds : 0;
}

}  // namespace

json devices_json(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials) {
  const json& known = member(run.base, "devices");
  if (!known.is_array() || known.empty()) return nullptr;
  json devices = json::array();
  for (const json& one : known) {
    const std::string name = text_of(one, "name");
    json numbers = json::array();
    for (const store::TrialRecord& trial : trials)
      if (trial.device == name) numbers.push_back(trial.number);
    devices.push_back({{"name", name},
                       {"base_us", member(one, "us")},
                       {"self_spread", member(one, "self_spread")},
                       {"processors", text_of(one, "processors")},
                       {"processors_of_workers", text_of(one, "processors_of_workers")},
                       {"lost", member(one, "lost")},
                       {"trials", std::move(numbers)}});
  }
  return {{"devices", std::move(devices)}, {"trials_a_minute", trials_a_minute(member(run.base, "searches"), trials)}};
}

std::string devices_text(const store::RunRecord& run, const std::vector<store::TrialRecord>& trials) {
  const json all = devices_json(run, trials);
  if (!all.is_object()) return {};
  Table table({"device", "trials", "base us", "base against itself", "lost"});
  table.align_left(0);
  table.align_left(4);
  for (const json& one : all["devices"])
    table.add({text_of(one, "name"), std::to_string(one["trials"].size()), us_text(number(one, "base_us")),
               fmt::format("within {:.4f} of 1", number(one, "self_spread")), text_of(one, "lost").substr(0, 100)});
  std::string text = "\n" + table.str();
  if (const double rate = number(all, "trials_a_minute"); rate > 0)
    text += fmt::format("{:.1f} trials a minute\n", rate);
  return text;
}

}  // namespace heed::report
