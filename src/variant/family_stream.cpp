#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "kernels/stream/config.hpp"
#include "variant/family.hpp"
#include "variant/kernel_source.hpp"
#include "variant/registry.hpp"

namespace heed {
namespace {

// Where only an architecture is known: an H200's.
constexpr int kUnknownProcessors = 132;
// Keys over which a row tile is done before the copies of the next one arrive, unless they were asked for long before.
constexpr std::int64_t kFewKeys = 128;
// Up to so many keys a launch of one wave takes less than 20 us, of which its start is a good part, and tiles of 64
// keys are the faster ones at head dim 128.
constexpr std::int64_t kShortKeys = 2048;
// The fewest keys that were measured in two blocks of four row groups, and up to how many a branch that frees a stage
// is 1 to 2.5% faster there than a condition (b4h8l512d64, b1h16l1024d64); with 2048 it is 0.2% slower.
constexpr std::int64_t kSplitKeysFrom = 512;
constexpr std::int64_t kFreedInBranches = 1024;
// More stages than this hide nothing further.
constexpr int kMostStages = 8;
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
    t.add("trigger", "t", &C::trigger, "heed::stream::Trigger", {"none", "last_copies"},
          "when the next launch may start its set-up, if it is a dependent one")
        .acts_on({launch});
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
    t.add("evict_first", "v", &C::evict_first, "heed::stream::EvictFirst",
          {"none", "queries", "passing", "inputs", "all"},
          "what the L2 may give up before other lines: nothing, queries, outputs as well, all that is read, or all")
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

// Row tiles of a launch with so many row groups a block.
std::int64_t all_row_tiles(int row_groups, const Workload& w) {
  const std::int64_t rows = std::int64_t{row_groups} * stream::kGroupRows;
  return (w.len_q + rows - 1) / rows * w.heads * w.batch;
}

// The fewest row groups whose blocks all run at once, so that every processor has one; where there are more rows than
// that, the most that leave the fewest without rows at the end of a head.
int choose_row_groups(const Workload& w, std::int64_t processors, int most) {
  most = static_cast<int>(std::min<std::int64_t>(most, (w.len_q + stream::kGroupRows - 1) / stream::kGroupRows));
  for (int groups = 1; groups <= most; ++groups)
    if (all_row_tiles(groups, w) <= processors) return groups;
  int best = most;
  for (int groups = most - 1; groups > most / 2; --groups)
    if (groups * all_row_tiles(groups, w) < best * all_row_tiles(best, w)) best = groups;
  return best;
}

// A row tile's keys over two blocks, two blocks a multiprocessor, a long one beside a short one. H200, us, the best of
// some 100 configs at b1h8l1024d64 causal: 5.19; fwd_sm90 5.77.
constexpr stream::Config kSplitRows{.row_groups = 1,
                                    .key_groups = 1,
                                    .cluster = 2,
                                    .stages = 3,
                                    .overlap = stream::Overlap::products,
                                    .product_order = stream::ProductOrder::alternating,
                                    .vote = stream::Vote::after_products,
                                    .masking = stream::Masking::apart,
                                    .store = stream::Store::rows,
                                    .tile_order = stream::TileOrder::folded,
                                    .arrival = stream::Arrival::ahead,
                                    .upkeep = stream::Upkeep::conditions,
                                    .packing = stream::Packing::step_later,
                                    .adding = stream::Adding::step_later,
                                    .min_blocks = 2};

// Four row groups a block that multiply one after the other, and the keys of their rows in two blocks of a cluster.
constexpr stream::Config kSplitKeys{.row_groups = 4,
                                    .key_groups = 1,
                                    .cluster = 2,
                                    .stages = 3,
                                    .product_order = stream::ProductOrder::scores_first,
                                    .reference = stream::Reference::first_keys,
                                    .turns = stream::Turns::in_order,
                                    .producer = stream::Producer::own_group,
                                    .store = stream::Store::rows,
                                    .tile_order = stream::TileOrder::heads_first,
                                    .packing = stream::Packing::step_later};

// Where two row groups with two key groups each, which take turns two by two, would be one wave, and this is one, too:
// H200, us, those / this: b1h8l2048d64 17.4 / 17.0, b1h16l1024d64 10.0 / 9.76, b4h8l512d64 6.55 / 6.36,
// b1h6l2048d64 15.8 / 15.5, b1h8l1920k4096d64 31.6 / 30.7, b2h8l1000k1500d64 13.5 / 13.4.
bool splits_keys(const Workload& w, std::int64_t processors) {
  return !w.is_causal() && stream::padded_dim(static_cast<int>(w.dim)) == 64 && w.len_k >= kSplitKeysFrom &&
         choose_row_groups(w, processors, 4) == 2 &&
         kSplitKeys.cluster * all_row_tiles(kSplitKeys.row_groups, w) <= processors;
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
    // The same instructions, the same tensor maps, the same padding of head dims.
    if (auto reason = sm90_family().refuses(workload, device)) return reason;
    if (const std::int64_t tiles = all_row_tiles(1, workload); tiles > kMostRowTiles)
      return fmt::format("{} tiles of {} rows exceed the {} it counts to", tiles, stream::kGroupRows, kMostRowTiles);
    return std::nullopt;
  }

