#include "insights/harvest.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "base/text.hpp"
#include "json/fields.hpp"

namespace heed::insights {
namespace {

using store::ObservationRecord;
using store::RunRecord;
using store::TrialRecord;

constexpr double kNarrow = 0.02;  // an interval around 1 below which a change is known to do nothing

std::map<std::string, std::string> knobs_of(std::string_view config) {
  std::map<std::string, std::string> knobs;
  const std::size_t colon = config.find(':');
  if (colon == std::string_view::npos) return knobs;
  for (const std::string& setting : split(config.substr(colon + 1), ',')) {
    const std::size_t equals = setting.find('=');
    if (equals != std::string::npos) knobs[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  return knobs;
}

bool decides(const ObservationRecord& o) {
  const bool is_sound =
      std::isfinite(o.low) && std::isfinite(o.high) && o.low > 0 && o.low <= o.ratio && o.ratio <= o.high;
  return is_sound && (o.low > 1 || o.high < 1 || o.high - o.low < kNarrow);
}

std::string text_of(const KnobChange& change) {
  return fmt::format("{} {} -> {}", change.knob, change.from, change.to);
}

}  // namespace

std::string family_of(std::string_view config) {
  return std::string(config.substr(0, config.find(':')));
}

std::vector<KnobChange> changes_between(std::string_view from, std::string_view to) {
  std::vector<KnobChange> changes;
  const std::map<std::string, std::string> after = knobs_of(to);
  for (const auto& [knob, value] : knobs_of(from))
    if (const auto at = after.find(knob); at != after.end() && at->second != value)
      changes.push_back({knob, value, at->second});
  return changes;
}

std::vector<ObservationRecord> harvest(const RunRecord& run, const std::vector<TrialRecord>& trials) {
  std::vector<ObservationRecord> found;
  ObservationRecord common;
  common.workload = run.workload;
  common.arch = fields::text_of(run.device, "arch");
  common.device = fields::text_of(run.device, "name");

  const auto add = [&](ObservationRecord one) {
    if (decides(one)) found.push_back(std::move(one));
  };
  const auto compare = [&](const TrialRecord& before, const TrialRecord& after) {
    if (!before.ok() || !after.ok() || family_of(before.config) != family_of(after.config)) return;
    ObservationRecord one = common;
    const std::vector<KnobChange> changes = changes_between(before.config, after.config);
    if (changes.size() == 1 && fields::text_of(before.edits, "tokens") == fields::text_of(after.edits, "tokens")) {
      one.change = text_of(changes.front());
    } else if (changes.empty() && before.edits.is_null() && after.edits.is_object()) {
      one.change = fmt::format("source {}", fields::text_of(after.edits, "tokens"));
      one.diff = fields::text_of(after.edits, "diff");
      one.sentence = after.why;
    } else {
      return;
    }
    one.family = family_of(after.config);
    one.bound_before = fields::text_of(before.diagnosis, "bound");
    one.bound_after = fields::text_of(after.diagnosis, "bound");
    one.ratio = after.ratio / before.ratio;
    one.low = after.ratio_low / before.ratio_high;
    one.high = after.ratio_high / before.ratio_low;
    one.origin = fmt::format("run {} of {}, trial {} against {}", run.id, run.created, after.number,
                             before.number < 0 ? "the base" : fmt::format("trial {}", before.number));
    one.created = after.finished;
    add(std::move(one));
  };

  TrialRecord base;
  base.number = -1;
  base.config = fields::text_of(run.base, "describe");
  base.ratio = base.ratio_low = base.ratio_high = 1;
  base.diagnosis = nlohmann::json::object();
  for (const TrialRecord& trial : trials) {
    if (trial.parents.empty() && !base.config.empty()) compare(base, trial);
    for (const int parent : trial.parents)
      if (parent >= 0 && parent < static_cast<int>(trials.size()))
        compare(trials[static_cast<std::size_t>(parent)], trial);
  }

  const auto rows = run.result.is_object() ? run.result.find("ablation") : run.result.end();
  if (rows == run.result.end() || !rows->is_array()) return found;
  for (const nlohmann::json& row : *rows) {
    if (!row.is_object() || !row.contains("bought") || !row["bought"].is_object()) continue;
    if (fields::text_of(row, "knob") == "edits") continue;  // all edits of a champion together are no single change
    const auto number = [&](const char* name) {
      return row["bought"].contains(name) && row["bought"][name].is_number() ? row["bought"][name].get<double>() : 0.0;
    };
    ObservationRecord one = common;
    one.family = family_of(fields::text_of(row, "config"));
    one.change =
        text_of({fields::text_of(row, "knob"), fields::text_of(row, "default"), fields::text_of(row, "champion")});
    one.ratio = number("value");
    one.low = number("low");
    one.high = number("high");
    one.origin = fmt::format("run {} of {}, ablation of {}", run.id, run.created, fields::text_of(row, "knob"));
    one.created = run.created;
    add(std::move(one));
  }
  return found;
}

}  // namespace heed::insights
