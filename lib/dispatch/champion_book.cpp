#include "dispatch/champion_book.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace heed::dispatch {
namespace {

using nlohmann::json;

// Empty where there is no such text.
std::string text_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

}  // namespace

ChampionBook ChampionBook::parse(std::string_view text, std::string_view name) {
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
  ChampionBook book;
  for (const char* list : {"champions", "unbeaten"})
    for (const json& entry : document.value(list, json::array())) {
      if (!entry.is_object()) continue;
      const bool is_champion = std::string_view(list) == "champions";
      book.entries_.push_back({text_of(entry, "workload"), text_of(entry, "arch"), text_of(entry, "device"),
                               is_champion ? text_of(entry, "variant") : std::string()});
    }
  return book;
}

std::optional<std::string> ChampionBook::find(const Workload& workload, std::string_view arch,
                                              std::string_view device) const {
  const std::string wanted = to_string(workload);
  const Entry* elsewhere = nullptr;
  for (const Entry& entry : entries_) {
    if (entry.workload != wanted || entry.arch != arch) continue;
    if (entry.device == device) return entry.variant.empty() ? std::nullopt : std::optional(entry.variant);
    if (elsewhere == nullptr && !entry.variant.empty()) elsewhere = &entry;
  }
  return elsewhere == nullptr ? std::nullopt : std::optional(elsewhere->variant);
}

}  // namespace heed::dispatch
