#include "variant/dispatch_table.hpp"

#include <algorithm>
#include <cstdint>

#include "variant/family.hpp"
#include "variant/registry.hpp"
#include "variant/rule_table.hpp"
#include "variant/sm90_decode_estimate.hpp"
#include "variant/sm90_persistent_default.hpp"

namespace heed {
namespace {

// Up to this many queries the heads of a group fill the tiles of a decode family.
constexpr std::int64_t kFewQueries = 16;

bool has_quantised_inputs(const Workload& w, const DeviceFacts&) {
  return w.quantised.has_value();
}

// Keys of many heads may be so short that each head has a block of its own, however few of its rows are real.
bool is_decode_on_hopper(const Workload& w, const DeviceFacts& device) {
  if (w.len_q > kFewQueries) return false;
  return w.len_q == 1 ||
         sm90_decode_default_us(w, device) <= sm90_decode_estimate::persistent_us(w, num_sms_of(device));
}

// Where fwd_sm90_decode runs, its estimates decide for both decode families.
bool is_decode(const Workload& w, const DeviceFacts& device) {
  if (w.len_q > kFewQueries) return false;
  return sm90_decode_family().refuses(w, device) || is_decode_on_hopper(w, device);
}

// Two blocks for each 64 rows, which fwd_sm90_split makes of short launches, would not all run at once. On an H200, us,
// fwd_sm90_split / fwd_sm90_persistent / fwd_sm80: b4h8l256d64 with lengths 4.36 / 3.79 / 5.81; b4h16l1024d64 with
// dropout - / 124.7 / 150.3.
bool has_many_rows(const Workload& w, const DeviceFacts& device) {
  if (!w.has_features() && prefers_split_kernel(w, num_sms_of(device))) return false;
  return 2 * q_tiles_of_launch(1, w) > num_sms_of(device);
}

// wgmma has nearly twice the rate of mma.sync. Of the same three, us: b1h8l512d64 with a softcap 4.95 / 7.10 / 5.87,
// with sinks 3.71 / 4.61 / 5.11.
bool has_few_rows(const Workload& w, const DeviceFacts& device) {
  return !has_many_rows(w, device);
}

// V is transposed in every launch, which moves two more bytes a value: at 4 TB/s as much time as products of 100 rows
// of a key head save (600 TFLOP/s in e4m3, 350 in fwd_sm80). A cache of keys, in pages or with lengths, meets few rows;
// of dense tensors with few rows neither is measured.
bool has_rows_for_transposed_values(const Workload& w, const DeviceFacts&) {
  constexpr std::int64_t kRowsOfKeyHead = 128;
  return (!w.has_lengths() && w.page_size == 0) || w.len_q * (w.heads / w.heads_kv) >= kRowsOfKeyHead;
}

constexpr DispatchRow kTable[] = {
    {sm90_decode_family, has_quantised_inputs, "few queries, K and V in 8 bits"},
    {sm90_decode_family, is_decode_on_hopper,
     "few queries: heads of a group share a tile, all keys are cut into equal parts over the chip"},
    {sm80_decode_family, has_quantised_inputs, "few queries, K and V in 8 bits"},
    {sm80_decode_family, is_decode, "few queries: heads of a group share a tile, keys are split over the chip"},
    {sm90_persistent_family, has_many_rows, "Hopper, more rows than one wave of split tiles"},
    {sm90_split_family, has_few_rows, "Hopper"},
    {sm90_fp8_family, has_rows_for_transposed_values, "Hopper, Q, K and V in e4m3"},
};

}  // namespace

std::span<const DispatchRow> dispatch_table() {
  return kTable;
}

std::string_view Family::made_for(const Workload& workload, const DeviceFacts& device) const {
  for (const DispatchRow& row : kTable)
    if (&row.family() == this && row.holds(workload, device)) return row.reason;
  return {};
}

}  // namespace heed
