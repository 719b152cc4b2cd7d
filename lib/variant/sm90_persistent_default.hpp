/// Which config fwd_sm90_persistent starts from: a rule over rows, keys, multiprocessors and head dim, as measured on
/// an H200.
#pragma once

#include <cstdint>
#include <functional>

#include "heed/heed.hpp"
#include "kernels/sm90/persistent/config.hpp"
#include "variant/rule_table.hpp"

namespace heed {

/// A Q tile's keys over two blocks, two blocks a multiprocessor, a long one beside a short one: causal launches of
/// one such wave. The best of some 100 configs at b1h8l1024d64 causal on an H200: 5.19 us; fwd_sm90_split 5.77.
inline constexpr sm90_persistent::Config kSplitQTiles{
    .m_warpgroups = 1,
    .kv_groups = 1,
    .cluster = 2,
    .stages = 3,
    .softmax_overlap = sm90_persistent::SoftmaxOverlap::qk_pv,
    .gemm_order = sm90_persistent::GemmOrder::interleaved,
    .overflow_check = sm90_persistent::OverflowCheck::deferred,
    .mask_path = sm90_persistent::MaskPath::separate_loop,
    .tile_setup = sm90_persistent::TileSetup::early,
    .epilogue = sm90_persistent::EpilogueStore::smem_b128,
    .tile_order = sm90_persistent::TileOrder::lpt_then_spt,
    .barrier_wait = sm90_persistent::BarrierWait::try_wait_early,
    .stage_release = sm90_persistent::StageRelease::predicated,
    .convert_placement = sm90_persistent::ConvertPlacement::step_later,
    .rowsum_placement = sm90_persistent::RowsumPlacement::step_later,
    .min_blocks = 2};

/// Four consumer warpgroups a block that multiply one after the other, and the keys of their rows in two blocks of a
/// cluster: launches of one wave without a mask at head dims up to 64.
inline constexpr sm90_persistent::Config kSplitKv{.m_warpgroups = 4,
                                                  .kv_groups = 1,
                                                  .cluster = 2,
                                                  .stages = 3,
                                                  .gemm_order = sm90_persistent::GemmOrder::qk_first,
                                                  .row_max = sm90_persistent::RowMax::stale_16,
                                                  .pingpong = sm90_persistent::Pingpong::on,
                                                  .producer = sm90_persistent::Producer::warpgroup,
                                                  .epilogue = sm90_persistent::EpilogueStore::smem_b128,
                                                  .tile_order = sm90_persistent::TileOrder::lpt_l2,
                                                  .convert_placement = sm90_persistent::ConvertPlacement::step_later};

/// Q tiles of a launch with so many consumer warpgroups a block, all heads and batch entries together.
std::int64_t q_tiles_of_launch(int m_warpgroups, const Workload& workload);

/// @param num_sms of the device
/// @param is_legal whether a config fits the device, knobs that contradict each other reconciled
/// @param trace null, or what decided
/// @return legal, but for sm90_persistent::canonical
sm90_persistent::Config sm90_persistent_default(const Workload& workload, std::int64_t num_sms,
                                                const std::function<bool(const sm90_persistent::Config&)>& is_legal,
                                                RuleTrace* trace = nullptr);

}  // namespace heed
