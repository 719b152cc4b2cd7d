#include "dispatch/tuned_table.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dispatch/provenance_json.hpp"

namespace heed::dispatch {

using nlohmann::json;

TunedTable TunedTable::parse(std::string_view text, std::string_view name) {
  const json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded())
    throw Error(ErrorCode::usage, fmt::format("{} is no JSON; heed champions -o FILE writes a file of champions", name),
                std::string(name));
  const bool holds_champions = document.is_object() && text_of(document, "what") == "champions" &&
                               document.value("champions", json()).is_array();
  if (!holds_champions)
    throw Error(ErrorCode::usage,
                fmt::format("{} holds no champions; heed champions -o FILE writes one that does", name),
                std::string(name));
  TunedTable table;
  for (const char* list : {"champions", "unbeaten"})
    for (const json& entry : document.value(list, json::array())) {
      if (!entry.is_object()) continue;
      const bool is_champion = std::string_view(list) == "champions";
      table.entries_.push_back({text_of(entry, "workload"), text_of(entry, "arch"),
                                is_champion ? text_of(entry, "variant") : std::string(), provenance_of(entry)});
    }
  return table;
}

std::optional<std::string> TunedTable::find(const Workload& workload, std::string_view arch,
                                            std::string_view device) const {
  const std::string wanted = to_string(workload);
  const TunedEntry* elsewhere = nullptr;
  for (const TunedEntry& entry : entries_) {
    if (entry.workload != wanted || entry.arch != arch) continue;
    if (entry.provenance.device == device) return entry.variant.empty() ? std::nullopt : std::optional(entry.variant);
    if (elsewhere == nullptr && !entry.variant.empty()) elsewhere = &entry;
  }
  return elsewhere == nullptr ? std::nullopt : std::optional(elsewhere->variant);
}

}  // namespace heed::dispatch
