/// Edited sources as the store keeps them: a diff, so that people can read it, and digests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "variant/family.hpp"

namespace heed::source {

/// {"diff", "digest" (of the whole texts), "tokens" (tokens_digest), "insight"}; null for a variant without edits.
nlohmann::json stored(const Variant& variant, const std::string& insight);

/// The variant with the edits that stored() wrote; as it is for null.
/// @throws EditError where they do not fit today's sources, Error(store) for what stored() never wrote
Variant with_stored(Variant variant, const nlohmann::json& edits);

/// The diff; empty where there is none.
std::string stored_diff(const nlohmann::json& edits);

/// Whether a variant's texts are those that were stored: the same diff on other sources makes others.
bool is_as_stored(const Variant& variant, const nlohmann::json& edits);

}  // namespace heed::source
