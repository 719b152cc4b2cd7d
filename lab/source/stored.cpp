#include "source/stored.hpp"

#include "source/apply.hpp"
#include "source/diff.hpp"
#include "source/tokens.hpp"

namespace heed::source {
namespace {

std::string text_of(const nlohmann::json& edits, const char* name) {
  if (edits.is_null()) return {};
  if (!edits.is_object() || !edits.contains(name) || !edits[name].is_string())
    throw Error(ErrorCode::store,
                std::string("the edits of a trial hold no \"") + name + "\": no Heed has written them", name);
  return edits[name].get<std::string>();
}

}  // namespace

nlohmann::json stored(const Variant& variant, const std::string& insight) {
  if (!variant.overlay) return nullptr;
  return {{"diff", diff_of(*variant.overlay, *variant.family)},
          {"digest", variant.overlay->digest()},
          {"tokens", tokens_digest(*variant.overlay)},
          {"insight", insight}};
}

Variant with_stored(Variant variant, const nlohmann::json& edits) {
  return with_diff(std::move(variant), stored_diff(edits));
}

std::string stored_diff(const nlohmann::json& edits) {
  return text_of(edits, "diff");
}

bool is_as_stored(const Variant& variant, const nlohmann::json& edits) {
  if (edits.is_null()) return variant.overlay == nullptr;
  return variant.overlay != nullptr && variant.overlay->digest() == text_of(edits, "digest");
}

}  // namespace heed::source
