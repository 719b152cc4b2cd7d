#include "variant/sm80_default.hpp"

#include <cstdint>
#include <optional>

#include "variant/family.hpp"
#include "workload/features.hpp"

// Times are of an H200, in microseconds.
namespace heed {
namespace {

using attention::Rescale;
using sm80::PipelineSync;

constexpr std::int64_t kFewKeys = 256;
constexpr std::int64_t kManyKeys = 1024;
constexpr std::string_view kTiles = "tiles";

std::int64_t q_tiles(int rows, const Workload& w) {
  return (w.len_q + rows - 1) / rows * w.heads * w.batch;
}

// What decides is how many warps a multiprocessor gets: 8 warps of 32 rows hide each other's latencies where registers
// allow, so that a launch with few rows splits the keys of a block instead.
struct Facts {
  std::int64_t dim = 0;
  std::int64_t len_k = 0;
  bool causal = false;
  std::int64_t tiles = 0;  // of 64 rows
  std::int64_t processors = 0;
  // Before Hopper a thread cannot sleep at an mbarrier, and asking takes issue slots from warps that compute.
  bool can_sleep = false;

  // A tile of 64 rows for each multiprocessor would leave some without.
  [[nodiscard]] constexpr bool few_rows() const { return 4 * tiles <= 3 * processors; }
  [[nodiscard]] constexpr bool one_wave() const { return tiles <= processors; }
  [[nodiscard]] constexpr bool two_waves() const { return !one_wave() && tiles <= 2 * processors; }
  [[nodiscard]] constexpr bool fits_block_m_128() const {
    return tiles > 2 * processors && (!causal || len_k > kManyKeys);
  }
};

struct Tiles {
  sm80::Config first;
  std::optional<sm80::Config> second{};  // where the first is not legal
};

constexpr sm80::Config kSplitKv32{
    .block_m = 32, .block_n = 32, .kv_groups = 4, .stages = 2, .rescale = Rescale::always};
constexpr sm80::Config kDim256{.block_n = 32, .q_in_registers = false, .rescale = Rescale::when_grown};
constexpr sm80::Config kBlockM128Dim64{
    .block_m = 128, .warp_rows = 32, .stages = 3, .overlap = true, .rescale = Rescale::stale_tile, .min_blocks = 2};
constexpr sm80::Config kBlockM128Dim128{
    .block_m = 128, .warp_rows = 32, .q_in_registers = false, .rescale = Rescale::stale_tile, .min_blocks = 2};

constexpr sm80::Config kBlockM64Dim64{.overlap = true, .rescale = Rescale::stale_tile, .min_blocks = 3};
constexpr sm80::Config kBlockM64{.overlap = true, .rescale = Rescale::stale_tile, .min_blocks = 2};
constexpr sm80::Config kBlockM64Mbarrier{.overlap = true,
                                         .late_loads = true,
                                         .pipeline_sync = PipelineSync::stage,
                                         .rescale = Rescale::stale_tile,
                                         .min_blocks = 2};

constexpr sm80::Config with_stages(sm80::Config c, int stages) {
  c.stages = stages;
  return c;
}
constexpr sm80::Config with_sync(sm80::Config c) {
  c.pipeline_sync = PipelineSync::stage;
  return c;
}

constexpr RuleRow<Facts, Tiles> kTilesRows[] = {
    {[](const Facts& f) { return f.dim == 256 && f.few_rows(); },
     {{.block_m = 32, .block_n = 32, .kv_groups = 2, .q_in_registers = false, .rescale = Rescale::when_grown}, kDim256},
     "144 KiB of shared memory; not measured: b1h8l512d256"},
    {[](const Facts& f) { return f.dim == 256; },
     {kDim256},
     "output takes half of the registers, so Q stays in shared memory; two stages of 32 keys are what the 99 KiB of "
     "sm_89 hold beside 64 rows; not measured: b4h16l1024d256"},
    {[](const Facts& f) { return f.few_rows() && f.dim == 64; },
     {{.block_m = 32, .kv_groups = 4, .stages = 3, .split_wait = true, .rescale = Rescale::always}, kSplitKv32},
     "two tiles a group leave nothing to be stale about: b1h8l512d64 4.95, with 64 rows a block 1.40 times, with one "
     "KV group 1.61 times as long"},
    {[](const Facts& f) { return f.few_rows() && f.len_k <= 512; },
     {{.block_m = 32, .kv_groups = 4, .stages = 1, .split_wait = true, .rescale = Rescale::always}, kSplitKv32},
     "a stage for all the keys that a group has: b1h16l256d128"},
    {[](const Facts& f) { return f.few_rows(); }, {kSplitKv32}, "longer rows: b1h8l512k2048d128"},
    {[](const Facts& f) { return f.one_wave() && f.dim == 64; },
     {{.warp_rows = 32, .kv_groups = 4, .overlap = true, .late_loads = true, .rescale = Rescale::stale_tile}},
     "late loads / loads ahead of the scores: b1h8l1024d64 10.4 / 11.0"},
    {[](const Facts& f) { return f.one_wave(); },
     {{.kv_groups = 2, .overlap = true, .late_loads = true, .rescale = Rescale::stale_tile}},
     "not measured beside others: b1h8l1024d128"},
    {[](const Facts& f) { return f.two_waves() && f.dim == 64; },
     {{.warp_rows = 32,
       .kv_groups = 2,
       .overlap = true,
       .late_loads = true,
       .rescale = Rescale::stale_tile,
       .min_blocks = 2}},
     "late loads / loads ahead of the scores: b1h8l2048d64 28.8 / 29.6"},
    {[](const Facts& f) { return f.two_waves() && !f.causal; },
     {{.warp_rows = 32,
       .kv_groups = 2,
       .stages = 1,
       .q_in_registers = false,
       .rescale = Rescale::stale_tile,
       .min_blocks = 2}},
     "not measured beside others: b1h16l1024d128"},
    {[](const Facts& f) { return !f.two_waves() && f.dim == 64 && f.len_k <= kFewKeys; },
     {{.block_n = 32, .stages = 4, .overlap = true, .rescale = Rescale::stale_tile, .min_blocks = 4}},
     "blocks start and end more than they compute, so as many as fit: b64h12l128d64"},
    {[](const Facts& f) { return f.fits_block_m_128() && f.dim == 64; },
     {kBlockM128Dim64, with_stages(kBlockM128Dim64, 2)},
     "eight warps of 32 rows hide each other's latencies: b4h16l512d64, b8h16l2048d64"},
    {[](const Facts& f) { return f.fits_block_m_128() && !f.causal && f.can_sleep; },
     {with_sync(kBlockM128Dim128)},
     "mbarriers of stages / a barrier of the group: b1h32l1024d128 46.5 / 47.8; under a causal mask mbarriers spill"},
    {[](const Facts& f) { return f.fits_block_m_128(); }, {kBlockM128Dim128}, "likewise: b4h16l2048d128"},
    {[](const Facts& f) { return f.dim == 64; },
     {kBlockM64Dim64},
     "tiles of 64 rows waste less where the mask cuts through them: b4h16l512d64:fp16:causal_top_left"},
    {[](const Facts& f) { return f.can_sleep; },
     {kBlockM64Mbarrier},
     "mbarriers of stages / a barrier of the group: b1h32l1024d128:fp16:causal_top_left 32.8 / 34.0"},
    {[](const Facts&) { return true; },
     {kBlockM64},
     "without mbarriers that threads sleep at; not measured: b1h32l1024d128:fp16:causal_top_left"},
};

// Longest rows first leave the shortest to fill the end; in one wave of two blocks a multiprocessor, pairs are better.
attention::TileOrder order_of(const sm80::Config& c, const Workload& w, std::int64_t processors) {
  using enum attention::TileOrder;
  if (!w.is_causal() || (c.min_blocks != 2 && c.min_blocks != 3)) return descending;
  const std::int64_t tiles = q_tiles(c.block_m, w);
  return c.min_blocks == 2 && tiles > processors && tiles <= 2 * processors ? lpt_then_spt : lpt;
}

// With KV groups waits apart and late loads spill under a causal mask.
sm80::Config under_mask(sm80::Config c) {
  if (c.kv_groups > 1) c.split_wait = c.late_loads = false;
  return c;
}

// In fp32. Tiles take twice the room, and what a warp does for three products instead of one, reading operands and
// splitting them, is shared by 32 rows where registers allow: at head dim 64.
std::vector<sm80::Config> in_fp32(const Workload& w, const DeviceFacts& device) {
  using enum attention::TileOrder;
  const std::int64_t processors = num_sms_of(device);
  const sm80::Config c{.block_n = 32,
                       .stages = 2,
                       .q_in_registers = false,
                       .rescale = attention::Rescale::when_grown,
                       .tile_order = w.is_causal() ? lpt : descending};
  std::vector<sm80::Config> all;
  if (4 * q_tiles(64, w) <= 3 * processors) {
    // Multiprocessors without a tile of 64 rows: tiles of 32, and of their keys each group a part.
    sm80::Config split = c;
    split.block_m = 32;
    split.kv_groups = w.dim == 64 ? 4 : 2;
    split.tile_order = descending;
    all.push_back(split);
  }
  sm80::Config wide = c;
  wide.block_m = 128;
  wide.warp_rows = 32;
  for (sm80::Config one : {wide, c}) {
    if (one == wide && (w.dim != 64 || q_tiles(128, w) <= processors)) continue;
    one.min_blocks = 2;
    all.push_back(one);
    one.min_blocks = 1;
    all.push_back(one);
    one.tile_order = descending;
    all.push_back(one);
  }
  return all;
}

}  // namespace

std::vector<sm80::Config> sm80_defaults(const Workload& workload, const DeviceFacts& device, RuleTrace* trace) {
  const Workload w = with_keys_of_a_tile(workload);
  if (w.dtype == Dtype::fp32) return in_fp32(w, device);
  const std::int64_t processors = num_sms_of(device);
  const Facts facts{.dim = w.dim,
                    .len_k = w.len_k,
                    .causal = w.is_causal(),
                    .tiles = q_tiles(64, w),
                    .processors = processors,
                    .can_sleep = device.compute_capability >= 90};
  const Tiles& chosen = choose(kTiles, kTilesRows, facts, trace);
  std::vector<sm80::Config> all{chosen.first};
  if (chosen.second) all.push_back(*chosen.second);
  if (w.dim < 256) {
    // What fits where that does not: the tiles of 64 rows at the end of the table, then fewer keys.
    all.push_back(w.dim == 64 ? kBlockM64Dim64 : facts.can_sleep ? kBlockM64Mbarrier : kBlockM64);
  }
  for (sm80::Config& c : all) {
    if (w.is_causal()) c = under_mask(c);
    c.tile_order = order_of(c, w, processors);
  }
  if (w.dim < 256) {
    sm80::Config c = all.back();
    c.tile_order = attention::TileOrder::descending;
    all.push_back(c);
    c.block_n = 32;
    all.push_back(c);
    // FlashAttention-2's tiles for these head dims, within sm_89's 99 KiB of shared memory.
    all.push_back({.block_n = w.dim == 128 ? 32 : 64, .rescale = Rescale::when_grown});
  }
  return all;
}

DefaultRule sm80_tiles_rule(std::string (*text_of)(const sm80::Config&)) {
  return rule_of(kTiles, kTilesRows, [&](const Tiles& tiles) { return text_of(tiles.first); });
}

}  // namespace heed
