#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "kernels/sm90/persistent/legality.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/registry.hpp"
#include "variant/sm90_persistent_default.hpp"

namespace heed {
namespace {

// Where only an architecture is known: an H200's.
constexpr int kUnknownSms = 132;
// The kernel counts Q tiles in 32 bits, up to one grid beyond the last.
constexpr std::int64_t kMostRowTiles = std::int64_t{1} << 30;

const KnobTable<sm90_persistent::Config>& table() {
  static const KnobTable<sm90_persistent::Config> knobs = [] {
    using enum Bound;
    using C = sm90_persistent::Config;
    KnobTable<C> t;
    t.add("m_warpgroups", "m", &C::m_warpgroups, {1, 2, 3, 4}, "warpgroups a block with 64 query rows each")
        .acts_on({tail, tensor, l2, shared_memory})
        .shares_work();
    t.add("kv_groups", "g", &C::kv_groups, {1, 2, 4},
          "parts of the keys that warpgroups with the same rows share out")
        .acts_on({latency, tail})
        .shares_work();
    t.add("cluster", "l", &C::cluster, {1, 2}, "blocks that share rows, split their keys and merge")
        .acts_on({latency, tail})
        .shares_work();
    t.add("block_n", "n", &C::block_n, {32, 48, 64, 80, 96, 112, 128}, "keys a score product")
        .acts_on({tensor, issue, latency});
    t.add("stages", "s", &C::stages, {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16},
          "turns whose keys and values a key group keeps in shared memory")
        .acts_on({latency, l2, dram});
    t.add("q_stages", "q", &C::q_stages, {1, 2, 3, 4}, "row tiles of queries kept in shared memory")
        .acts_on({latency, tail, dram});
    t.add("scheduler", "h", &C::scheduler, "heed::sm90_persistent::Scheduler", {"single_tile", "static_persistent", "dynamic_persistent"},
          "row tiles of a block: one, every so many-th, or the next that no block has taken")
        .acts_on({tail, latency, launch});
    t.add("grid", "wa", &C::grid, "heed::sm90_persistent::Grid", {"full", "balanced"},
          "how many blocks take row tile after row tile: as many as fit, or as few as need no more waves")
        .acts_on({tail, l2, dram});
    t.add("softmax_overlap", "o", &C::softmax_overlap, "heed::sm90_persistent::SoftmaxOverlap", {"none", "pv", "qk_pv"},
          "of its own products, what a warpgroup's exponentials run beside")
        .acts_on({tensor, exponentials, latency});
    t.add("gemm_order", "p", &C::gemm_order, "heed::sm90_persistent::GemmOrder",
          {"pv_first", "qk_first", "interleaved"}, "order in which the two products go to the tensor cores")
        .acts_on({tensor, latency});
    t.add("row_max", "r", &C::row_max, "heed::sm90_persistent::RowMax", {"online", "stale_tile", "stale_16"},
          "what is subtracted before the exponential: the maximum so far, or that of the first tiles or keys")
        .acts_on({issue, fma, latency});
    t.add("pingpong", "f", &C::pingpong, "heed::sm90_persistent::Pingpong", {"off", "on"},
          "whether a block's row groups multiply as soon as they can, or one after the other")
        .acts_on({tensor, exponentials, latency});
    t.add("stagger_splits", "st", &C::stagger_splits, "heed::sm90_persistent::StaggerSplits", {"off", "on"},
          "whether a block's key groups begin as their keys arrive, or each after the first scores of the one before")
        .acts_on({tensor, exponentials, latency});
    t.add("overflow_check", "j", &C::overflow_check, "heed::sm90_persistent::OverflowCheck", {"inlined", "deferred"},
          "when a warp asks whether its probabilities overflow: as it has them, or once the products beside them are "
          "done")
        .acts_on({issue, latency});
    t.add("mask_path", "z", &C::mask_path, "heed::sm90_persistent::MaskPath", {"branch", "redo", "separate_loop"},
          "how a tile that some row does not see whole leaves the usual way: by a branch in front of its exponentials, "
          "with the vote behind them, or by the branch in a program that rows with one such tile do without")
        .acts_on({issue, tensor, exponentials});
    t.add("producer", "w", &C::producer, "heed::sm90_persistent::Producer", {"warp", "warpgroup"},
          "who starts the copies: a warp, or a warpgroup that leaves its registers to the others")
        .acts_on({latency, issue});
    t.add("setmaxnreg", "rl", &C::setmaxnreg, "heed::sm90_persistent::Setmaxnreg", {"early", "after_loads"},
          "when a producer warpgroup leaves its registers to the others: before all else, or once the first copies are "
          "under way")
        .acts_on({latency, launch});
    t.add("tile_setup", "sh", &C::tile_setup, "heed::sm90_persistent::TileSetup", {"lazy", "early"},
          "when a consumer works out which rows and tiles are its: when its queries have arrived, or meanwhile")
        .acts_on({latency, launch});
    t.add("pdl_trigger", "t", &C::pdl_trigger, "heed::sm90_persistent::PdlTrigger", {"none", "last_load"},
          "when the next launch may start its set-up, if it is a dependent one")
        .acts_on({launch, latency});
    t.add(
         "epilogue", "e", &C::epilogue, "heed::sm90_persistent::EpilogueStore", {"st_b32", "st_b128", "smem_b128", "smem_b128_preaddressed", "tma"},
         "finished rows leave by 4 bytes a lane, by 16, or as whole lines by way of shared memory, whose places may be "
         "worked out at the start or left to bulk copies")
        .acts_on({l2, dram});
    t.add("tile_order", "y", &C::tile_order, "heed::sm90_persistent::TileOrder",
          {"row_major", "lpt_l2", "paired", "lpt_then_spt"},
          "row tiles head by head, the same rows of all heads whose keys fit the L2, rows from both ends of a head, or "
          "the longest row tiles of all heads and then the shortest")
        .acts_on({tail, l2, dram});
    t.add("share_causal_tail", "i", &C::share_causal_tail, "heed::sm90_persistent::ShareCausalTail", {"off", "on"},
          "key tiles that only one of two mirrored row groups sees: that one's alone, or taken by turns")
        .acts_on({tail, latency, tensor});
    t.add(
         "evict_first", "v", &C::evict_first, "heed::sm90_persistent::EvictFirst",
         {"none", "q", "q_o", "q_kv", "q_kv_o", "v_o", "q_v_o", "q_v_o_quarter_k", "half_heads", "all_but_first_q_2k",
          "all_but_first_q_k"},
         "what the L2 may give up before other lines: nothing, queries, outputs as well, all that is read, all, values "
         "and outputs, all but keys, all but those of three heads in four, outputs and all that is read of every head "
         "in the second half, all but the queries of a block's first row tile and its first two tiles of keys, or all "
         "but those queries and all keys of that row tile")
        .acts_on({l2, dram});
    t.add("barrier_wait", "a", &C::barrier_wait, "heed::sm90_persistent::BarrierWait", {"at_use", "try_wait_early"},
          "when a warpgroup asks whether its next keys and values have arrived: when it needs them, or beside the "
          "exponentials before")
        .acts_on({latency, tensor});
    t.add("stage_release", "u", &C::stage_release, "heed::sm90_persistent::StageRelease", {"branch", "predicated"},
          "how stages are found and freed: by their addresses and in a branch, or counted on and under a condition")
        .acts_on({issue, latency});
    t.add("rowsum_reduce", "x", &C::rowsum_reduce, "heed::sm90_persistent::RowsumReduce", {"at_end", "beside_pv"},
          "when the lanes of a row add up their sums: behind its last product or beside it")
        .acts_on({latency});
    t.add("scale_placement", "b", &C::scale_placement, "heed::sm90_persistent::ScalePlacement", {"at_use", "step_ahead", "tile_ahead"},
          "where scores are scaled in the source: at their exponentials, 16 keys ahead of them, or in front of all")
        .acts_on({issue, fma, exponentials});
    t.add("convert_placement", "c", &C::convert_placement, "heed::sm90_persistent::ConvertPlacement", {"at_once", "step_later", "at_end"},
          "where probabilities are rounded in the source: behind their exponentials, 16 keys later, or behind all")
        .acts_on({issue, exponentials});
    t.add("rowsum_placement", "k", &C::rowsum_placement, "heed::sm90_persistent::RowsumPlacement", {"at_once", "step_later", "at_end"},
          "where probabilities are summed in the source: behind their exponentials, 16 keys later, or behind all")
        .acts_on({issue, fma, exponentials});
    t.add("specialize", "kn", &C::specialize, "heed::sm90_persistent::Specialize", {"none", "shape", "whole_tiles"},
          "what the program knows of its launches: nothing, the workload's lengths, heads and batch as constants, or "
          "also that row tiles are whole")
        .acts_on({latency, launch, issue})
        .known_with(static_cast<int>(sm90_persistent::Specialize::shape));
    t.add("prune", "pg", &C::prune, "heed::sm90_persistent::Prune", {"off", "on"},
          "what a program for fixed sizes holds: all that any launch may need, or what launches of these sizes do")
        .acts_on({latency, issue});
    t.add("o_layout", "ko", &C::o_layout, "heed::sm90_persistent::OutputLayout", {"strided", "dense"},
          "how outputs lie: by the strides of a launch, or row behind row, so that their addresses are constants, for "
          "launches of such outputs alone")
        .acts_on({latency, issue})
        .known_with(static_cast<int>(sm90_persistent::OutputLayout::dense));
    t.add("virtual_ctas", "tm", &C::virtual_ctas, {1, 2, 3, 4},
          "what would be so many blocks that stay, each with rings and a producer warp of its own, as one")
        .acts_on({latency, launch, tail, l2, dram});
    t.add("min_blocks", "d", &C::min_blocks, {1, 2, 3, 4},
          "thread blocks a multiprocessor, for the compiler and for the plan")
        .acts_on({latency, tail});
    return t;
  }();
  return knobs;
}

std::int64_t num_sms_of(const DeviceFacts& device) {
  return device.processors > 0 ? device.processors : kUnknownSms;
}

class Sm90PersistentFamily final : public Family {
 public:
  std::string_view name() const override { return "fwd_sm90_persistent"; }
  std::string_view folder() const override { return "kernels/sm90/persistent"; }
  std::string_view description() const override {
    return "wgmma fed by a ring of bulk tensor copies: warpgroups take turns at the tensor cores, blocks may persist";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  std::string_view requirements() const override { return sm90_split_family().requirements(); }
  std::vector<Dtype> dtypes() const override { return sm90_split_family().dtypes(); }
  std::vector<int> head_dims() const override { return sm90_split_family().head_dims(); }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }

