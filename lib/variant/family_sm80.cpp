#include <fmt/format.h>

#include "base/check.hpp"
#include "kernels/sm80/config.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/registry.hpp"

namespace heed {
namespace {

const KnobTable<sm80::Config>& table() {
  static const KnobTable<sm80::Config> knobs = [] {
    using enum Bound;
    using C = sm80::Config;
    KnobTable<C> t;
    t.add("block_m", "m", &C::block_m, {16, 32, 64, 128}, "query rows a thread block")
        .acts_on({tail, latency, l2, shared_memory})
        .shares_work();
    t.add("block_n", "n", &C::block_n, {16, 32, 64, 128}, "keys a tile").acts_on({latency, issue, shared_memory});
    t.add("warp_rows", "w", &C::warp_rows, {16, 32}, "query rows a warp")
        .acts_on({shared_memory, issue, latency, tensor})
        .shares_work();
    t.add("key_splits", "k", &C::key_splits, {1, 2, 4, 8},
          "groups of warps that share a block's rows and split its keys")
        .acts_on({latency, tail})
        .shares_work();
    t.add("stages", "s", &C::stages, {1, 2, 3, 4}, "tiles of K and V a group keeps in shared memory")
        .acts_on({latency, l2, dram});
    t.add("shared_layout", "l", &C::shared_layout, "heed::tile::SharedLayout", {"linear", "swizzled", "padded"},
          "how tiles lie in shared memory: with bank conflicts, XOR-swizzled, or rows padded by 16 bytes")
        .acts_on({shared_memory});
    t.add("q_in_registers", "q", &C::q_in_registers,
          "keep Q in registers, else read it from shared memory for every tile")
        .acts_on({shared_memory, latency});
    t.add("split_wait", "v", &C::split_wait, "wait for K and V separately").acts_on({latency});
    t.add("overlap", "a", &C::overlap, "multiply a tile's values beside the next tile's exponentials")
        .acts_on({tensor, exponentials, latency});
    t.add("late_copies", "c", &C::late_copies, "start copies of later tiles after a tile's scores, else before")
        .acts_on({issue, latency});
    t.add("handshake", "h", &C::handshake, "heed::sm80::Handshake", {"group", "stage"},
          "how warps learn that a tile is there and a stage free: all meet once a round, or at barriers of the stage")
        .acts_on({latency, tensor});
    t.add("exp2", "x", &C::exp2, "heed::attention::Exp2", {"hardware", "poly_quarter", "poly_half"},
          "share of the exponentials computed on the FMA pipe")
        .acts_on({exponentials, fma});
    t.add("rescale", "r", &C::rescale, "heed::attention::Rescale", {"always", "when_grown", "when_far", "optimistic"},
          "when the partial output is rescaled to a new row maximum; optimistic: the first tile's maximum is kept "
          "unlooked-at until probabilities leave the 16-bit range")
        .acts_on({fma, issue});
    t.add("epilogue", "e", &C::epilogue, "heed::sm80::Epilogue", {"direct", "shared"},
          "how finished rows are written (one key split)")
        .acts_on({l2, dram, shared_memory});
    t.add("tile_order", "o", &C::tile_order, "heed::sm80::TileOrder",
          {"ascending", "descending", "longest", "mirrored"},
          "which query rows start first: of each head, or of all heads the longest, or long and short ones paired")
        .acts_on({tail});
    t.add("min_blocks", "b", &C::min_blocks, {1, 2, 3, 4},
          "thread blocks a multiprocessor the compiler leaves registers for")
        .acts_on({latency, tail});
    return t;
  }();
  return knobs;
}

constexpr std::int64_t kUnknownProcessors = 132;
constexpr std::int64_t kFewKeys = 256;
constexpr std::int64_t kManyKeys = 1024;

// The enumerators of kernels/attention/softmax.cuh, which host code cannot include.
constexpr auto kAlways = static_cast<attention::Rescale>(0);
constexpr auto kWhenGrown = static_cast<attention::Rescale>(1);
constexpr auto kOptimistic = static_cast<attention::Rescale>(sm80::kOptimistic);

std::int64_t row_tiles(int rows, const Workload& w) {
  return (w.len_q + rows - 1) / rows;
}

// Best first, as measured on an H200; the last is legal everywhere. What decides is how many warps a multiprocessor
// gets: 8 warps of 32 rows hide each other's latencies where registers allow, so that a launch with few rows splits the
// keys of a block instead.
std::vector<sm80::Config> preferred(const Workload& w, const DeviceFacts& device) {
  using enum sm80::TileOrder;
  const std::int64_t processors = device.processors > 0 ? device.processors : kUnknownProcessors;
  const auto tiles = [&](int rows) { return row_tiles(rows, w) * w.heads * w.batch; };
  const bool causal = w.is_causal();
  // Before Hopper a thread cannot sleep at an mbarrier, and asking takes issue slots from warps that compute.
  const bool can_sleep = device.compute_capability >= 90;
  // Longest rows first leave the shortest to fill the end; in one wave of two blocks a multiprocessor, pairs are
  // better.
  const auto order = [&](int rows) {
    if (!causal) return descending;
    return tiles(rows) > processors && tiles(rows) <= 2 * processors ? mirrored : longest;
  };
  std::vector<sm80::Config> all;
  if (4 * tiles(64) <= 3 * processors) {
    // A block of 64 rows for each multiprocessor would leave some without. Two tiles a group leave nothing to be
    // optimistic about.
    sm80::Config c{.block_m = 32, .key_splits = 4, .stages = 3, .split_wait = !causal, .rescale = kAlways};
    if (w.dim == 128) c.stages = 1;
    if (w.dim == 64 || w.len_k <= 2 * c.key_splits * c.block_n) all.push_back(c);
    c.block_n = 32;
    c.stages = 2;
    c.split_wait = false;
    all.push_back(c);
  } else if (tiles(64) <= processors) {
    // Late copies: 10.4 us at b1h8l1024d64 on an H200, 11.0 us without; under a causal mask they spill.
    sm80::Config c{.key_splits = 2, .overlap = true, .late_copies = !causal, .rescale = kOptimistic};
    if (w.dim == 64) {
      c.warp_rows = 32;
      c.key_splits = 4;
    }
    all.push_back(c);
  } else if (tiles(64) <= 2 * processors) {
    sm80::Config c{.warp_rows = 32, .key_splits = 2, .rescale = kOptimistic, .tile_order = order(64), .min_blocks = 2};
    if (w.dim == 64) {
      c.overlap = true;
      c.late_copies = !causal;  // 28.8 us at b1h8l2048d64, 29.6 us without
      all.push_back(c);
    } else if (!causal) {
      c.stages = 1;
      c.q_in_registers = false;
      all.push_back(c);
    }
  } else if (w.dim == 64 && w.len_k <= kFewKeys) {
    // Blocks start and end more than they compute: the more of them at once the better.
    all.push_back({.block_n = 32, .stages = 4, .overlap = true, .rescale = kOptimistic, .min_blocks = 4});
  } else if (!causal || w.len_k > kManyKeys) {
    sm80::Config c{.block_m = 128, .warp_rows = 32, .rescale = kOptimistic, .tile_order = order(128), .min_blocks = 2};
    if (w.dim == 64) {
      c.overlap = true;
      c.stages = 3;
      all.push_back(c);
      c.stages = 2;
    } else {
      c.q_in_registers = false;
      // 46.5 us at b1h32l1024d128, 47.8 us where warps meet once a round; under a causal mask it spills.
      if (!causal && can_sleep) c.handshake = sm80::Handshake::stage;
    }
    all.push_back(c);
  }
  // Tiles of 64 rows waste less where the mask cuts through them.
  sm80::Config c{.overlap = true, .rescale = kOptimistic, .tile_order = order(64), .min_blocks = w.dim == 64 ? 3 : 2};
  if (w.dim == 64) {
    c.tile_order = causal ? longest : descending;
  } else if (can_sleep) {
    // 32.8 us at b1h32l1024d128 causal, 34.0 us where warps meet once a round.
    c.handshake = sm80::Handshake::stage;
    c.late_copies = true;
  }
  all.push_back(c);
  c.tile_order = descending;
  all.push_back(c);
  c.block_n = 32;
  all.push_back(c);
  // FlashAttention-2's tiles for these head dims, within sm_89's 99 KiB of shared memory.
  all.push_back({.block_n = w.dim == 128 ? 32 : 64, .rescale = kWhenGrown});
  return all;
}

class Sm80Family final : public Family {
 public:
  std::string_view name() const override { return "fwd_sm80"; }
  std::string_view folder() const override { return "kernels/sm80"; }
  std::string_view description() const override {
    return "mma.sync with everything in registers, cp.async stages, keys split over groups of warps";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  std::string_view requirements() const override {
    return "an NVIDIA GPU of compute capability 8.0 or newer and NVRTC 12.4 or newer";
  }
  std::vector<Dtype> dtypes() const override { return {Dtype::fp16, Dtype::bf16}; }
  std::vector<int> head_dims() const override { return {64, 128}; }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }

  std::optional<std::string> refuses(const Workload& workload, const DeviceFacts& device) const override {
    if (auto reason = refused_by_mma(workload, device)) return reason;
    return refused_by_grid(workload);
  }

  std::optional<std::string> is_illegal(const Config& config, const Workload& workload,
                                        const DeviceFacts& device) const override {
    const sm80::Config c = table().aggregate_of(config);
    const Problem problem = problem_of(workload);
    if (sm80::heads_first(c.tile_order) && row_tiles(c.block_m, workload) > kMostGridYZ)
      return fmt::format("tile_order counts {} tiles of {} rows in the grid's last dimension, which ends at {}",
                         row_tiles(c.block_m, workload), c.block_m, kMostGridYZ);
    switch (sm80::is_legal(c, problem, device.shared_bytes_per_block, device.shared_bytes_per_processor)) {
      case sm80::Illegal::no:
        return std::nullopt;
      case sm80::Illegal::head_dim:
        return fmt::format("head dim {} is not 64 or 128", problem.head_dim);
      case sm80::Illegal::block_m:
        return fmt::format("block_m {} is no multiple of warp_rows {}", c.block_m, c.warp_rows);
      case sm80::Illegal::key_splits:
        return fmt::format("{} key splits exceed the 15 named barriers", c.key_splits);
      case sm80::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", sm80::threads(c));
      case sm80::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}",
                           sm80::shared_plan(c, problem.head_dim).total, device.name, device.shared_bytes_per_block);
      case sm80::Illegal::occupancy:
        return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
      case sm80::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit",
                           sm80::registers_needed(c, problem.head_dim), sm80::registers_allowed(c));
      case sm80::Illegal::overlap:
        return "overlap=on waits for values one tile later as it is and keeps two tiles: it needs split_wait=off and "
               "two "
               "or more stages";
      case sm80::Illegal::polynomial:
        return "rescale=optimistic needs exp2=hardware: the polynomial's overflow does not show";
      case sm80::Illegal::late_copies:
        return "late_copies=on needs two or more stages: the only one is free after a tile's values";
      case sm80::Illegal::handshake:
        return "handshake=stage needs split_wait=off, two or more stages and two or more warps a group: a stage is "
               "waited for as a whole, and what warps may be apart by are copies of the next round";
      case sm80::Illegal::same_program:
        return "with key splits both epilogues are the same program; write epilogue=shared";
    }
    return "unknown reason";
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    for (const sm80::Config& c : preferred(workload, device)) {
      Config config = table().config_of(c);
      if (!is_illegal(config, workload, device)) return config;
    }
    HEED_CHECK(false && "the last preferred config is legal everywhere");
    return {};
  }

  std::string prelude(const Config& config, const Workload& workload) const override {
    return kernel_prelude("sm80", table().render(config), problem(config, workload));
  }

  std::string entry() const override { return kernel_entry({.name = "sm80"}); }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts&) const override {
    const sm80::Config c = table().aggregate_of(config);
    LaunchPlan plan;
    plan.entry = "heed_forward";
    const auto tiles = static_cast<std::uint32_t>(row_tiles(c.block_m, workload));
    const auto heads = static_cast<std::uint32_t>(workload.heads);
    const auto batch = static_cast<std::uint32_t>(workload.batch);
    if (sm80::heads_first(c.tile_order))
      plan.grid = {heads, batch, tiles};
    else
      plan.grid = {tiles, heads, batch};
    plan.threads = static_cast<std::uint32_t>(sm80::threads(c));
    plan.shared_bytes = sm80::shared_plan(c, static_cast<int>(workload.dim)).total;
    return plan;
  }

  int register_limit(const Config& config) const override {
    return sm80::registers_allowed(table().aggregate_of(config));
  }
};

}  // namespace

const Family& sm80_family() {
  static const Sm80Family family;
  return family;
}

}  // namespace heed
