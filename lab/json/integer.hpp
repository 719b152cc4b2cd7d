/// Whole numbers out of JSON that others wrote.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <nlohmann/json.hpp>
#include <utility>

#include "heed/heed.hpp"

namespace heed {

/// A whole number that T holds. nlohmann::json::get converts whatever number stands there: 1e30 as an int is undefined.
/// @throws Error (worker) where something else stands there
template <std::integral T>
T integer(const nlohmann::json& json) {
  const bool fits = json.is_number_unsigned() ? std::in_range<T>(json.get<std::uint64_t>())
                                              : json.is_number_integer() && std::in_range<T>(json.get<std::int64_t>());
  if (!fits)
    throw Error(ErrorCode::worker,
                fmt::format("{} stands where a whole number of {} bits belongs",
                            json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 8 * sizeof(T)));
  return json.get<T>();
}

}  // namespace heed