  std::optional<std::string> refuses(const Workload& workload, const DeviceFacts& device) const override {
    if (auto reason = refused_by_wgmma(workload, device)) return reason;
    if (const std::int64_t tiles = q_tiles_of_launch(1, workload); tiles > kMostRowTiles)
      return fmt::format("{} tiles of {} rows exceed the {} it counts to", tiles, sm90_persistent::kWarpgroupRows, kMostRowTiles);
    return std::nullopt;
  }

  /// Two blocks for each 64 rows, which fwd_sm90_split makes of short launches, would not all run at once.
  std::string_view made_for(const Workload& workload, const DeviceFacts& device) const override {
    if (prefers_split_kernel(workload, num_sms_of(device))) return {};
    return 2 * q_tiles_of_launch(1, workload) > num_sms_of(device) ? "Hopper, more rows than one wave of split tiles"
                                                                     : "";
  }

  std::optional<std::string> is_illegal(const Config& config, const Workload& workload,
                                        const DeviceFacts& device) const override {
    const sm90_persistent::Config c = table().aggregate_of(config);
    const Problem problem = known_problem(workload);
    const int dim = problem.head_dim;
    if (c.specialize != sm90_persistent::Specialize::none && problem.sizes.len_q == 0) return too_large_to_know(workload);
    // 128 registers of output leave none for probabilities that wait: 28 bytes spilled.
    const bool waits = c.convert_placement != sm90_persistent::ConvertPlacement::at_once || c.rowsum_placement != sm90_persistent::RowsumPlacement::at_once;
    if (sm90_persistent::padded_dim(dim) == 256 && c.softmax_overlap == sm90_persistent::SoftmaxOverlap::qk_pv && waits)
      return "probabilities that wait do not fit the registers; write convert_placement=at_once,rowsum_placement=at_once";
    if (c.scheduler == sm90_persistent::Scheduler::single_tile)
      if (const auto reason = refused_by_grid(workload)) return *reason + "; write scheduler=static_persistent";
    const std::int64_t of_head = (workload.len_q + sm90_persistent::block_rows(c) - 1) / sm90_persistent::block_rows(c);
    if (c.scheduler == sm90_persistent::Scheduler::single_tile && sm90_persistent::heads_in_x(c) && of_head > kMostGridYZ)
      return fmt::format("{} row tiles a head exceed the grid limit of {}; write tile_order=row_major", of_head,
                         kMostGridYZ);
    switch (sm90_persistent::is_legal(c, problem, device.shared_bytes_per_block, device.shared_bytes_per_processor)) {
      case sm90_persistent::Illegal::no:
        return std::nullopt;
      case sm90_persistent::Illegal::head_dim:
        return fmt::format("head dim {} is no multiple of 8 up to 256", dim);
      case sm90_persistent::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", sm90_persistent::threads(c));
      case sm90_persistent::Illegal::block_n:
        return fmt::format("a tile of {} keys is no multiple of 16 from 32 to 128", c.block_n);
      case sm90_persistent::Illegal::softmax_overlap:
        return "exact maxima rescale the output, which no product in flight allows; write softmax_overlap=none";
      case sm90_persistent::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}",
                           sm90_persistent::shared_plan(c, dim).total, device.name, device.shared_bytes_per_block);
      case sm90_persistent::Illegal::occupancy:
        return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
      case sm90_persistent::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit", sm90_persistent::registers_needed(c, dim),
                           sm90_persistent::registers_allowed(c));
      case sm90_persistent::Illegal::operands:
        return fmt::format("its products name {} registers; at launch a thread has {}", sm90_persistent::registers_named(c, dim),
                           sm90_persistent::launch_registers(c));
      case sm90_persistent::Illegal::same_program:
        return fmt::format("knobs without effect here have one name: write {}",
                           to_string(table().knobs(), canonical(config, workload)));
    }
    return "unknown reason";
  }

  Problem problem(const Config& config, const Workload& workload) const override {
    const sm90_persistent::Config c = table().aggregate_of(config);
    return c.specialize == sm90_persistent::Specialize::none ? problem_of(workload)
                                         : sized_problem_of(workload, c.o_layout == sm90_persistent::OutputLayout::dense);
  }

  Config canonical(const Config& config, const Workload& workload) const override {
    return table().config_of(sm90_persistent::canonical(table().aggregate_of(config), known_problem(workload)));
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    const Problem problem = known_problem(workload);
    const sm90_persistent::Config chosen = sm90_persistent_default(workload, num_sms_of(device), [&](const sm90_persistent::Config& c) {
      return !is_illegal(table().config_of(sm90_persistent::canonical(c, problem)), workload, device);
    });
    Config config = canonical(table().config_of(chosen), workload);
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }

  std::string prelude(const Config& config, const Workload& workload) const override {
    return kernel_prelude(folder(), "sm90_persistent", table().render(config), problem(config, workload)) +
           cluster_attribute(table().aggregate_of(config).cluster);
  }

  std::string entry() const override {
    return kernel_entry({.name = "sm90_persistent",
                         .takes_maps = true,
                         .attributes = "HEED_CLUSTER ",
                         .call = "forward<kConfig, kProblem>({})"});
  }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts& device) const override {
    const sm90_persistent::Config c = table().aggregate_of(config);
    LaunchPlan plan;
    plan.entry = "heed_forward";
    const std::int64_t tiles = q_tiles_of_launch(c.m_warpgroups, workload);
    if (c.scheduler == sm90_persistent::Scheduler::single_tile) {
      plan.grid = {static_cast<std::uint32_t>(tiles / workload.heads / workload.batch),
                   static_cast<std::uint32_t>(workload.heads), static_cast<std::uint32_t>(workload.batch)};
      if (sm90_persistent::heads_in_x(c)) std::swap(plan.grid[0], plan.grid[1]);
      plan.grid[0] *= static_cast<std::uint32_t>(c.cluster);
    } else {
      const std::int64_t places = num_sms_of(device) * c.min_blocks * c.virtual_ctas;
      const std::int64_t blocks = (sm90_persistent::persistent_ctas(c, tiles, places) + c.virtual_ctas - 1) / c.virtual_ctas;
      plan.grid = {static_cast<std::uint32_t>(blocks), 1, 1};
    }
    plan.threads = static_cast<std::uint32_t>(sm90_persistent::threads(c));
    plan.cluster = static_cast<std::uint32_t>(c.cluster);
    plan.shared_bytes = sm90_persistent::shared_plan(c, static_cast<int>(workload.dim)).total;
    plan.counters = c.scheduler == sm90_persistent::Scheduler::dynamic_persistent ? 1 : 0;
    plan.boxes = TensorBoxes{.problem = problem_of(workload),
                             .columns = tile::kBoxColumns,
                             .q_rows = sm90_persistent::kWarpgroupRows,
                             .k_rows = c.block_n,
                             .v_rows = c.block_n,
                             .o_rows = c.epilogue == sm90_persistent::EpilogueStore::tma ? sm90_persistent::box_rows(c) : 0};
    plan.dependent = c.pdl_trigger != sm90_persistent::PdlTrigger::none;
    return plan;
  }

  int register_limit(const Config& config) const override {
    return sm90_persistent::registers_allowed(table().aggregate_of(config));
  }
};

}  // namespace

const Family& sm90_persistent_family() {
  static const Sm90PersistentFamily family;
  return family;
}

}  // namespace heed
