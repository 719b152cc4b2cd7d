#include "report/champions.hpp"

#include <fmt/format.h>

#include <map>

#include "heed/heed.hpp"
#include "report/json_fields.hpp"
#include "report/table.hpp"

namespace heed::report {
namespace {

using nlohmann::json;

json document(const std::map<std::pair<std::string, std::string>, json>& entries) {
  json list = json::array();
  for (const auto& [key, entry] : entries) list.push_back(entry);
  return {{"schema", 1}, {"what", "champions"}, {"champions", list}};
}

std::pair<std::string, std::string> key_of(const json& entry) {
  return {text_of(entry, "workload"), text_of(entry, "arch")};
}

json entry_of(const store::RunRecord& run) {
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
  return {{"workload", run.workload},
          {"variant", text_of(final, "config")},
          {"id", final["variant"]},
          {"device", member(run.device, "name")},
          {"arch", member(run.device, "arch")},
          {"us", final["trial_us"]},
          {"max_abs_err", member(member(final, "error"), "max_abs")},
          {"base", {{"variant", member(run.base, "variant")}, {"us", final["base_us"]}, {"ratio", final["ratio"]}}},
          {"peer", peer},
          {"trials", member(run.result, "trials")},
          {"seed", member(run.options, "seed")},
          {"heed", run.heed},
          {"source_digest", run.source_digest},
          {"date", run.created}};
}

}  // namespace

json champions_of(const std::vector<store::RunRecord>& runs) {
  std::map<std::pair<std::string, std::string>, json> best;
  for (const store::RunRecord& run : runs) {
    if (run.state != store::RunState::finished || text_of(run.result, "outcome") != "faster") continue;
    const json entry = entry_of(run);
    const auto key = key_of(entry);
    const auto found = best.find(key);
    if (found == best.end() || number(entry, "us") < number(found->second, "us")) best[key] = entry;
  }
  return document(best);
}

json merge_champions(const json& earlier, const json& newer) {
  if (!earlier.is_object() || text_of(earlier, "what") != "champions" || !member(earlier, "champions").is_array())
    throw Error(ErrorCode::usage, "the file to merge with holds no champions; name another one with -o", "");
  std::map<std::pair<std::string, std::string>, json> all;
  for (const json* document : {&earlier, &newer})
    for (const json& entry : (*document)["champions"]) all[key_of(entry)] = entry;
  return document(all);
}

std::string champions_text(const json& champions) {
  Table table({"workload", "champion", "us", "over base", "best of PyTorch", "us", "ratio", "device"});
  table.align_left(0);
  table.align_left(1);
  table.align_left(4);
  table.align_left(7);
  for (const json& entry : champions["champions"]) {
    const json& peer = member(entry, "peer");
    const bool compared = peer.is_object();
    table.add({text_of(entry, "workload"), text_of(entry, "id"), fmt::format("{:.2f}", number(entry, "us")),
               fmt::format("{:.3f}", number(member(member(entry, "base"), "ratio"), "value")),
               compared ? text_of(peer, "backend") : "-", compared ? fmt::format("{:.2f}", number(peer, "us")) : "",
               compared ? fmt::format("{:.3f}", number(member(peer, "ratio"), "value")) : "",
               text_of(entry, "device")});
  }
  return champions["champions"].empty() ? "No finished run has a champion.\n" : table.str();
}

}  // namespace heed::report
