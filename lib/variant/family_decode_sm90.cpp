#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "kernels/decode_sm90/config.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/registry.hpp"

namespace heed {
namespace {

// From this many queries on, tiles of one head's queries are what other families are better at.
constexpr std::int64_t kFewQueries = 16;
// Where only an architecture is known: an H200's.
constexpr std::int64_t kUnknownProcessors = 132;
// Of a block: Little's law asks for 36 KiB a multiprocessor (4.8 TB/s, 1 us, 132 of them), and latency grows with load.
constexpr int kBytesUnderWay = 128 * 1024;
// A block has so many tiles at least, where tiles can be made so narrow: shares differ by one.
constexpr std::int64_t kFewestTiles = 4;

std::int64_t processors_of(const DeviceFacts& device) {
  return device.processors > 0 ? device.processors : kUnknownProcessors;
}

const KnobTable<decode_sm90::Config>& table() {
  static const KnobTable<decode_sm90::Config> knobs = [] {
    using enum Bound;
    using C = decode_sm90::Config;
    KnobTable<C> t;
    t.add("block_m", "m", &C::block_m, {8, 16, 32, 64}, "packed query rows a thread block")
        .acts_on({tail, latency, l2, shared_memory})
        .shares_work();
    t.add("block_n", "n", &C::block_n, {16, 32, 64, 128}, "keys a tile").acts_on({latency, tail, issue, dram});
    t.add("groups", "g", &C::groups, {2, 4, 6, 8},
          "groups of warps: by tiles they take a block's tiles in turn, by columns all of them every tile")
        .acts_on({latency, issue, dram})
        .shares_work();
    t.add("stages", "s", &C::stages, {2, 3, 4, 6, 8, 12, 16, 24}, "tiles of K and V a block has under way")
        .acts_on({latency, l2, dram});
    t.add("min_blocks", "b", &C::min_blocks, {1, 2},
          "thread blocks a multiprocessor, for the compiler and for the plan")
        .acts_on({latency, tail, dram});
    t.add("l2_bytes", "l", &C::l2_bytes, {0, 64, 128, 256}, "bytes the L2 fetches at once where a copy misses")
        .acts_on({dram, l2});
    t.add("prefetch", "f", &C::prefetch, {0, 16, 32, 64, 128},
          "KiB of a block's first keys and values that the L2 is asked for before the first copies")
        .acts_on({latency, dram});
    t.add("mergers", "w", &C::mergers, {1, 2, 3, 4},
          "by tiles, warps that merge partial results while the others go on; by columns 1")
        .acts_on({latency, tail});
    t.add("division", "v", &C::division, "heed::decode_sm90::Division", {"tiles", "columns"},
          "what groups of warps divide: tiles of keys, or each tile, by keys for its scores, by columns for its output")
        .acts_on({latency, tail, tensor})
        .shares_work();
    t.add("cut", "a", &C::cut, "heed::decode_sm90::Cut", {"anywhere", "at_jobs"},
          "where keys are cut into a block's: anywhere, or a few blocks fewer that have a whole job or an equal part")
        .acts_on({latency, tail, dram});
    t.add("producer", "p", &C::producer, "a warp asks for all copies; off: every group of one warp for its own")
        .acts_on({latency, issue});
    t.add("evict_first", "e", &C::evict_first, "the L2 gives lines of K and V up before any other").acts_on({dram, l2});
    t.add("dependent", "d", &C::dependent, "the next launch may set itself up while this one runs").acts_on({launch});
    t.add("exp2", "x", &C::exp2, "heed::attention::Exp2", {"hardware", "poly_quarter", "poly_half"},
          "share of the exponentials computed on the FMA pipe")
        .acts_on({exponentials, fma});
    t.add("rescale", "r", &C::rescale, "heed::attention::Rescale", {"always", "when_grown", "when_far"},
          "when the partial output is rescaled to a new row maximum")
        .acts_on({fma, issue});
    return t;
  }();
  return knobs;
}

// Tiles of packed rows, each with all its keys, over all key heads and batch entries.
std::int64_t all_jobs(const decode_sm90::Config& c, const Workload& w) {
  const int tiles = decode_sm90::row_tiles(c, static_cast<int>(w.heads / w.heads_kv), static_cast<int>(w.len_q));
  return w.batch * w.heads_kv * tiles;
}

std::int64_t job_tiles(const decode_sm90::Config& c, const Workload& w) {
  const std::int64_t keys = std::max<std::int64_t>(w.visible_keys(w.len_q - 1), 1);
  return (keys + c.block_n - 1) / c.block_n;
}

std::int64_t all_tiles(const decode_sm90::Config& c, const Workload& w) {
  return all_jobs(c, w) * job_tiles(c, w);
}

// Parts of a job up to which eight warps beat four: the one that merges asks for four others at once
// (column_parts.cuh).
constexpr std::int64_t kFewParts = 5;

// KiB of keys and values that every multiprocessor reads.
std::int64_t kib_each(const Workload& w, const DeviceFacts& device) {
  return 4 * w.batch * w.heads_kv * w.len_k * w.dim / 1024 / processors_of(device);
}

// What a block reads tells whether its first bytes are worth asking for twice: 64 KiB ahead are 1 us of 36 where it
// reads 1 MiB, 0.6 us of 18 at 512 KiB and of 11 at 256 KiB (b8h32kv4l8192, b1h32l4096, b32h32kv8l256: head dim 128);
// at 32 KiB, which the L2 may hold, nothing is better (b1h8l1024, 5.0 us instead of 5.2).
int prefetch_of(const Workload& w, const DeviceFacts& device) {
  const std::int64_t kib = kib_each(w, device);
  return kib >= 128 ? 64 : kib >= 48 ? 16 : 0;
}

class DecodeSm90Family final : public Family {
 public:
  std::string_view name() const override { return "fwd_decode_sm90"; }
  std::string_view folder() const override { return "kernels/decode_sm90"; }
  std::string_view description() const override {
    return "few queries, many keys: bulk tensor copies, the keys of all heads cut into equal parts, one a block";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  bool is_special() const override { return true; }
  std::string_view requirements() const override {
    return "an NVIDIA GPU of compute capability 9.0 (Hopper) and NVRTC 12.4 or newer";
  }
  std::vector<Dtype> dtypes() const override { return {Dtype::fp16, Dtype::bf16}; }
  std::vector<int> head_dims() const override { return {64, 128}; }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }

