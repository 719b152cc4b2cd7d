#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "kernels/sm90/decode/legality.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/plan_grid.hpp"
#include "variant/registry.hpp"
#include "variant/rule_table.hpp"
#include "variant/sm90_decode_estimate.hpp"
#include "workload/mask.hpp"

namespace heed {
namespace {

// Of a block: Little's law asks for 36 KiB a multiprocessor (4.8 TB/s, 1 us, 132 of them), and latency grows with load.
constexpr int kBytesUnderWay = 128 * 1024;
// A block has so many tiles at least, where tiles can be made so narrow: shares differ by one.
constexpr std::int64_t kFewestTiles = 4;
constexpr std::int64_t kColumnsOfCopies = 16;  // of 8-bit elements, that head dims are whole multiples of

const KnobTable<sm90_decode::Config>& table() {
  static const KnobTable<sm90_decode::Config> knobs = [] {
    using enum Bound;
    using C = sm90_decode::Config;
    KnobTable<C> t;
    t.add("block_m", &C::block_m, {8, 16, 32, 64},
          "packed query rows a CTA (the query heads of one K/V head, GQA packing)")
        .acts_on({tail, latency, l2, shared_memory})
        .shares_work();
    t.add("block_n", &C::block_n, {16, 32, 64, 128}, "keys of a KV tile").acts_on({latency, tail, issue, dram});
    t.add("kv_groups", &C::kv_groups, {2, 4, 6, 8},
          "groups of warps: with group_split=kv_tiles they take KV tiles in turn, with columns all work on every tile")
        .acts_on({latency, issue, dram})
        .shares_work();
    t.add("stages", &C::stages, {2, 3, 4, 6, 8, 12, 16, 24}, "K/V pipeline stages in shared memory")
        .acts_on({latency, l2, dram});
    t.add("min_blocks", &C::min_blocks, {1, 2}, "CTAs a multiprocessor, for __launch_bounds__ and the grid")
        .acts_on({latency, tail, dram});
    t.add("l2_promotion", &C::l2_promotion, {0, 64, 128, 256},
          "bytes that the L2 fetches on a miss of a TMA load (CUtensorMapL2promotion)")
        .acts_on({dram, l2});
    t.add("l2_prefetch_kib", &C::l2_prefetch_kib, {0, 16, 32, 64, 128},
          "KiB of the first K and V of a CTA that are prefetched into the L2 before the first load")
        .acts_on({latency, dram});
    t.add("merge_warps", &C::merge_warps, {1, 2, 3, 4},
          "with group_split=kv_tiles, warps that merge partial results while others go on; with columns 1")
        .acts_on({latency, tail});
    t.add("group_split", &C::group_split,
          "what groups of warps split: KV tiles, or each tile, by keys for QK and by columns of O for PV")
        .acts_on({latency, tail, tensor})
        .shares_work();
    t.add("split_points", &C::split_points,
          "where split-KV cuts the keys: anywhere, or at work tiles where that leaves 15 of 16 CTAs")
        .acts_on({latency, tail, dram});
    t.add("producer_warp", &C::producer_warp, "one warp issues all TMA loads; off: one warp of every group its own")
        .acts_on({latency, issue});
    t.add("evict_first", &C::evict_first, "L2 lines of K and V are marked evict-first").acts_on({dram, l2});
    t.add("pdl", &C::pdl, "programmatic dependent launch: the next launch may begin while this one runs")
        .acts_on({launch});
    t.add("max_splits", &C::max_splits, {0, 1, 2, 4, 8, 16, 32},
          "CTAs that share the keys of a tile of rows at most (split-KV); 0: as many as run at a time")
        .acts_on({latency, tail, l2})
        .shares_work()
        .of_launch();
    t.add("exp2", &C::exp2, "share of the exponentials computed by a polynomial on the FMA pipe (FlashAttention-4)")
        .acts_on({exponentials, fma});
    t.add("rescale", &C::rescale,
          "when partial O is rescaled: always, when the row maximum grew, or when it grew by more than 2^8 "
          "(FlashAttention-4)",
          3)  // a stale row maximum is not for merged parts
        .acts_on({fma, issue});
    return t;
  }();
  return knobs;
}

using sm90_decode_estimate::all_jobs;
using sm90_decode_estimate::all_tiles;
using sm90_decode_estimate::block_n_of;
using sm90_decode_estimate::decode_us;
using sm90_decode_estimate::job_tiles;
using sm90_decode_estimate::key_bytes;
using sm90_decode_estimate::l2_bytes_of;

// Parts of a job up to which eight warps beat four: the one that merges asks for four others at once
// (column_parts.cuh).
constexpr std::int64_t kFewParts = 5;

// KiB of keys and values that every multiprocessor reads.
std::int64_t kib_each(const Workload& w, const DeviceFacts& device) {
  return key_bytes(w) / 1024 / num_sms_of(device);
}

// What a block reads tells whether its first bytes are worth asking for twice: 64 KiB ahead are 1 us of 36 where it
// reads 1 MiB, 0.6 us of 18 at 512 KiB and of 11 at 256 KiB (b8h32kv4l8192, b1h32l4096, b32h32kv8l256: head dim 128);
// at 32 KiB, which the L2 may hold, nothing is better (b1h8l1024, 5.0 us instead of 5.2).
int prefetch_of(const Workload& w, const DeviceFacts& device) {
  const std::int64_t kib = kib_each(w, device);
  return kib >= 128 ? 64 : kib >= 48 ? 16 : 0;
}

std::int64_t shared_bytes_of(const sm90_decode::Config& c, const Problem& problem) {
  return sm90_decode::shared_plan(c, sm90_decode::padded_dim(problem), sm90_decode::key_bytes(problem)).total;
}

class Sm90DecodeFamily final : public Family {
 public:
  std::string_view name() const override { return "fwd_sm90_decode"; }
  std::string_view folder() const override { return "kernels/sm90/decode"; }
  std::string_view description() const override {
    return "decode for Hopper: GQA packing, TMA loads, split-KV of all heads into equal parts, merged in the same "
           "launch";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  bool is_special() const override { return true; }
  std::string_view requirements() const override {
    return "an NVIDIA GPU of compute capability 9.0 (Hopper) and NVRTC 12.4 or newer";
  }
  std::vector<Dtype> dtypes() const override { return {Dtype::fp16, Dtype::bf16}; }
  HeadDims head_dims() const override { return sm90_split_family().head_dims(); }
  std::vector<MaskKind> masks() const override { return {MaskKind::none, MaskKind::causal, MaskKind::window}; }
  Features features() const override {
    return {
        .softcap = true, .bias = true, .alibi = true, .sinks = true, .lengths = true, .pages = true, .relative = true};
  }
  std::string_view quantised() const override { return "K and V, each in e4m3, e5m2 or int8"; }
  bool reads(const Quantised& quantised) const override { return !quantised.q && quantised.k && quantised.v; }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }

