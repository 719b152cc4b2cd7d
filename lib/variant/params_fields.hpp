/// The fields of ForwardParams, once: what a worker is sent, what a caller in another language checks its own
/// declaration against, and what of them a program for fixed sizes knows, in its source and in its id, follow from
/// these tables.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "kernels/attention/features.hpp"

namespace heed {

/// A field by its name.
template <typename T>
struct ParamsField {
  std::string_view name;
  T ForwardParams::*member;
  T FixedSizes::*fixed = nullptr;  ///< where a program for fixed sizes knows it; the same name
  std::string_view tag = {};       ///< of a known number, in ids of variants
  bool is_offset = false;          ///< a number that may be 0, and that ids then leave out
};

inline constexpr std::array<ParamsField<TensorStrides>, 4> kStridesFields = {{
    {"q_strides", &ForwardParams::q_strides},
    {"k_strides", &ForwardParams::k_strides},
    {"v_strides", &ForwardParams::v_strides},
    {"o_strides", &ForwardParams::o_strides, &FixedSizes::o_strides},
}};

inline constexpr std::array<ParamsField<int>, 8> kIntFields = {{
    {"batch", &ForwardParams::batch, &FixedSizes::batch, "b"},
    {"heads", &ForwardParams::heads, &FixedSizes::heads, "h"},
    {"heads_kv", &ForwardParams::heads_kv, &FixedSizes::heads_kv, "hkv"},
    {"group_size", &ForwardParams::group_size},
    {"len_q", &ForwardParams::len_q, &FixedSizes::len_q, "l"},
    {"len_k", &ForwardParams::len_k, &FixedSizes::len_k, "k"},
    {"right_offset", &ForwardParams::right_offset, &FixedSizes::right_offset, "o", true},
    {"left_offset", &ForwardParams::left_offset, &FixedSizes::left_offset, "f", true},
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
  visit("semaphores", offset_of(params.semaphores));
  for (const auto& field : kStridesFields) visit(field.name, offset_of(params.*field.member));
  for (const auto& field : kIntFields) visit(field.name, offset_of(params.*field.member));
  visit("scale", offset_of(params.scale));
}

/// The same for those that FeatureParams add.
template <typename Visit>
void for_each_feature_field(const Visit& visit) {
  static const FeatureParams params{};
  const auto offset_of = [](const auto& field) {
    return static_cast<std::size_t>(reinterpret_cast<const char*>(&field) - reinterpret_cast<const char*>(&params));
  };
  visit("bias", offset_of(params.bias));
  visit("bias_batch", offset_of(params.bias_batch));
  visit("bias_head", offset_of(params.bias_head));
  visit("bias_row", offset_of(params.bias_row));
  visit("bias_key", offset_of(params.bias_key));
  visit("alibi_slopes", offset_of(params.alibi_slopes));
  visit("alibi_batch", offset_of(params.alibi_batch));
  visit("sinks", offset_of(params.sinks));
  visit("cu_seqlens_q", offset_of(params.cu_seqlens_q));
  visit("cu_seqlens_k", offset_of(params.cu_seqlens_k));
  visit("seqused_k", offset_of(params.seqused_k));
  visit("page_table", offset_of(params.page_table));
  visit("page_table_batch", offset_of(params.page_table_batch));
  visit("lse_batch", offset_of(params.lse_batch));
  visit("lse_head", offset_of(params.lse_head));
  visit("page_size", offset_of(params.page_size));
  visit("pages", offset_of(params.pages));
  visit("bias_element", offset_of(params.bias_element));
  visit("aligned_to_the_end", offset_of(params.aligned_to_the_end));
  visit("softcap", offset_of(params.softcap));
  visit("total_q", offset_of(params.total_q));
  visit("block_counts", offset_of(params.block_counts));
  visit("block_indices", offset_of(params.block_indices));
  visit("block_count_strides", offset_of(params.block_count_strides));
  visit("block_index_strides", offset_of(params.block_index_strides));
  visit("block_most", offset_of(params.block_most));
  visit("block_rows", offset_of(params.block_rows));
  visit("block_keys", offset_of(params.block_keys));
  visit("total_k", offset_of(params.total_k));
  visit("prefix_lengths", offset_of(params.prefix_lengths));
  visit("dropout_seed", offset_of(params.dropout_seed));
  visit("dropout_offset", offset_of(params.dropout_offset));
  visit("dropout_threshold", offset_of(params.dropout_threshold));
  visit("dropout_scale", offset_of(params.dropout_scale));
  visit("dropout_first_entry", offset_of(params.dropout_first_entry));
  visit("dropout_first_key", offset_of(params.dropout_first_key));
  visit("relative_bias", offset_of(params.relative_bias));
  visit("relative_buckets", offset_of(params.relative_buckets));
  visit("q_scales", offset_of(params.q_scales));
  visit("k_scales", offset_of(params.k_scales));
  visit("v_scales", offset_of(params.v_scales));
  visit("out_gate", offset_of(params.out_gate));
  visit("out_gate_strides", offset_of(params.out_gate_strides));
  visit("out_gate_column", offset_of(params.out_gate_column));
  visit("out_norm_weight", offset_of(params.out_norm_weight));
  visit("out_norm_head", offset_of(params.out_norm_head));
  visit("out_norm_eps", offset_of(params.out_norm_eps));
  visit("out_columns", offset_of(params.out_columns));
}

}  // namespace heed
