#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "kernels/stream/legality.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/registry.hpp"
#include "variant/stream_default.hpp"

namespace heed {
namespace {

// Where only an architecture is known: an H200's.
constexpr int kUnknownProcessors = 132;
// The kernel counts row tiles in 32 bits, up to one grid beyond the last.
constexpr std::int64_t kMostRowTiles = std::int64_t{1} << 30;

const KnobTable<stream::Config>& table() {
  static const KnobTable<stream::Config> knobs = [] {
    using enum Bound;
    using C = stream::Config;
    KnobTable<C> t;
    t.add("row_groups", "m", &C::row_groups, {1, 2, 3, 4}, "warpgroups a block with 64 query rows each")
        .acts_on({tail, tensor, l2, shared_memory})
        .shares_work();
    t.add("key_groups", "g", &C::key_groups, {1, 2, 4},
          "parts of the keys that warpgroups with the same rows share out")
        .acts_on({latency, tail})
        .shares_work();
    t.add("cluster", "l", &C::cluster, {1, 2}, "blocks that share rows, split their keys and merge")
        .acts_on({latency, tail})
        .shares_work();
    t.add("tile_keys", "n", &C::tile_keys, {32, 48, 64, 80, 96, 112, 128}, "keys a score product")
        .acts_on({tensor, issue, latency});
    t.add("stages", "s", &C::stages, {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16},
          "turns whose keys and values a key group keeps in shared memory")
        .acts_on({latency, l2, dram});
    t.add("query_stages", "q", &C::query_stages, {1, 2, 3, 4}, "row tiles of queries kept in shared memory")
        .acts_on({latency, tail, dram});
    t.add("schedule", "h", &C::schedule, "heed::stream::Schedule", {"one_tile", "persistent", "dynamic"},
          "row tiles of a block: one, every so many-th, or the next that no block has taken")
        .acts_on({tail, latency, launch});
    t.add("waves", "wa", &C::waves, "heed::stream::Waves", {"filled", "even"},
          "how many blocks take row tile after row tile: as many as fit, or as few as need no more waves")
        .acts_on({tail, l2, dram});
    t.add("overlap", "o", &C::overlap, "heed::stream::Overlap", {"nothing", "values", "products"},
          "of its own products, what a warpgroup's exponentials run beside")
        .acts_on({tensor, exponentials, latency});
    t.add("product_order", "p", &C::product_order, "heed::stream::ProductOrder",
          {"values_first", "scores_first", "alternating"}, "order in which the two products go to the tensor cores")
        .acts_on({tensor, latency});
    t.add("reference", "r", &C::reference, "heed::stream::Reference", {"exact", "first_tile", "first_keys"},
          "what is subtracted before the exponential: the maximum so far, or that of the first tiles or keys")
        .acts_on({issue, fma, latency});
    t.add("turns", "f", &C::turns, "heed::stream::Turns", {"any", "in_order"},
          "whether a block's row groups multiply as soon as they can, or one after the other")
        .acts_on({tensor, exponentials, latency});
    t.add("starts", "st", &C::starts, "heed::stream::Starts", {"together", "in_turn"},
          "whether a block's key groups begin as their keys arrive, or each after the first scores of the one before")
        .acts_on({tensor, exponentials, latency});
    t.add("vote", "j", &C::vote, "heed::stream::Vote", {"at_once", "after_products"},
          "when a warp asks whether its probabilities overflow: as it has them, or once the products beside them are "
          "done")
        .acts_on({issue, latency});
    t.add("masking", "z", &C::masking, "heed::stream::Masking", {"ahead", "with_vote", "apart"},
          "how a tile that some row does not see whole leaves the usual way: by a branch in front of its exponentials, "
          "with the vote behind them, or by the branch in a program that rows with one such tile do without")
        .acts_on({issue, tensor, exponentials});
    t.add("producer", "w", &C::producer, "heed::stream::Producer", {"own_warp", "own_group"},
          "who starts the copies: a warp, or a warpgroup that leaves its registers to the others")
        .acts_on({latency, issue});
    t.add("release", "rl", &C::release, "heed::stream::Release", {"at_once", "after_copies"},
          "when a producer warpgroup leaves its registers to the others: before all else, or once the first copies are "
          "under way")
        .acts_on({latency, launch});
    t.add("shares", "sh", &C::shares, "heed::stream::Shares", {"when_due", "ahead"},
          "when a consumer works out which rows and tiles are its: when its queries have arrived, or meanwhile")
        .acts_on({latency, launch});
    t.add("trigger", "t", &C::trigger, "heed::stream::Trigger", {"none", "last_copies"},
          "when the next launch may start its set-up, if it is a dependent one")
        .acts_on({launch, latency});
    t.add(
         "store", "e", &C::store, "heed::stream::Store", {"pairs", "pieces", "rows", "aimed_rows", "boxes"},
         "finished rows leave by 4 bytes a lane, by 16, or as whole lines by way of shared memory, whose places may be "
         "worked out at the start or left to bulk copies")
        .acts_on({l2, dram});
    t.add("tile_order", "y", &C::tile_order, "heed::stream::TileOrder",
          {"rows_first", "heads_first", "mirrored", "folded"},
          "row tiles head by head, the same rows of all heads whose keys fit the L2, rows from both ends of a head, or "
          "the longest row tiles of all heads and then the shortest")
        .acts_on({tail, l2, dram});
    t.add("pairs", "i", &C::pairs, "heed::stream::Pairs", {"apart", "together"},
          "key tiles that only one of two mirrored row groups sees: that one's alone, or taken by turns")
        .acts_on({tail, latency, tensor});
    t.add(
         "evict_first", "v", &C::evict_first, "heed::stream::EvictFirst",
         {"none", "queries", "passing", "inputs", "all", "values", "but_keys", "but_most_keys", "half", "but_opening",
          "but_first_keys"},
         "what the L2 may give up before other lines: nothing, queries, outputs as well, all that is read, all, values "
         "and outputs, all but keys, all but those of three heads in four, outputs and all that is read of every head "
         "in the second half, all but the queries of a block's first row tile and its first two tiles of keys, or all "
         "but those queries and all keys of that row tile")
        .acts_on({l2, dram});
    t.add("arrival", "a", &C::arrival, "heed::stream::Arrival", {"at_use", "ahead"},
          "when a warpgroup asks whether its next keys and values have arrived: when it needs them, or beside the "
          "exponentials before")
        .acts_on({latency, tensor});
    t.add("upkeep", "u", &C::upkeep, "heed::stream::Upkeep", {"branches", "conditions"},
          "how stages are found and freed: by their addresses and in a branch, or counted on and under a condition")
        .acts_on({issue, latency});
    t.add("sums", "x", &C::sums, "heed::stream::Sums", {"at_end", "beside_values"},
          "when the lanes of a row add up their sums: behind its last product or beside it")
        .acts_on({latency});
    t.add("scaling", "b", &C::scaling, "heed::stream::Scaling", {"at_use", "step_ahead", "tile_ahead"},
          "where scores are scaled in the source: at their exponentials, 16 keys ahead of them, or in front of all")
        .acts_on({issue, fma, exponentials});
    t.add("packing", "c", &C::packing, "heed::stream::Packing", {"at_once", "step_later", "at_end"},
          "where probabilities are rounded in the source: behind their exponentials, 16 keys later, or behind all")
        .acts_on({issue, exponentials});
    t.add("adding", "k", &C::adding, "heed::stream::Adding", {"at_once", "step_later", "at_end"},
          "where probabilities are summed in the source: behind their exponentials, 16 keys later, or behind all")
        .acts_on({issue, fma, exponentials});
    t.add("sizes", "kn", &C::sizes, "heed::stream::Sizes", {"any", "fixed", "whole"},
          "what the program knows of its launches: nothing, the workload's lengths, heads and batch as constants, or "
          "also that row tiles are whole")
        .acts_on({latency, launch, issue})
        .known_with(static_cast<int>(stream::Sizes::fixed));
    t.add("programs", "pg", &C::programs, "heed::stream::Programs", {"all", "needed"},
          "what a program for fixed sizes holds: all that any launch may need, or what launches of these sizes do")
        .acts_on({latency, issue});
    t.add("outputs", "ko", &C::outputs, "heed::stream::Outputs", {"any", "dense"},
          "how outputs lie: by the strides of a launch, or row behind row, so that their addresses are constants, for "
          "launches of such outputs alone")
        .acts_on({latency, issue})
        .known_with(static_cast<int>(stream::Outputs::dense));
    t.add("teams", "tm", &C::teams, {1, 2, 3, 4},
          "what would be so many blocks that stay, each with rings and a producer warp of its own, as one")
        .acts_on({latency, launch, tail, l2, dram});
    t.add("min_blocks", "d", &C::min_blocks, {1, 2, 3, 4},
          "thread blocks a multiprocessor, for the compiler and for the plan")
        .acts_on({latency, tail});
    return t;
  }();
  return knobs;
}

std::int64_t processors_of(const DeviceFacts& device) {
  return device.processors > 0 ? device.processors : kUnknownProcessors;
}

class StreamFamily final : public Family {
 public:
  std::string_view name() const override { return "fwd_sm90_stream"; }
  std::string_view folder() const override { return "kernels/stream"; }
  std::string_view description() const override {
    return "wgmma fed by a ring of bulk tensor copies: warpgroups take turns at the tensor cores, blocks may persist";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  std::string_view requirements() const override { return sm90_family().requirements(); }
  std::vector<Dtype> dtypes() const override { return sm90_family().dtypes(); }
  std::vector<int> head_dims() const override { return sm90_family().head_dims(); }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }

  std::optional<std::string> refuses(const Workload& workload, const DeviceFacts& device) const override {
    if (auto reason = refused_by_wgmma(workload, device)) return reason;
    if (const std::int64_t tiles = stream_row_tiles(1, workload); tiles > kMostRowTiles)
      return fmt::format("{} tiles of {} rows exceed the {} it counts to", tiles, stream::kGroupRows, kMostRowTiles);
    return std::nullopt;
  }

  /// Two blocks for each 64 rows, which fwd_sm90 makes of short launches, would not all run at once.
  std::string_view made_for(const Workload& workload, const DeviceFacts& device) const override {
    if (sm90_leads(workload, processors_of(device))) return {};
    return 2 * stream_row_tiles(1, workload) > processors_of(device) ? "Hopper, more rows than one wave of split tiles"
                                                                     : "";
  }

  std::optional<std::string> is_illegal(const Config& config, const Workload& workload,
                                        const DeviceFacts& device) const override {
    const stream::Config c = table().aggregate_of(config);
    const Problem problem = known_problem(workload);
    const int dim = problem.head_dim;
    if (c.sizes != stream::Sizes::any && problem.sizes.len_q == 0) return too_large_to_know(workload);
    // 128 registers of output leave none for probabilities that wait: 28 bytes spilled.
    const bool waits = c.packing != stream::Packing::at_once || c.adding != stream::Adding::at_once;
    if (stream::padded_dim(dim) == 256 && c.overlap == stream::Overlap::products && waits)
      return "probabilities that wait do not fit the registers; write packing=at_once,adding=at_once";
    if (c.schedule == stream::Schedule::one_tile)
      if (const auto reason = refused_by_grid(workload)) return *reason + "; write schedule=persistent";
    const std::int64_t of_head = (workload.len_q + stream::block_rows(c) - 1) / stream::block_rows(c);
    if (c.schedule == stream::Schedule::one_tile && stream::heads_in_x(c) && of_head > kMostGridYZ)
      return fmt::format("{} row tiles a head exceed the grid limit of {}; write tile_order=rows_first", of_head,
                         kMostGridYZ);
    switch (stream::is_legal(c, problem, device.shared_bytes_per_block, device.shared_bytes_per_processor)) {
      case stream::Illegal::no:
        return std::nullopt;
      case stream::Illegal::head_dim:
        return fmt::format("head dim {} is no multiple of 8 up to 256", dim);
      case stream::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", stream::threads(c));
      case stream::Illegal::tile_keys:
        return fmt::format("a tile of {} keys is no multiple of 16 from 32 to 128", c.tile_keys);
      case stream::Illegal::overlap:
        return "exact maxima rescale the output, which no product in flight allows; write overlap=nothing";
      case stream::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}",
                           stream::shared_plan(c, dim).total, device.name, device.shared_bytes_per_block);
      case stream::Illegal::occupancy:
        return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
      case stream::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit", stream::registers_needed(c, dim),
                           stream::registers_allowed(c));
      case stream::Illegal::operands:
        return fmt::format("its products name {} registers; at launch a thread has {}", stream::registers_named(c, dim),
                           stream::launch_registers(c));
      case stream::Illegal::same_program:
        return fmt::format("knobs without effect here have one name: write {}",
                           to_string(table().knobs(), canonical(config, workload)));
    }
    return "unknown reason";
  }

  Problem problem(const Config& config, const Workload& workload) const override {
    const stream::Config c = table().aggregate_of(config);
    return c.sizes == stream::Sizes::any ? problem_of(workload)
                                         : sized_problem_of(workload, c.outputs == stream::Outputs::dense);
  }

  Config canonical(const Config& config, const Workload& workload) const override {
    return table().config_of(stream::canonical(table().aggregate_of(config), known_problem(workload)));
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    const Problem problem = known_problem(workload);
    const stream::Config chosen = stream_default(workload, processors_of(device), [&](const stream::Config& c) {
      return !is_illegal(table().config_of(stream::canonical(c, problem)), workload, device);
    });
    Config config = canonical(table().config_of(chosen), workload);
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }

  std::string prelude(const Config& config, const Workload& workload) const override {
    return kernel_prelude("stream", table().render(config), problem(config, workload)) +
           cluster_attribute(table().aggregate_of(config).cluster);
  }

  std::string entry() const override {
    return kernel_entry({.name = "stream",
                         .takes_maps = true,
                         .attributes = "HEED_CLUSTER ",
                         .call = "forward<kConfig, kProblem>({})"});
  }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts& device) const override {
    const stream::Config c = table().aggregate_of(config);
    LaunchPlan plan;
    plan.entry = "heed_forward";
    const std::int64_t tiles = stream_row_tiles(c.row_groups, workload);
    if (c.schedule == stream::Schedule::one_tile) {
      plan.grid = {static_cast<std::uint32_t>(tiles / workload.heads / workload.batch),
                   static_cast<std::uint32_t>(workload.heads), static_cast<std::uint32_t>(workload.batch)};
      if (stream::heads_in_x(c)) std::swap(plan.grid[0], plan.grid[1]);
      plan.grid[0] *= static_cast<std::uint32_t>(c.cluster);
    } else {
      const std::int64_t places = processors_of(device) * c.min_blocks * c.teams;
      const std::int64_t blocks = (stream::blocks_that_stay(c, tiles, places) + c.teams - 1) / c.teams;
      plan.grid = {static_cast<std::uint32_t>(blocks), 1, 1};
    }
    plan.threads = static_cast<std::uint32_t>(stream::threads(c));
    plan.cluster = static_cast<std::uint32_t>(c.cluster);
    plan.shared_bytes = stream::shared_plan(c, static_cast<int>(workload.dim)).total;
    plan.counters = c.schedule == stream::Schedule::dynamic ? 1 : 0;
    plan.boxes = TensorBoxes{.problem = problem_of(workload),
                             .columns = tile::kBoxColumns,
                             .q_rows = stream::kGroupRows,
                             .k_rows = c.tile_keys,
                             .v_rows = c.tile_keys,
                             .o_rows = c.store == stream::Store::boxes ? stream::box_rows(c) : 0};
    plan.dependent = c.trigger != stream::Trigger::none;
    return plan;
  }

  int register_limit(const Config& config) const override {
    return stream::registers_allowed(table().aggregate_of(config));
  }
};

}  // namespace

const Family& stream_family() {
  static const StreamFamily family;
  return family;
}

}  // namespace heed
