#include <fmt/format.h>

#include "base/check.hpp"
#include "kernels/sm90/config.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/registry.hpp"

namespace heed {
namespace {

const KnobTable<sm90::Config>& table() {
  static const KnobTable<sm90::Config> knobs = [] {
    using enum Bound;
    using C = sm90::Config;
    KnobTable<C> t;
    t.add("row_groups", "m", &C::row_groups, {1, 2, 3, 4}, "warpgroups a block with 64 query rows each")
        .acts_on({tail, latency, l2, shared_memory})
        .shares_work();
    t.add("key_groups", "g", &C::key_groups, {1, 2}, "warpgroups of a block that share its rows and split its keys")
        .acts_on({latency, tail})
        .shares_work();
    t.add("cluster", "c", &C::cluster, {1, 2, 4, 8}, "blocks that share rows, split their keys and merge")
        .acts_on({latency, tail})
        .shares_work();
    t.add("chunk", "n", &C::chunk, {32, 64, 128}, "keys a score product").acts_on({latency, issue, tensor});
    t.add("chunks", "k", &C::chunks, {1, 2, 3, 4, 6, 8}, "score products in one unrolled segment")
        .acts_on({latency, issue, tensor});
    t.add("stages", "s", &C::stages, {1, 2, 3, 4}, "segments of K and V kept in shared memory")
        .acts_on({latency, l2, dram});
    t.add("score_lead", "a", &C::score_lead, {1, 2, 3, 4, 6, 8},
          "score products asked for before the first exponential")
        .acts_on({latency, tensor});
    t.add("value_waits", "w", &C::value_waits, {1, 2, 3, 4}, "barriers for the values of a segment").acts_on({latency});
    t.add("product_steps", "p", &C::product_steps, {1, 2, 4},
          "steps of 16 probabilities a value product takes together")
        .acts_on({tensor, issue, latency});
    t.add("product_start", "b", &C::product_start, {0, 2, 3, 4, 5, 6, 8},
          "step of exponentials before which no value product starts")
        .acts_on({tensor, latency});
    t.add("late_packing", "l", &C::late_packing, "round probabilities one step after their exponentials")
        .acts_on({issue, exponentials});
    t.add("prefetch_scores", "f", &C::prefetch_scores, "ask for the next segment's first scores within this one")
        .acts_on({latency, tensor});
    t.add("reference", "r", &C::reference, "heed::sm90::Reference", {"exact", "first_chunk", "first_keys"},
          "what is subtracted before the exponential: the maximum, the first chunk's, or that of the first 16 keys")
        .acts_on({issue, fma, latency});
    t.add(
         "mask", "y", &C::mask, "heed::sm90::Mask", {"scores", "probabilities"},
         "where keys that a row does not see are taken out: before the exponentials in a branch, or after them without")
        .acts_on({latency, issue});
    t.add("row_sum", "u", &C::row_sum, "heed::sm90::RowSum", {"adds", "ones_column"},
          "sums of probabilities by additions or by the tensor cores")
        .acts_on({issue, fma, tensor});
    t.add("vote", "v", &C::vote, "heed::sm90::Vote", {"before_sending", "after_writing"},
          "when parts of one segment find out that their first keys misled: each by itself, or all at the end")
        .acts_on({latency, issue});
    t.add("exchange", "x", &C::exchange, "heed::sm90::Exchange", {"half", "single"},
          "precision in which partial outputs travel between blocks")
        .acts_on({latency});
    t.add("weights", "z", &C::weights, "heed::sm90::Weights", {"with_slices", "first"},
          "what blocks of a cluster weigh each other's results by is waited for with those, or before them")
        .acts_on({latency});
    t.add("kept_columns", "ka", &C::kept_columns, "heed::sm90::KeptColumns", {"with_sent", "while_sending"},
          "when a block multiplies the columns that it keeps: beside those that it sends, or while those travel")
        .acts_on({tensor, latency});
    t.add("placing", "j", &C::placing, "heed::sm90::Placing", {"in_order", "free"},
          "whether exponentials and conversions stay where they stand in the source or go where the compiler likes")
        .acts_on({issue, exponentials, tensor});
    t.add("key_heads", "i", &C::key_heads, "heed::sm90::KeyHeads", {"shared", "own"},
          "whether query heads may share keys, which costs the first copy a division")
        .acts_on({launch, latency});
    t.add("multicast", "km", &C::multicast, "heed::sm90::Multicast", {"none", "queries"},
          "whether blocks that share rows each copy all queries, or a part of them to all")
        .acts_on({l2, latency});
    t.add("opening", "h", &C::opening, "heed::sm90::Opening", {"lengths_first", "maps_first", "queries_first"},
          "what is known before the first copy: lengths, then where tensor maps lie, or both beside each other; or "
          "only what the queries need")
        .acts_on({launch, latency});
    t.add("producer", "q", &C::producer, "heed::sm90::Producer", {"own_warp", "own_group", "first_warp"},
          "who starts the copies into shared memory")
        .acts_on({latency, issue});
    t.add("trigger", "t", &C::trigger, "heed::sm90::Trigger", {"none", "first_scores", "last_products"},
          "when the next launch may start its set-up, if it is a dependent one")
        .acts_on({launch});
    t.add("store", "e", &C::store, "heed::sm90::Store", {"pairs", "pieces", "boxes"},
          "bytes a lane writes at once, 4 or 16; or a bulk copy for every 16 rows, by way of shared memory")
        .acts_on({l2, dram});
    t.add("tile_order", "o", &C::tile_order, "heed::sm90::TileOrder", {"ascending", "descending", "folded"},
          "which query rows start first: of a head's, or the longest row tiles of all heads and then the shortest")
        .acts_on({tail});
    t.add("sizes", "kn", &C::sizes, "heed::sm90::Sizes", {"any", "fixed"},
          "what the program knows of its launches: nothing, or the workload's lengths, heads and batch as constants")
        .acts_on({latency, launch, issue})
        .known_with(static_cast<int>(sm90::Sizes::fixed));
    t.add("programs", "pg", &C::programs, "heed::sm90::Programs", {"all", "needed"},
          "what a program for fixed sizes holds: all that any launch may need, or what launches of these sizes do")
        .acts_on({latency, issue});
    t.add("outputs", "ko", &C::outputs, "heed::sm90::Outputs", {"any", "dense"},
          "how outputs lie: by the strides of a launch, or row behind row, so that their addresses are constants, for "
          "launches of such outputs alone")
        .acts_on({latency, issue})
        .known_with(static_cast<int>(sm90::Outputs::dense));
    t.add("min_blocks", "d", &C::min_blocks, {1, 2, 3, 4},
          "thread blocks a multiprocessor the compiler leaves registers for")
        .acts_on({latency, tail});
    return t;
  }();
  return knobs;
}

// Up to so many keys two blocks that share a row tile have two key tiles each, and starting is what counts. H200, us,
// causal, this family / fwd_sm90_stream: b4h8l256d64 3.62 / 3.68, b1h16l512d64 4.29 / 4.12, b1h8l1024d64 5.77 / 5.21.
constexpr std::int64_t kKeysOfShortRows = 256;

std::int64_t row_tiles(const sm90::Config& c, const Workload& w) {
  const std::int64_t rows = std::int64_t{c.row_groups} * sm90::kGroupRows;
  return (w.len_q + rows - 1) / rows;
}

// Row tiles of 64 rows, of all heads.
std::int64_t all_row_tiles(const Workload& w) {
  return row_tiles({.row_groups = 1}, w) * w.heads * w.batch;
}

// Whether row tiles that are each split in two take more than one wave, but all run at once, two blocks a
// multiprocessor.
bool fits_two_a_processor(const Workload& w, std::int64_t processors) {
  const std::int64_t tiles = all_row_tiles(w);
  return sm90::padded_dim(static_cast<int>(w.dim)) == 64 && 2 * tiles > processors && tiles <= processors;
}

// Whether rows see two chunks of keys at most under a causal mask, in many waves.
bool has_short_rows(const Workload& w, std::int64_t processors) {
  return w.is_causal() && sm90::padded_dim(static_cast<int>(w.dim)) == 64 && w.len_k <= 128 &&
         all_row_tiles(w) > 4 * processors;
}

class Sm90Family final : public Family {
 public:
  std::string_view name() const override { return "fwd_sm90"; }
  std::string_view folder() const override { return "kernels/sm90"; }
  std::string_view description() const override {
    return "wgmma and bulk tensor copies, keys split over a thread-block cluster and merged in the same launch";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  std::string_view requirements() const override {
    return "an NVIDIA GPU of compute capability 9.0 (Hopper) and NVRTC 12.4 or newer";
  }
  std::vector<Dtype> dtypes() const override { return {Dtype::fp16, Dtype::bf16}; }
  std::vector<int> head_dims() const override { return {32, 64, 96, 128, 192, 256}; }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }

  std::optional<std::string> refuses(const Workload& workload, const DeviceFacts& device) const override {
    if (auto reason = refused_by_wgmma(workload, device)) return reason;
    return refused_by_grid(workload);
  }

  /// Whatever it takes, after the families made for fewer workloads: wgmma has nearly twice the rate of mma.sync.
  std::string_view made_for(const Workload&, const DeviceFacts&) const override { return "Hopper"; }

  std::optional<std::string> is_illegal(const Config& config, const Workload& workload,
                                        const DeviceFacts& device) const override {
    const sm90::Config c = table().aggregate_of(config);
    const Problem problem = known_problem(workload);
    const int dim = problem.head_dim;
    if (c.sizes != sm90::Sizes::any && problem.sizes.len_q == 0) return too_large_to_know(workload);
    if (c.key_heads == sm90::KeyHeads::own && workload.heads != workload.heads_kv)
      return fmt::format("{} query heads share {} key heads; write key_heads=shared", workload.heads,
                         workload.heads_kv);
    if (sm90::heads_first(c) && row_tiles(c, workload) > kMostGridYZ)
      return fmt::format("{} row tiles a head exceed the grid limit of {}; write tile_order=descending",
                         row_tiles(c, workload), kMostGridYZ);
    switch (sm90::is_legal(c, problem, device.shared_bytes_per_block, device.shared_bytes_per_processor)) {
      case sm90::Illegal::no:
        return std::nullopt;
      case sm90::Illegal::head_dim:
        return fmt::format("head dim {} is no multiple of 8 up to 256", dim);
      case sm90::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", sm90::threads(c));
      case sm90::Illegal::parts:
        return fmt::format("{} parts cannot share {} columns; each keeps 16 at least", sm90::parts(c),
                           sm90::padded_dim(dim));
      case sm90::Illegal::cluster:
        return fmt::format("a cluster of {} blocks exceeds the 8 that every device schedules", c.cluster);
      case sm90::Illegal::segment:
        return fmt::format("a segment of {} keys exceeds the 256 whose scores fit registers", sm90::segment_keys(c));
      case sm90::Illegal::value_waits:
        return fmt::format("{} barriers do not divide {} chunks", c.value_waits, c.chunks);
      case sm90::Illegal::products:
        return fmt::format("products of {} steps do not divide the steps behind a barrier", c.product_steps);
      case sm90::Illegal::score_lead:
        return fmt::format("a segment has {} chunks, not the {} of score_lead", c.chunks, c.score_lead);
      case sm90::Illegal::ones_column:
        return "columns of ones need head dims up to 64; write row_sum=adds";
      case sm90::Illegal::prefetch_scores:
        return "prefetching scores takes two chunks and two stages at least";
      case sm90::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}", sm90::shared_plan(c, dim).total,
                           device.name, device.shared_bytes_per_block);
      case sm90::Illegal::occupancy:
        return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
      case sm90::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit", sm90::registers_needed(c, dim),
                           sm90::registers_allowed(c));
      case sm90::Illegal::operands:
        return fmt::format("its products name {} registers; at launch a thread has {}", sm90::registers_named(c, dim),
                           sm90::launch_registers(c));
      case sm90::Illegal::same_program:
        return fmt::format("knobs without effect here have one name: write {}",
                           to_string(table().knobs(), canonical(config, workload)));
    }
    return "unknown reason";
  }

  Problem problem(const Config& config, const Workload& workload) const override {
    const sm90::Config c = table().aggregate_of(config);
    return c.sizes == sm90::Sizes::any ? problem_of(workload)
                                       : sized_problem_of(workload, c.outputs == sm90::Outputs::dense);
  }

  Config canonical(const Config& config, const Workload& workload) const override {
    sm90::Config c = sm90::canonical(table().aggregate_of(config), known_problem(workload));
    if (workload.heads != workload.heads_kv) c.key_heads = sm90::KeyHeads::shared;
    return table().config_of(c);
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    sm90::Config c;
    const int dim = sm90::padded_dim(static_cast<int>(workload.dim));
    const int processors = device.processors > 0 ? device.processors : 132;  // limits alone: the whole chip
    if (workload.heads == workload.heads_kv) c.key_heads = sm90::KeyHeads::own;
    const bool lined_up = workload.mask == Mask::causal_top_left || (workload.len_k - workload.len_q) % 64 == 0;
    if (workload.is_causal()) {
      c.reference = sm90::Reference::first_keys;
      if (lined_up) c.mask = sm90::Mask::probabilities;
    }
    if (dim > 64) {
      c.row_sum = sm90::RowSum::adds;
      c.product_start = 0;
      c.score_lead = 1;
      // Two chunks in one segment: 3.89 us at b1h16l256d128 on an H200, 4.32 us with segments of one.
      c.chunks = 2;
    }
    if (dim > 128) {
      c.chunks = 1;
      c.stages = 2;
      if (dim == 256) c.chunk = 32;  // 128 registers of output leave little
      c.value_waits = 1;
    }
    // One wave, in any order: without asking how many row tiles there are.
    const bool is_one_wave = 2 * all_row_tiles(workload) <= processors;
    if (is_one_wave && dim <= 128) {
      c.tile_order = sm90::TileOrder::ascending;
      // Faster on an H200 by 0.03 us at b1h8l512d64 and 0.08 to 0.09 us at b1h16l256d128, the order of row tiles
      // included.
      c.opening = dim == 64 && !workload.is_causal() ? sm90::Opening::maps_first : sm90::Opening::queries_first;
      // As evolved at b1h8l512d64: 1.002 times as fast as products of two steps.
      if (dim == 64 && !workload.is_causal()) c.product_steps = 4;
    }
    if (has_short_rows(workload, processors)) {
      c.cluster = 1;
      c.min_blocks = 4;
      c.chunks = 1;
      c.stages = 2;
      c.score_lead = 1;
      c.value_waits = 1;
      c.product_start = 0;
    } else if (fits_two_a_processor(workload, processors)) {
      if (workload.is_causal()) c.tile_order = sm90::TileOrder::folded;
      c.min_blocks = 2;
      c.producer = sm90::Producer::own_warp;
      c.chunks = 2;
      c.stages = 2;
      c.value_waits = 1;
      if (workload.is_causal()) {
        // As evolved at b1h8l1024d64: 5.81 us; 5.87 with products from step 5 on and lengths first.
        c.product_start = 3;
        c.opening = sm90::Opening::queries_first;
      } else {
        c.product_start = 0;
      }
    } else if (2 * all_row_tiles(workload) > processors) {
      // Two blocks a tile only while they all run at once; longer parts than one segment need a second stage.
      c.cluster = 1;
      c.producer = sm90::Producer::own_group;
      c.stages = 2;
      c.row_groups = 2;
      c.chunks = dim == 64 ? 2 : 1;
      c.value_waits = 1;
      c.product_start = 0;
    }
    // Two parts of one segment at head dim 128: H200, us, at b1h16l256d128 3.79 and causal 3.84 with columns that are
    // kept beside those that are sent; 3.73 and 3.76 after them, 3.68 with the weights first as well; causal 1.004
    // times as fast without those, and 1.008 times with a barrier for the values of each chunk (evolved).
    if (sm90::can_keep_for_later(c, dim)) {
      c.kept_columns = sm90::KeptColumns::while_sending;
      c.reference = sm90::Reference::first_keys;
      c.value_waits = 2;
      if (workload.is_causal())
        c.product_steps = 1;
      else
        c.weights = sm90::Weights::first;
    }
    // H200, us: b1h8l512d64 3.31 / 3.28, causal 3.355 / 3.345, b1h8l1024d64 causal 5.97 / 5.96.
    if (dim == 64 && c.cluster > 1) c.weights = sm90::Weights::first;
    Config config = table().config_of(sm90::canonical(c, problem_of(workload)));
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }

  std::string prelude(const Config& config, const Workload& workload) const override {
    return kernel_prelude("sm90", table().render(config), problem(config, workload)) +
           cluster_attribute(table().aggregate_of(config).cluster);
  }

  std::string entry() const override {
    return kernel_entry(
        {.name = "sm90",
         .takes_maps = true,
         .attributes = "HEED_CLUSTER ",
         .call = "Forward<kConfig, kProblem>(heed::sm90::known<kProblem>(params), maps, shared).run()"});
  }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts&) const override {
    const sm90::Config c = table().aggregate_of(config);
    LaunchPlan plan;
    plan.entry = "heed_forward";
    plan.grid = {static_cast<std::uint32_t>(row_tiles(c, workload)), static_cast<std::uint32_t>(workload.heads),
                 static_cast<std::uint32_t>(workload.batch)};
    if (sm90::heads_first(c)) std::swap(plan.grid[0], plan.grid[1]);
    plan.grid[0] *= static_cast<std::uint32_t>(c.cluster);
    plan.threads = static_cast<std::uint32_t>(sm90::threads(c));
    plan.cluster = static_cast<std::uint32_t>(c.cluster);
    plan.shared_bytes = sm90::shared_plan(c, static_cast<int>(workload.dim)).total;
    plan.boxes = TensorBoxes{.problem = problem_of(workload),
                             .columns = tile::kBoxColumns,
                             .q_rows = sm90::query_box_rows(c),
                             .k_rows = c.chunk,
                             .v_rows = sm90::segment_keys(c) / c.value_waits,
                             .o_rows = c.store == sm90::Store::boxes ? sm90::kStoredRows : 0,
                             .o_columns = sm90::kStoredColumns};
    plan.dependent = c.trigger != sm90::Trigger::none;
    return plan;
  }

  int register_limit(const Config& config) const override {
    return sm90::registers_allowed(table().aggregate_of(config));
  }
};

}  // namespace

bool sm90_leads(const Workload& workload, std::int64_t processors) {
  return workload.is_causal() && workload.len_k <= kKeysOfShortRows && fits_two_a_processor(workload, processors);
}

bool splits_rows(const Workload& workload, std::int64_t processors) {
  return workload.is_causal() && workload.len_k > kKeysOfShortRows && fits_two_a_processor(workload, processors);
}

const Family& sm90_family() {
  static const Sm90Family family;
  return family;
}

}  // namespace heed