  /// Two blocks for each 64 rows, which fwd_sm90 makes of short launches, would not all run at once.
  std::string_view made_for(const Workload& workload, const DeviceFacts& device) const override {
    if (sm90_leads(workload, processors_of(device))) return {};
    return 2 * all_row_tiles(1, workload) > processors_of(device) ? "Hopper, more rows than one wave of split tiles"
                                                                  : "";
  }

  std::optional<std::string> is_illegal(const Config& config, const Workload& workload,
                                        const DeviceFacts& device) const override {
    const stream::Config c = table().aggregate_of(config);
    const Problem problem = problem_of(workload);
    const int dim = problem.head_dim;
    // 128 registers of output leave none for probabilities that wait: 28 bytes spilled.
    const bool waits = c.packing != stream::Packing::at_once || c.adding != stream::Adding::at_once;
    if (stream::padded_dim(dim) == 256 && c.overlap == stream::Overlap::products && waits)
      return "probabilities that wait do not fit the registers; write packing=at_once,adding=at_once";
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

  Config canonical(const Config& config, const Workload& workload) const override {
    return table().config_of(stream::canonical(table().aggregate_of(config), problem_of(workload)));
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    const std::int64_t processors = processors_of(device);
    if (splits_rows(workload, processors)) {
      Config config = canonical(table().config_of(kSplitRows), workload);
      HEED_CHECK(!is_illegal(config, workload, device));
      return config;
    }
    if (splits_keys(workload, processors)) {
      stream::Config c = kSplitKeys;
      if (workload.len_k > kFreedInBranches) c.upkeep = stream::Upkeep::conditions;
      Config config = canonical(table().config_of(c), workload);
      HEED_CHECK(!is_illegal(config, workload, device));
      return config;
    }
    const int dim = stream::padded_dim(static_cast<int>(workload.dim));
    const bool causal = workload.is_causal();
    stream::Config c;
    int most_stages = kMostStages;
    c.producer = stream::Producer::own_group;
    // Row tiles of one or two key tiles: starting and ending them is most of the work, which other blocks hide. With
    // twice as many keys only where a head has no rows for more row groups: four take 37.6 us at b64h12l256d64 on an
    // H200, small blocks 42.5.
    const bool few_rows = workload.len_q <= 2 * stream::kGroupRows;
    const std::int64_t most_keys = few_rows ? 2 * kFewKeys : kFewKeys;
    const bool few_keys = dim == 64 && workload.len_k <= most_keys && all_row_tiles(1, workload) > processors;
    if (few_keys) {
      c.row_groups = 1;
      if (workload.len_k <= kFewKeys) {
        // H200, us at b64h12l128d64 and causal: two blocks and tiles of 128 keys 14.1 and 15.8; 13.3 and 12.4 like
        // this; and in alternating order 12.9 and 12.3.
        c.tile_keys = 64;
        c.min_blocks = 3;
        c.product_order = stream::ProductOrder::alternating;
        most_stages = 2;
      } else {
        c.tile_keys = 128;
        c.min_blocks = 2;
      }
    } else if (dim == 64) {
      // Exponentials take as long as products, so that row groups which take turns keep both busy: four of them.
      c.row_groups = choose_row_groups(workload, processors, 4);
      c.key_groups = c.row_groups <= 2 && workload.len_k > c.tile_keys ? 2 : 1;
      if (c.row_groups == 1 && c.key_groups == 2) {
        // As evolved at b1h8l1024d64 on an H200: 7.13 us; 7.41 with a producer warpgroup and values first.
        c.overlap = stream::Overlap::products;
        c.product_order = stream::ProductOrder::alternating;
        // Blocks that stay merge key groups beside their loop, for which a producer warp leaves too few registers.
        if (all_row_tiles(1, workload) <= processors) c.producer = stream::Producer::own_warp;
        if (!causal) {
          c.vote = stream::Vote::after_products;  // 6.84 us, 6.99 us at once
          c.arrival = stream::Arrival::ahead;     // as evolved since: 1.01 times as fast
        }
      }
    } else if (dim == 128) {
      // Registers are for two row groups. Products take twice as long as exponentials, which hide behind the group's
      // own.
      c.row_groups = choose_row_groups(workload, processors, 2);
      c.key_groups = c.row_groups == 1 && workload.len_k > c.tile_keys ? 2 : 1;
      // H200, us at b1h32l1024d128: 32.9 with tiles of 64 keys, 34.6 with 96. Long rows want the larger.
      if (c.row_groups == 2) c.tile_keys = workload.len_k <= kShortKeys ? 64 : 96;
      c.overlap = stream::Overlap::products;
      c.product_order = causal ? stream::ProductOrder::scores_first : stream::ProductOrder::alternating;
    } else {
      c.row_groups = choose_row_groups(workload, processors, 2);
      if (dim == 192) c.overlap = stream::Overlap::products;
    }
    // More than one wave: blocks that stay load the next row tile's queries and keys beside the last products of this.
    const std::int64_t blocks = processors * c.min_blocks;
    const bool one_wave = all_row_tiles(c.row_groups, workload) <= blocks;
    const bool two_waves = !one_wave && all_row_tiles(c.row_groups, workload) <= 2 * blocks;
    if (!one_wave) {
      // Under a causal mask row tiles differ. Of two waves the second goes backwards, so that every block has as much
      // of both; H200, us, with rows from both ends of a head in each row tile / like this: b1h32l1024d128 21.1 / 19.1,
      // b1h8l4096d128 76.5 / 57.8, b1h8l4096d256 153 / 107, b4h16l1024d64 23.7 / 21.5. Of more waves the longest come
      // first and blocks take them as they finish (b1h16l4096d128 114, backwards and forwards 131); where all are short
      // that costs more than it evens out.
      const bool uneven = causal && !few_keys && !two_waves;
      c.schedule = uneven ? stream::Schedule::dynamic : stream::Schedule::persistent;
      if (uneven) c.tile_order = stream::TileOrder::heads_first;
      if (dim <= 128) c.query_stages = 2;
      if (causal && two_waves && dim == 128) {
        // H200, us at b1h8l4096d128: 56.0 in order, 54.2 with tiles of 64 keys as well; 18.5 instead of 19.1 at
        // b1h32l1024d128.
        c.turns = stream::Turns::in_order;
        c.tile_keys = 64;
        if (workload.len_k <= kShortKeys) {
          c.reference = stream::Reference::first_keys;
          c.arrival = stream::Arrival::ahead;
          most_stages = 3;  // as two runs of the search found: 1.01 times as fast as with 5
        }
      }
    } else if (causal) {
      // One wave is as long as its longest block: rows from both ends of a head make blocks equal.
      c.tile_order = stream::TileOrder::mirrored;
    }
    if (dim == 64 && !few_keys) {
      // Two row groups and two key groups meet in no order: scores first is 1.024 times as fast as values first at
      // b1h8l2048d64, alternating 1.014 times.
      const bool in_no_order = !causal && c.row_groups == 2 && c.key_groups == 2;
      if (in_no_order) c.product_order = stream::ProductOrder::scores_first;
      // With four row groups alternating products are 1.006 times as fast as values first where rows leave as lines
      // (b4h16l512d64).
      if (!causal && one_wave && c.row_groups == 4) c.product_order = stream::ProductOrder::alternating;
      // Where the way from exponentials to the next products is short, row groups overlap more; where it is the same
      // for all of them, they may fall into step and overlap less.
      if (in_no_order) c.turns = stream::Turns::in_order;  // 17.4 us at b1h8l2048d64, 17.8 us without
      if (!causal && !one_wave) c.product_order = stream::ProductOrder::scores_first;
      if (!in_no_order && (causal || one_wave)) c.reference = stream::Reference::first_keys;
      // Blocks that stay merge key groups beside their loop, and have no registers for this as well.
      const bool fits_twice = two_waves && c.key_groups == 1;
      const bool alone = causal && c.overlap == stream::Overlap::nothing && (one_wave || fits_twice);
      if (alone) {
        // Where few row groups are busy at a time, each has to hide its own exponentials. H200, us, beside nothing /
        // beside values: b4h16l512d64 7.82 / 7.72, b1h8l2048d64 12.4 / 12.3, b4h16l1024d64 21.5 / 20.8.
        c.overlap = stream::Overlap::values;
        c.product_order = stream::ProductOrder::scores_first;
        // And where there is time to hand results over, those with few keys help: b1h8l2048d64 12.5 / 12.3,
        // b2h8l2048d64 20.3 / 18.9, b1h8l4096d64 37.2 / 32.7; b4h16l512d64 7.8 / 8.7, b2h16l1024d64 11.8 / 12.0.
        if (one_wave && workload.len_k >= kShortKeys) c.pairs = stream::Pairs::together;
      } else {
        const bool two_halves = causal && c.key_groups == 2;
        // As evolved at b4h16l512d64, whose rows leave as lines: branches are 1.004 times as fast.
        const bool four_alone = one_wave && !causal && c.row_groups == 4;
        if (one_wave ? !two_halves && !four_alone : !causal) c.upkeep = stream::Upkeep::conditions;
        if (causal && !two_halves) c.arrival = stream::Arrival::ahead;
      }
      // Copies that nobody waits for yet come between those that everybody waits for at the start. H200, us, with as
      // many stages as fit / 3: b1h8l1024d64 6.77 / 6.72, b4h16l512d64 9.99 / 9.94; with 3 / 4: b1h8l1024d64 6.60 /
      // 6.56, b4h16l512d64 causal 7.81 / 7.72.
      if (one_wave && workload.len_k <= kShortKeys) most_stages = alone || c.row_groups == 1 ? 4 : 3;
    }
    if (few_keys) c.reference = stream::Reference::first_keys;
    const bool few_of_128 = dim == 128 && !causal && workload.len_k <= kShortKeys;
    if (few_of_128 && two_waves) most_stages = 4;  // which leaves room for rows on their way out
    if (dim == 128 && !few_of_128) c.upkeep = stream::Upkeep::conditions;
    // Two row groups that wait for both of their products fall into step. H200, us at b4h8l2048d256: 248; in order 200,
    // and 196 in alternating order.
    if (dim > 192 && c.row_groups > 1) {
      c.turns = stream::Turns::in_order;
      c.product_order = stream::ProductOrder::alternating;
    }
    // Where inputs and outputs are as large as the L2, what has been read or written for the last time only pushes out
    // what comes next. H200, two sets of tensors in turn, us, queries / outputs as well: b64h12l128d64 14.6 / 14.5
    // (14.4 / 14.3 as boxes), causal 14.3 / 14.0, b1h32l1024d128 30.5 / 30.3, causal 19.7 / 19.4; where all stays 2 to
    // 4% longer.
    const bool short_128 = two_waves && dim == 128 && workload.len_k <= kShortKeys;
    if (few_keys || short_128) c.evict_first = stream::EvictFirst::passing;
    const Problem problem = problem_of(workload);
    const auto is_legal = [&] {
      return !is_illegal(table().config_of(stream::canonical(c, problem)), workload, device);
    };
    c.stages = most_stages;
    while (c.stages > 1 && !is_legal()) --c.stages;
    // H200, us, in pieces / as lines: b64h12l128d64 14.6 / 14.2, causal 14.3 / 13.9, b1h32l1024d128 causal 21.0 / 20.5,
    // b4h16l1024d64 causal 21.0 / 20.5, b64h12l256d64 37.3 / 36.3, b1h8l2048d64 18.0 / 17.8; with a stage less for it
    // equal at b1h32l1024d128. Aimed at the start b1h8l1024d64 takes 6.58 instead of 6.63, b4h16l512d64 causal 7.78
    // instead of 7.89 (7.87 in pieces), the others of one wave up to 1% longer.
    const bool aimed = one_wave && (causal ? c.row_groups == 4 : c.row_groups == 1 && c.key_groups == 2);
    c.store = aimed ? stream::Store::aimed_rows
              : few_keys
                  ? stream::Store::boxes  // 14.4 us at b64h12l128d64, 14.6 us as lines; elsewhere up to 2% slower
                  : stream::Store::rows;
    if (!is_legal()) c.store = stream::Store::pieces;
    // H200, us, at the end / beside values: b64h12l128d64 14.1 / 14.0, causal 13.9 / 13.75; b4h16l512d64 causal 1.004
    // times as fast, elsewhere 0.99 to 1.004.
    if (few_keys || (aimed && causal)) c.sums = stream::Sums::beside_values;
    // H200, us, at use / like this: b1h32l1024d128 32.1 / 31.0 (with a stage less and rows as lines 30.5, with
    // references of the first keys as well 30.3), b16h16l1024d128 245.3 / 235.5.
    if (!causal && dim == 128 && workload.len_k <= kShortKeys && !one_wave) {
      c.scaling = stream::Scaling::tile_ahead;
      if (two_waves) c.reference = stream::Reference::first_keys;
    }
    if (!causal && one_wave && dim == 64) {
      // As measured among all orders on an H200: b1h8l1024d64 1.004 times as fast, b1h8l2048d64 1.006, b4h16l512d64
      // 1.003.
      if (c.overlap == stream::Overlap::products) {
        c.scaling = stream::Scaling::step_ahead;
        c.packing = stream::Packing::at_end;
        c.adding = stream::Adding::step_later;
      } else if (c.row_groups == 4) {
        c.scaling = stream::Scaling::step_ahead;
      } else if (c.row_groups == 2 && c.key_groups == 2) {
        c.packing = stream::Packing::step_later;
      }
    }
    Config config = canonical(table().config_of(c), workload);
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }

  std::string prelude(const Config& config, const Workload& workload) const override {
    return kernel_prelude("stream", table().render(config), workload) +
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
    const std::int64_t tiles = all_row_tiles(c.row_groups, workload);
    if (c.schedule == stream::Schedule::one_tile) {
      plan.grid = {static_cast<std::uint32_t>(tiles / workload.heads / workload.batch),
                   static_cast<std::uint32_t>(workload.heads), static_cast<std::uint32_t>(workload.batch)};
      if (stream::heads_in_x(c)) std::swap(plan.grid[0], plan.grid[1]);
      plan.grid[0] *= static_cast<std::uint32_t>(c.cluster);
    } else {
      plan.grid = {static_cast<std::uint32_t>(std::min(tiles, processors_of(device) * c.min_blocks)), 1, 1};
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