  std::optional<std::string> refuses_device(const DeviceFacts& device) const override {
    return refused_by_wgmma(device);
  }
  std::optional<std::string> refuses_sizes(const Workload& workload) const override {
    if (auto reason = refused_by_packed_rows(workload)) return reason;
    if (workload.quantised) {
      if (workload.dim % kColumnsOfCopies != 0)
        return fmt::format("head dim {} of K and V in 8 bits is no multiple of {}, the columns of 16 bytes",
                           workload.dim, kColumnsOfCopies);
      if (const ScaleBy by = workload.quantised->v->by; by == ScaleBy::block || by == ScaleBy::token)
        return "factors of V differ from key to key; it takes those of tensors, heads and channels";
    }
    if (workload.page_size % sm90_decode::kLeastPage != 0)
      return fmt::format("a page of {} keys is no multiple of the {} that its bulk copies take at once{}",
                         workload.page_size, sm90_decode::kLeastPage,
                         workload.quantised ? "" : ": use fwd_sm80_decode");
    sm90_decode::Config most;
    most.block_m = 8;
    most.block_n = 16;
    if (all_tiles(most, workload) > std::numeric_limits<int>::max())
      return fmt::format("{} tiles of keys exceed the {} that are counted: use fwd_sm80_decode",
                         all_tiles(most, workload), std::numeric_limits<int>::max());
    return std::nullopt;
  }

