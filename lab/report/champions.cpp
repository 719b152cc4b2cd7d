#include "report/champions.hpp"

#include <fmt/format.h>

#include <map>
#include <tuple>

#include "heed/heed.hpp"
#include "json/fields.hpp"
#include "report/outcome.hpp"
#include "report/table.hpp"

namespace heed::report {

using fields::member;
using fields::number;
using fields::text_of;

namespace {

using nlohmann::json;

using Key = std::tuple<std::string, std::string, std::string>;  // workload, architecture, device
constexpr const char* kChampions = "champions";
constexpr const char* kUnbeaten = "unbeaten";
constexpr const char* kLists[] = {kChampions, kUnbeaten};

// What was found for each workload: a champion, or a base that nothing beat.
struct Found {
  const char* list;
  json entry;
};

json document(const std::map<Key, Found>& all) {
  json out = {{"schema", 1}, {"what", "champions"}};
  for (const char* list : kLists) out[list] = json::array();
  for (const auto& [key, found] : all) out[found.list].push_back(found.entry);
  return out;
}

Key key_of(const json& entry) {
  return {text_of(entry, "workload"), text_of(entry, "arch"), text_of(entry, "device")};
}

bool holds_champions(const json& document) {
  return document.is_object() && text_of(document, "what") == "champions" && member(document, kChampions).is_array();
}

// How a run came to its result.
json provenance_of(const store::RunRecord& run) {
  return {{"workload", run.workload},
          {"device", member(run.device, "name")},
          {"arch", member(run.device, "arch")},
          {"base",
           {{"variant", member(run.base, "variant")},
            {"config", member(run.base, "describe")},
            {"us", member(member(run.result, "final"), "base_us")}}},
          {"trials", member(run.result, "trials")},
          {"seed", member(run.options, "seed")},
          {"heed", run.heed},
          {"families", run.families},
          {"source_digest", run.source_digest},
          {"referee", referee_of(run)},
          {"date", run.created}};
}

json champion_of(const store::RunRecord& run) {
  const json& final = run.result["final"];
  const json& peers = member(run.result, "peers");
  json peer;
  for (const json& row : member(peers, "rows"))
    if (row.contains("us") && member(row, "backend") == member(peers, "best"))
      peer = {{"backend", row["backend"]},
              {"us", row["us"]},
              {"ratio", row["ratio"]},
              {"torch", member(peers, "torch")},
              {"cudnn", member(peers, "cudnn")}};
  json entry = provenance_of(run);
  entry["run"] = run.id;
  entry["trial"] = member(final, "trial");
  entry["variant"] = text_of(final, "config");
  entry["id"] = final["variant"];
  entry["us"] = final["trial_us"];
  entry["max_abs_err"] = member(member(final, "error"), "max_abs");
  entry["base"]["ratio"] = final["ratio"];
  entry["peer"] = peer;
  return entry;
}

// Whether what a run found says anything about an earlier finding: that nothing beat its base says nothing about a
// champion of a family that it did not search.
bool replaces(const Found& found, const Found& earlier) {
  if (found.list == kChampions || earlier.list == kUnbeaten) return true;
  const std::string variant = text_of(earlier.entry, "variant");
  const std::string searched = "," + text_of(found.entry, "families") + ",";
  return searched.find("," + variant.substr(0, variant.find(':')) + ",") != std::string::npos;
}

}  // namespace

json champions_of(const std::vector<store::RunRecord>& runs) {
  std::map<Key, Found> all;
  for (const store::RunRecord& run : runs) {
    if (run.state != store::RunState::finished || !run.result.is_object()) continue;
    if (was_too_noisy(run.result)) continue;  // says nothing of the base, either
    // A table names knobs: a champion of edited sources is none that its readers could build.
    if (text_of(member(run.result, "final"), "variant").find("+src:") != std::string::npos) continue;
    const bool faster = has_champion(run.result);
    Found found = faster ? Found{kChampions, champion_of(run)} : Found{kUnbeaten, provenance_of(run)};
    const auto [at, is_first] = all.try_emplace(key_of(found.entry), found);
    if (is_first) continue;
    const json& known = at->second.entry;
    const bool compares =
        text_of(known, "source_digest") == run.source_digest && number(known, "referee") == referee_of(run);
    const bool is_newer = !compares && text_of(known, "date") < run.created;
    const bool beats =
        compares && faster && (at->second.list == kUnbeaten || number(found.entry, "us") < number(known, "us"));
    if ((is_newer && replaces(found, at->second)) || beats) at->second = std::move(found);
  }
  return document(all);
}

json merge_champions(const json& earlier, const json& newer) {
  if (!holds_champions(earlier))
    throw Error(ErrorCode::usage, "the file to merge with holds no champions; name another one with -o", "");
  std::map<Key, Found> all;
  for (const json* document : {&earlier, &newer})
    for (const char* list : kLists)
      for (const json& entry : member(*document, list)) {
        const Found found{list, entry};
        const auto [at, is_first] = all.try_emplace(key_of(entry), found);
        if (!is_first && replaces(found, at->second)) at->second = found;
      }
  return document(all);
}

std::string champions_text(const json& champions) {
  Table table({"workload", "champion", "us", "over base", "best of PyTorch", "us", "ratio", "device"});
  table.align_left(0);
  table.align_left(1);
  table.align_left(4);
  table.align_left(7);
  for (const json& entry : champions[kChampions]) {
    const json& peer = member(entry, "peer");
    const bool compared = peer.is_object();
    table.add({text_of(entry, "workload"), text_of(entry, "id"), fmt::format("{:.2f}", number(entry, "us")),
               fmt::format("{:.3f}", number(member(member(entry, "base"), "ratio"), "value")),
               compared ? text_of(peer, "backend") : "-", compared ? fmt::format("{:.2f}", number(peer, "us")) : "",
               compared ? fmt::format("{:.3f}", number(member(peer, "ratio"), "value")) : "",
               text_of(entry, "device")});
  }
  std::string text = champions[kChampions].empty() ? "No finished run has a champion.\n" : table.str();
  for (const json& entry : champions[kUnbeaten])
    text += fmt::format("{}: nothing faster than {} on {}\n", text_of(entry, "workload"),
                        text_of(entry["base"], "variant"), text_of(entry, "device"));
  return text;
}

}  // namespace heed::report
