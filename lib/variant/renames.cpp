#include "variant/renames.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace heed {
namespace {

struct KnobRename {
  std::string_view earlier;
  std::string_view now;
  std::vector<std::pair<std::string_view, std::string_view>> values;  // those not named keep their names
};
struct FamilyRename {
  std::string_view earlier;
  std::string_view now;
  std::vector<KnobRename> knobs;
};

// Specializations were knobs of the families that have them.
const std::vector<KnobRename>& specialization_renames() {
  static const std::vector<KnobRename> all = {
      {"sizes", "specialize", {{"any", "none"}, {"fixed", "shape"}, {"whole", "whole_tiles"}}},
      {"programs", "prune", {{"all", "off"}, {"needed", "on"}}},
      {"outputs", "o_layout", {{"any", "strided"}}},
  };
  return all;
}

const std::vector<FamilyRename>& renames() {
  static const std::vector<FamilyRename> all = {
      {"fwd_sm90_stream",
       "fwd_sm90_persistent",
       {
           {"row_groups", "m_warpgroups", {}},
           {"key_groups", "kv_groups", {}},
           {"tile_keys", "block_n", {}},
           {"query_stages", "q_stages", {}},
           {"schedule",
            "scheduler",
            {{"one_tile", "single_tile"}, {"persistent", "static_persistent"}, {"dynamic", "dynamic_persistent"}}},
           {"waves", "grid", {{"filled", "full"}, {"even", "balanced"}}},
           {"overlap", "softmax_overlap", {{"nothing", "none"}, {"values", "pv"}, {"products", "qk_pv"}}},
           {"product_order",
            "gemm_order",
            {{"values_first", "pv_first"}, {"scores_first", "qk_first"}, {"alternating", "interleaved"}}},
           {"reference", "row_max", {{"exact", "online"}, {"first_tile", "stale_tile"}, {"first_keys", "stale_16"}}},
           {"turns", "pingpong", {{"any", "off"}, {"in_order", "on"}}},
           {"starts", "stagger_splits", {{"together", "off"}, {"in_turn", "on"}}},
           {"vote", "overflow_check", {{"at_once", "inlined"}, {"after_products", "deferred"}}},
           {"masking", "mask_path", {{"ahead", "branch"}, {"with_vote", "redo"}, {"apart", "separate_loop"}}},
           {"producer", "producer", {{"own_warp", "warp"}, {"own_group", "warpgroup"}}},
           {"release", "setmaxnreg", {{"at_once", "early"}, {"after_copies", "after_loads"}}},
           {"shares", "tile_setup", {{"when_due", "lazy"}, {"ahead", "early"}}},
           {"trigger", "pdl_trigger", {{"last_copies", "last_load"}}},
           {"store",
            "epilogue",
            {{"pairs", "st_b32"},
             {"pieces", "st_b128"},
             {"rows", "smem_b128"},
             {"aimed_rows", "smem_b128_preaddressed"},
             {"boxes", "tma"}}},
           {"tile_order",
            "tile_order",
            {{"rows_first", "row_major"},
             {"heads_first", "lpt_l2"},
             {"mirrored", "paired"},
             {"folded", "lpt_then_spt"}}},
           {"pairs", "share_causal_tail", {{"apart", "off"}, {"together", "on"}}},
           {"evict_first",
            "evict_first",
            {{"queries", "q"},
             {"passing", "q_o"},
             {"inputs", "q_kv"},
             {"all", "q_kv_o"},
             {"values", "v_o"},
             {"but_keys", "q_v_o"},
             {"but_most_keys", "q_v_o_quarter_k"},
             {"half", "half_heads"},
             {"but_opening", "all_but_first_q_2k"},
             {"but_first_keys", "all_but_first_q_k"}}},
           {"arrival", "barrier_wait", {{"ahead", "try_wait_early"}}},
           {"upkeep", "stage_release", {{"branches", "branch"}, {"conditions", "predicated"}}},
           {"sums", "rowsum_reduce", {{"beside_values", "beside_pv"}}},
           {"scaling", "scale_placement", {}},
           {"packing", "convert_placement", {}},
           {"adding", "rowsum_placement", {}},
           {"teams", "virtual_ctas", {}},
       }},
      {"fwd_sm90",
       "fwd_sm90_split",
       {
           {"row_groups", "m_warpgroups", {}},
           {"key_groups", "kv_groups", {}},
           {"chunks", "n_blocks_per_stage", {}},
           {"chunk", "block_n", {}},
           {"score_lead", "qk_in_flight", {}},
           {"value_waits", "v_barriers", {}},
           {"product_steps", "pv_ksteps_per_commit", {}},
           {"product_start", "pv_start_step", {}},
           {"late_packing", "late_convert", {}},
           {"prefetch_scores", "prefetch_next_qk", {}},
           {"reference", "row_max", {{"exact", "online"}, {"first_chunk", "stale_tile"}, {"first_keys", "stale_16"}}},
           {"mask", "mask_at", {}},
           {"row_sum", "rowsum", {{"adds", "fadd"}, {"ones_column", "mma"}}},
           {"vote", "overflow_check", {{"before_sending", "before_merge"}, {"after_writing", "after_store"}}},
           {"exchange", "merge_dtype", {{"half", "bits16"}, {"single", "fp32"}}},
           {"weights", "lse_first", {{"with_slices", "off"}, {"first", "on"}}},
           {"kept_columns", "pv_split_n", {{"with_sent", "off"}, {"while_sending", "on"}}},
           {"placing", "asm_order", {{"in_order", "fixed"}}},
           {"key_heads", "gqa", {{"shared", "on"}, {"own", "off"}}},
           {"multicast", "tma_multicast", {{"queries", "q"}}},
           {"opening", "prologue", {{"queries_first", "q_first"}}},
           {"producer",
            "producer",
            {{"own_warp", "warp"}, {"own_group", "warpgroup"}, {"first_warp", "consumer_warp"}}},
           {"trigger", "pdl_trigger", {{"first_scores", "first_qk"}, {"last_products", "last_pv"}}},
           {"store", "epilogue", {{"pairs", "st_b32"}, {"pieces", "st_b128"}, {"boxes", "tma"}}},
           {"tile_order", "tile_order", {{"folded", "lpt_then_spt"}}},
       }},
      {"fwd_decode_sm90",
       "fwd_sm90_decode",
       {
           {"groups", "kv_groups", {}},
           {"l2_bytes", "l2_promotion", {}},
           {"prefetch", "l2_prefetch_kib", {}},
           {"mergers", "merge_warps", {}},
           {"division", "group_split", {{"tiles", "kv_tiles"}}},
           {"cut", "split_points", {{"at_jobs", "at_work_tiles"}}},
           {"producer", "producer_warp", {}},
           {"dependent", "pdl", {}},
           {"rescale", "rescale", {{"when_far", "conditional"}}},
       }},
      {"fwd_decode",
       "fwd_sm80_decode",
       {
           {"groups", "kv_groups", {}},
           {"rounds", "waves", {}},
           {"shared_layout", "smem_layout", {}},
           {"fetch", "l2_prefetch_size", {{"as_needed", "none"}, {"bytes_128", "b128"}, {"bytes_256", "b256"}}},
           {"rescale", "rescale", {{"when_far", "conditional"}}},
       }},
      {"fwd_sm80",
       "fwd_sm80",
       {
           {"key_splits", "kv_groups", {}},
           {"shared_layout", "smem_layout", {}},
           {"late_copies", "late_loads", {}},
           {"handshake", "pipeline_sync", {}},
           {"tile_order", "tile_order", {{"longest", "lpt"}, {"mirrored", "lpt_then_spt"}, {"paired", "lpt_then_spt"}}},
           {"rescale", "rescale", {{"when_far", "conditional"}, {"optimistic", "stale_tile"}}},
       }},
      {"ladder", "ladder", {{"rung", "step", {}}}},
      {"fwd_cpu", "fwd_cpu", {{"key_heads", "pack_gqa", {{"own", "off"}, {"shared", "on"}}}}},
  };
  return all;
}

std::string renamed(const FamilyRename& family, const std::string& setting) {
  const std::size_t equals = setting.find('=');
  const auto named = [&](const std::vector<KnobRename>& knobs) -> const KnobRename* {
    const auto found = std::find_if(knobs.begin(), knobs.end(),
                                    [&](const KnobRename& k) { return k.earlier == setting.substr(0, equals); });
    return found == knobs.end() ? nullptr : &*found;
  };
  const KnobRename* knob = named(family.knobs);
  if (knob == nullptr) knob = named(specialization_renames());
  if (knob == nullptr || equals == std::string::npos) return setting;
  const std::string value = setting.substr(equals + 1);
  const auto found =
      std::find_if(knob->values.begin(), knob->values.end(), [&](const auto& v) { return v.first == value; });
  return std::string(knob->now) + "=" + (found == knob->values.end() ? value : std::string(found->second));
}

struct FamilySetting {
  std::string_view family;
  std::string_view knob;
  std::string_view value;
};
// Knobs that came later, with the value that stands for what was there before: what is stored without them had it.
constexpr std::array<FamilySetting, 5> kLaterKnobs = {{{"fwd_sm90_decode", "max_splits", "0"},
                                                       {"fwd_sm80", "rowsum", "fadd"},
                                                       {"fwd_sm90_persistent", "rowsum", "fadd"},
                                                       {"fwd_cpu", "lanes", "queries"},
                                                       {"fwd_cpu", "split_keys", "0"}}};
// Knobs that are gone, with the value that stands for what is there today: what is stored with it is read without it.
// Another value has no program: it stays in the text, and the name of the knob is refused.
constexpr std::array<FamilySetting, 1> kGoneKnobs = {{{"fwd_sm90_persistent", "page_loads", "thread"}}};

std::string with_later_knobs(std::string text) {
  for (const FamilySetting& later : kLaterKnobs)
    if (text.starts_with(fmt::format("{}:", later.family)) &&
        text.find(fmt::format(",{}=", later.knob)) == std::string::npos &&
        text.find(fmt::format(":{}=", later.knob)) == std::string::npos)
      text += fmt::format(",{}={}", later.knob, later.value);
  return text;
}

std::string without_gone_knobs(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string family(text.substr(0, colon));
  if (colon == std::string_view::npos) return family;
  std::vector<std::string> settings = split(text.substr(colon + 1), ',');
  for (const FamilySetting& gone : kGoneKnobs)
    if (gone.family == family) std::erase(settings, fmt::format("{}={}", gone.knob, gone.value));
  return settings.empty() ? family : family + ":" + join(settings, ",");
}

}  // namespace

std::string with_current_names(std::string_view text) {
  const std::size_t colon = text.find(':');
  for (const FamilyRename& family : renames()) {
    if (text.substr(0, colon) != family.earlier) continue;
    std::string current(family.now);
    if (colon == std::string_view::npos) return current;
    std::vector<std::string> settings;
    for (const std::string& setting : split(text.substr(colon + 1), ',')) settings.push_back(renamed(family, setting));
    return with_later_knobs(current + ":" + join(settings, ","));
  }
  return with_later_knobs(without_gone_knobs(text));
}

std::string_view current_family_name(std::string_view name) {
  for (const FamilyRename& family : renames())
    if (family.earlier == name) return family.now;
  return name;
}

}  // namespace heed