  std::optional<std::string> refuses(const Workload& workload, const DeviceFacts& device) const override {
    if (auto reason = refused_by_wgmma(workload, device)) return reason;
    // It computes as fwd_decode does, whose tiles are written for the same head dims.
    if (auto reason = refused_by_mma(workload, device)) return reason;
    if (auto reason = refused_by_packed_rows(workload)) return reason;
    decode_sm90::Config most;
    most.block_m = 8;
    most.block_n = 16;
    if (all_tiles(most, workload) > std::numeric_limits<int>::max())
      return fmt::format("{} tiles of keys exceed the {} that are counted: use fwd_decode", all_tiles(most, workload),
                         std::numeric_limits<int>::max());
    return std::nullopt;
  }

  std::string_view made_for(const Workload& workload, const DeviceFacts&) const override {
    return workload.len_q <= kFewQueries
               ? "few queries: heads of a group share a tile, all keys are cut into equal parts over the chip"
               : "";
  }

  std::optional<std::string> is_illegal(const Config& config, const Workload& workload,
                                        const DeviceFacts& device) const override {
    const decode_sm90::Config c = table().aggregate_of(config);
    const Problem problem = problem_of(workload);
    switch (decode_sm90::is_legal(c, problem, device.shared_bytes_per_block, device.shared_bytes_per_processor)) {
      case decode_sm90::Illegal::no:
        return beyond_grid(config, workload, device);
      case decode_sm90::Illegal::head_dim:
        return fmt::format("head dim {} is not 64 or 128", problem.head_dim);
      case decode_sm90::Illegal::columns:
        return fmt::format("{} warps cannot divide {} keys and {} columns by sixteens", c.groups, c.block_n,
                           problem.head_dim);
      case decode_sm90::Illegal::columns_rows:
        return fmt::format("division=columns takes at most 32 rows a block, not {}", c.block_m);
      case decode_sm90::Illegal::columns_mergers:
        return "division=columns wants producer=on and mergers=1: nothing is left to merge within a block";
      case decode_sm90::Illegal::producer:
        return fmt::format("groups of {} warps cannot ask for copies themselves: producer=off is for block_m up to 16",
                           decode_sm90::warps_per_group(c));
      case decode_sm90::Illegal::stages:
        return fmt::format("{} stages are no multiple of {} groups", c.stages, c.groups);
      case decode_sm90::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", decode_sm90::threads(c));
      case decode_sm90::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}",
                           decode_sm90::shared_plan(c, problem.head_dim).total, device.name,
                           device.shared_bytes_per_block);
      case decode_sm90::Illegal::occupancy:
        return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
      case decode_sm90::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit", decode_sm90::registers_needed(c, problem),
                           decode_sm90::registers_allowed(c));
    }
    return "unknown reason";
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    const std::int64_t rows = workload.heads / workload.heads_kv * workload.len_q;
    decode_sm90::Config c;
    // Two tiles of 32 rows: the second finds the keys in the L2. More of them wait for it.
    c.block_m = rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 64 ? 32 : 64;
    // Every tile of rows reads the keys again, and may find them in the L2.
    c.evict_first = decode_sm90::row_tiles(c, static_cast<int>(rows), 1) == 1;
    return rows <= 64 ? by_columns(c, workload, device) : by_tiles(c, workload, device);
  }

  std::string prelude(const Config& config, const Workload& workload) const override {
    return kernel_prelude("decode_sm90", table().render(config), problem(config, workload));
  }

  std::string entry() const override { return kernel_entry({.name = "decode_sm90", .takes_maps = true}); }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts& device) const override {
    const decode_sm90::Config c = table().aggregate_of(config);
    const int dim = static_cast<int>(workload.dim);
    const std::int64_t blocks =
        decode_sm90::blocks_of(c, all_jobs(c, workload), job_tiles(c, workload), processors_of(device) * c.min_blocks);
    const std::int64_t rows = workload.heads / workload.heads_kv * workload.len_q;
    const decode_sm90::Words words = decode_sm90::words_of(c, dim, static_cast<int>(blocks),
                                                           static_cast<int>(std::min<std::int64_t>(c.block_m, rows)));
    LaunchPlan plan;
    plan.entry = "heed_forward";
    const int heads = static_cast<int>(workload.heads_kv) *
                      decode_sm90::row_tiles(c, static_cast<int>(workload.heads / workload.heads_kv),
                                             static_cast<int>(workload.len_q));
    const decode_sm90::Grid grid =
        decode_sm90::grid_of(c, static_cast<int>(workload.batch), heads, static_cast<int>(blocks));
    plan.grid = {static_cast<std::uint32_t>(grid.x), static_cast<std::uint32_t>(grid.y),
                 static_cast<std::uint32_t>(grid.z)};
    plan.threads = static_cast<std::uint32_t>(decode_sm90::threads(c));
    plan.shared_bytes = decode_sm90::shared_plan(c, dim).total;
    plan.counters = static_cast<int>(words.total());
    plan.dependent = c.dependent;
    plan.boxes = TensorBoxes{.problem = problem_of(workload),
                             .columns = tile::kBoxColumns,
                             .k_rows = c.block_n,
                             .v_rows = c.block_n,
                             .l2_bytes = c.l2_bytes};
    return plan;
  }

  int register_limit(const Config& config) const override {
    return decode_sm90::registers_allowed(table().aggregate_of(config));
  }

 private:
  // More stages delay the first tiles; fewer than three leave a copy for the time of one tile. Eight warps have longer
  // tiles than four: they are faster where a tile is all there is, where there is much to read and little to merge
  // (b8h32kv4l8192 33.3 us instead of 33.4, but b1h32kv8l32768, in 16 parts, 34.1 instead of 33.8), and with two groups
  // of rows.
  // Where each job has blocks of its own the grid is (parts, heads, batch); else blocks are counted in its first
  // dimension alone.
  std::optional<std::string> beyond_grid(const Config& config, const Workload& workload,
                                         const DeviceFacts& device) const {
    const auto grid = plan(config, workload, device).grid;
    if (grid[1] <= kMostGridYZ && grid[2] <= kMostGridYZ) return std::nullopt;
    return fmt::format("{} tiles by {} batch entries exceed the grid limit of {} each; write cut=anywhere", grid[1],
                       grid[2], kMostGridYZ);
  }

  Config by_columns(decode_sm90::Config c, const Workload& workload, const DeviceFacts& device) const {
    c.division = decode_sm90::Division::columns;
    c.mergers = 1;
    c.rescale = static_cast<attention::Rescale>(2);  // when_far
    c.groups = 4;
    c.prefetch = prefetch_of(workload, device);
    c.block_n = workload.dim == 64 ? 128 : 64;
    if (workload.dim == 128 && c.block_m <= 16 &&
        (c.block_m == 16 || all_tiles(c, workload) <= processors_of(device) ||
         (kib_each(workload, device) >= 512 && kFewParts * all_jobs(c, workload) >= processors_of(device)))) {
      c.groups = 8;
      c.block_n = 128;
    }
    for (const int stages : {8, 6, 4, 3, 2}) {
      c.stages = stages;
      const Config config = table().config_of(c);
      const std::int64_t bytes = std::int64_t{2} * stages * c.block_n * workload.dim * 2;
      if ((bytes <= kBytesUnderWay || stages <= 3) && !is_illegal(config, workload, device)) return config;
    }
    return by_tiles(c, workload, device);
  }

  // Wide tiles pay fewer rounds of waits and of reductions; with more warps fewer registers are left for them.
  Config by_tiles(decode_sm90::Config c, const Workload& workload, const DeviceFacts& device) const {
    c.division = decode_sm90::Division::tiles;
    c.rescale = static_cast<attention::Rescale>(1);  // when_grown
    c.prefetch = prefetch_of(workload, device);
    c.groups = c.block_m <= 16 ? 4 : 2;
    Config config;
    for (c.block_n = workload.dim == 64 ? 64 : 32; c.block_n >= 16; c.block_n /= 2) {
      if (c.block_n > 16 && all_tiles(c, workload) < kFewestTiles * processors_of(device)) continue;
      for (const int mergers : {4, 3, 2, 1})
        for (const int stages : {24, 16, 12, 8, 6, 4, 2}) {
          c.mergers = mergers;
          c.stages = stages;
          config = table().config_of(c);
          const std::int64_t bytes = std::int64_t{2} * stages * c.block_n * workload.dim * 2;
          if (bytes <= kBytesUnderWay && !is_illegal(config, workload, device)) return config;
        }
    }
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }
};

}  // namespace

const Family& decode_sm90_family() {
  static const DecodeSm90Family family;
  return family;
}

}  // namespace heed
