/// The fields of ForwardParams, once: what a worker is sent, and what a caller in another language checks its own
/// declaration against, follow from these tables.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "kernels/contract.hpp"

namespace heed {

/// A field by its name.
template <typename T>
struct ParamsField {
  std::string_view name;
  T ForwardParams::*member;
};

inline constexpr std::array<ParamsField<TensorStrides>, 4> kStridesFields = {{
    {"q_strides", &ForwardParams::q_strides},
    {"k_strides", &ForwardParams::k_strides},
    {"v_strides", &ForwardParams::v_strides},
    {"o_strides", &ForwardParams::o_strides},
}};

inline constexpr std::array<ParamsField<int>, 8> kIntFields = {{
    {"batch", &ForwardParams::batch},
    {"heads", &ForwardParams::heads},
    {"heads_kv", &ForwardParams::heads_kv},
    {"group_size", &ForwardParams::group_size},
    {"len_q", &ForwardParams::len_q},
    {"len_k", &ForwardParams::len_k},
    {"right_offset", &ForwardParams::right_offset},
    {"left_offset", &ForwardParams::left_offset},
}};

/// Calls `visit(name, byte offset)` for every field.
template <typename Visit>
void for_each_params_field(const Visit& visit) {
  static const ForwardParams params{};
  const auto offset_of = [](const auto& field) {
    return static_cast<std::size_t>(reinterpret_cast<const char*>(&field) - reinterpret_cast<const char*>(&params));
  };
  visit("q", offset_of(params.q));
  visit("k", offset_of(params.k));
  visit("v", offset_of(params.v));
  visit("o", offset_of(params.o));
  visit("lse", offset_of(params.lse));
  visit("workspace", offset_of(params.workspace));
  visit("counters", offset_of(params.counters));
  for (const auto& field : kStridesFields) visit(field.name, offset_of(params.*field.member));
  for (const auto& field : kIntFields) visit(field.name, offset_of(params.*field.member));
  visit("scale", offset_of(params.scale));
}

}  // namespace heed