  std::optional<std::string> refuses_config(const Config& config, const Specialization&, const Workload& workload,
                                            const DeviceFacts& device) const override {
    const sm90_decode::Config c = table().aggregate_of(config);
    const Problem problem = problem_of(workload);
    switch (sm90_decode::is_legal(c, problem, device.shared_bytes_per_block, device.shared_bytes_per_processor)) {
      case sm90_decode::Illegal::no:
        return beyond_grid(config, workload, device);
      case sm90_decode::Illegal::head_dim:
        return fmt::format("head dim {} is no multiple of 16 bytes up to 256 columns", problem.head_dim);
      case sm90_decode::Illegal::columns:
        return fmt::format("{} warps cannot divide {} keys and {} columns by sixteens", c.kv_groups, c.block_n,
                           sm90_decode::padded_dim(problem));
      case sm90_decode::Illegal::wide_tiles:
        return fmt::format("group_split=kv_tiles takes head dims up to 128, not {}: write group_split=columns",
                           problem.head_dim);
      case sm90_decode::Illegal::columns_rows:
        return fmt::format("group_split=columns takes at most 32 rows a block, not {}", c.block_m);
      case sm90_decode::Illegal::columns_mergers:
        return "group_split=columns wants producer_warp=on and merge_warps=1: nothing is left to merge within a block";
      case sm90_decode::Illegal::producer:
        return fmt::format(
            "groups of {} warps cannot ask for copies themselves: producer_warp=off is for block_m up to 16",
            sm90_decode::warps_per_group(c));
      case sm90_decode::Illegal::producer_of_entries:
        return "lengths of entries and pages want producer_warp=on: its lanes look up where the boxes of a tile lie";
      case sm90_decode::Illegal::stages:
        return fmt::format("{} stages are no multiple of {} groups", c.stages, c.kv_groups);
      case sm90_decode::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", sm90_decode::threads(c));
      case sm90_decode::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}", shared_bytes_of(c, problem),
                           device.name, device.shared_bytes_per_block);
      case sm90_decode::Illegal::occupancy:
        return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
      case sm90_decode::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit", sm90_decode::registers_needed(c, problem),
                           sm90_decode::registers_allowed(c));
    }
    return "unknown reason";
  }

  [[nodiscard]] double default_us(const Workload& workload, const DeviceFacts& device) const {
    return fastest(workload, device).us;
  }

  // The fastest by the estimates, of configs that all divide tiles by columns.
  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    return fastest(workload, device).config;
  }

  std::string prelude(const Config& config, const Problem& problem) const override {
    return kernel_prelude(folder(), "sm90_decode", table().render(config), problem);
  }

  std::string entry() const override {
    return kernel_entry({.name = "sm90_decode", .takes_maps = true, .has_features = true});
  }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts& device) const override {
    const sm90_decode::Config c = table().aggregate_of(config);
    const Problem problem = problem_of(workload);
    const int dim = sm90_decode::padded_dim(problem);
    const std::int64_t blocks =
        sm90_decode::blocks_of(c, all_jobs(c, workload), job_tiles(c, workload), num_sms_of(device) * c.min_blocks);
    const std::int64_t rows = workload.heads / workload.heads_kv * workload.len_q;
    const sm90_decode::Words words = sm90_decode::words_of(c, dim, static_cast<int>(blocks),
                                                           static_cast<int>(std::min<std::int64_t>(c.block_m, rows)));
    LaunchPlan plan;
    plan.entry = "heed_forward";
    const int heads = static_cast<int>(workload.heads_kv) *
                      sm90_decode::row_tiles(c, static_cast<int>(workload.heads / workload.heads_kv),
                                             static_cast<int>(workload.len_q));
    plan.grid = plan_grid(sm90_decode::grid_of(c, static_cast<int>(workload.batch), heads, static_cast<int>(blocks)));
    plan.threads = static_cast<std::uint32_t>(sm90_decode::threads(c));
    plan.shared_bytes = shared_bytes_of(c, problem);
    plan.semaphores = static_cast<int>(words.total());
    plan.supports_pdl = c.pdl;
    const int box_rows = sm90_decode::rows_of_box(c, static_cast<int>(workload.page_size));
    plan.tensor_maps = TensorMapSpec{.problem = problem,
                                     .columns = sm90_decode::box_columns(dim, sm90_decode::key_bytes(problem)),
                                     .k_rows = box_rows,
                                     .v_rows = box_rows,
                                     .l2_bytes = c.l2_promotion};
    return plan;
  }

  int register_limit(const Config& config) const override {
    return sm90_decode::registers_allowed(table().aggregate_of(config));
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
    return fmt::format("{} tiles by {} batch entries exceed the grid limit of {} each; write split_points=anywhere",
                       grid[1], grid[2], kMostGridYZ);
  }

  struct Chosen {
    Config config;
    double us = std::numeric_limits<double>::infinity();
  };

  Chosen fastest(const Workload& workload, const DeviceFacts& device) const {
    Chosen best;
    for (const int block_m : {8, 16, 32})
      for (const int max_splits : {0, 16, 8, 4, 2}) {
        sm90_decode::Config c;
        c.block_m = block_m;
        c.max_splits = max_splits;
        const std::optional<Config> config = by_columns(c, workload, device);
        const double us = config ? decode_us(c, workload, device) : best.us;
        if (us < best.us) best = {*config, us};
      }
    if (best.config.empty()) best.config = by_tiles({.block_m = 16}, workload, device);
    return best;
  }

  std::optional<Config> by_columns(sm90_decode::Config c, const Workload& workload, const DeviceFacts& device) const {
    c.group_split = sm90_decode::GroupSplit::columns;
    c.merge_warps = 1;
    c.rescale = attention::Rescale::conditional;
    c.kv_groups = 4;
    c.l2_prefetch_kib = prefetch_of(workload, device);
    // Keys that the L2 holds are found there by the next launch; others only push out what it could hold. At 24 MB off
    // 6.3 us and on 8.9 (b4h8l1k2994d64), at 54 MB 17.7 and 16.3 (b1h8l1k13097d128), at 134 MB 34.3 and 33.6
    // (b8h32hkv4l1k8192d128), on an H200, whose L2 has 60 MB.
    c.evict_first = 4 * key_bytes(workload) > 3 * l2_bytes_of(device);
    const Problem problem = problem_of(workload);
    const int dim = sm90_decode::padded_dim(problem);
    c.block_n = block_n_of(workload);
    if (dim == 128 && c.block_m <= 16 &&
        (c.block_m == 16 || all_tiles(c, workload) <= num_sms_of(device) ||
         (kib_each(workload, device) >= 512 && kFewParts * all_jobs(c, workload) >= num_sms_of(device)))) {
      c.kv_groups = 8;
      c.block_n = 128;
    }
    Config config;
    const auto fits = [&] {
      for (const int stages : {8, 6, 4, 3, 2}) {
        c.stages = stages;
        config = table().config_of(c);
        const std::int64_t bytes = std::int64_t{2} * stages * c.block_n * dim * sm90_decode::key_bytes(problem);
        if ((bytes <= kBytesUnderWay || stages <= 3) && !is_illegal(config, workload, device)) return true;
      }
      return false;
    };
    if (fits()) return config;
    if (c.kv_groups == 8 || workload.quantised) {  // biases take registers too, and so do four groups of rows
      c.kv_groups = 4;
      c.block_n = 64;
      if (fits()) return config;
    }
    return std::nullopt;
  }

  // Wide tiles pay fewer rounds of waits and of reductions; with more warps fewer registers are left for them.
  Config by_tiles(sm90_decode::Config c, const Workload& workload, const DeviceFacts& device) const {
    c.group_split = sm90_decode::GroupSplit::kv_tiles;
    c.rescale = attention::Rescale::when_grown;
    c.l2_prefetch_kib = prefetch_of(workload, device);
    c.kv_groups = c.block_m <= 16 ? 4 : 2;
    Config config;
    const Problem problem = problem_of(workload);
    const int dim = sm90_decode::padded_dim(problem);
    for (c.block_n = dim == 64 ? 64 : 32; c.block_n >= 16; c.block_n /= 2) {
      if (c.block_n > 16 && all_tiles(c, workload) < kFewestTiles * num_sms_of(device)) continue;
      for (const int merge_warps : {4, 3, 2, 1})
        for (const int stages : {24, 16, 12, 8, 6, 4, 2}) {
          c.merge_warps = merge_warps;
          c.stages = stages;
          config = table().config_of(c);
          const std::int64_t bytes = std::int64_t{2} * stages * c.block_n * dim * sm90_decode::key_bytes(problem);
          if (bytes <= kBytesUnderWay && !is_illegal(config, workload, device)) return config;
        }
    }
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }
};

}  // namespace

const Family& sm90_decode_family() {
  static const Sm90DecodeFamily family;
  return family;
}

double sm90_decode_default_us(const Workload& workload, const DeviceFacts& device) {
  return static_cast<const Sm90DecodeFamily&>(sm90_decode_family()).default_us(workload, device);
}

}  // namespace heed
