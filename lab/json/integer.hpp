/// Whole numbers out of JSON that others wrote.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "heed/heed.hpp"

namespace heed {

/// Whether it is a whole number that T holds.
template <std::integral T>
bool fits(const nlohmann::json& json) {
  return json.is_number_unsigned() ? std::in_range<T>(json.get<std::uint64_t>())
                                   : json.is_number_integer() && std::in_range<T>(json.get<std::int64_t>());
}

/// A whole number that T holds. nlohmann::json::get converts whatever number stands there: 1e30 as an int is undefined.
/// @throws Error (worker) where something else stands there
template <std::integral T>
T integer(const nlohmann::json& json) {
  if (!fits<T>(json))
    throw Error(ErrorCode::worker,
                fmt::format("{} stands where a whole number of {} bits belongs",
                            json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 8 * sizeof(T)));
  return json.get<T>();
}

/// The whole number of that name; none where nothing, or something else, stands there, or a number that T does not
/// hold.
template <std::integral T>
std::optional<T> integer_at(const nlohmann::json& json, const char* name) {
  const auto at = json.find(name);
  if (at == json.end() || !fits<T>(*at)) return std::nullopt;
  return at->template get<T>();
}

}  // namespace heed
