/// Which device sources of a family edits may change.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "variant/family.hpp"

namespace heed::source {

/// Why a device source may not be edited; empty where it may. Host code includes configs, legality, masks and the
/// contract too: another text of theirs on the device would fit neither the launch plan nor the oracle.
std::string refusal_of_path(std::string_view path);

/// The texts that edits may change, by path: the family's device sources, those that it shares with others, and its
/// entry as Overlay::kEntry.
std::map<std::string, std::string, std::less<>> editable(const Family& family);

}  // namespace heed::source
