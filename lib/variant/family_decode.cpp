#include <fmt/format.h>

#include "base/check.hpp"
#include "kernels/decode/config.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/registry.hpp"

namespace heed {
namespace {

// From this many queries on, tiles of one head's queries are what other families are better at.
constexpr std::int64_t kFewQueries = 16;
constexpr std::int64_t kMostBlockRows = 64;
// Where only an architecture is known: an A100's. Too many splits cost a longer merge, too few leave processors idle.
constexpr std::int64_t kUnknownProcessors = 108;

const KnobTable<decode::Config>& table() {
  static const KnobTable<decode::Config> knobs = [] {
    using enum Bound;
    using C = decode::Config;
    KnobTable<C> t;
    t.add("block_m", "m", &C::block_m, {16, 32, 64}, "packed query rows a thread block")
        .acts_on({tail, latency, l2, shared_memory})
        .shares_work();
    t.add("block_n", "n", &C::block_n, {16, 32, 64}, "keys a tile").acts_on({latency, issue, dram});
    t.add("warp_rows", "w", &C::warp_rows, {16, 32}, "packed query rows a warp")
        .acts_on({shared_memory, issue, latency, tensor})
        .shares_work();
    t.add("groups", "g", &C::groups, {1, 2, 4, 8, 16}, "groups of warps that share a block's rows and split its keys")
        .acts_on({latency, issue, dram})
        .shares_work();
    t.add("stages", "s", &C::stages, {1, 2, 3, 4, 5, 6, 8}, "tiles of K and V a group has under way")
        .acts_on({latency, l2, dram});
    t.add("min_blocks", "b", &C::min_blocks, {1, 2, 3, 4},
          "thread blocks a multiprocessor, for the compiler and for the plan")
        .acts_on({latency, tail, dram});
    t.add("rounds", "o", &C::rounds, {1, 2, 4}, "times the blocks of a launch fill the chip").acts_on({tail, dram});
    t.add("shared_layout", "l", &C::shared_layout, "heed::tile::SharedLayout", {"linear", "swizzled", "padded"},
          "how tiles lie in shared memory: with bank conflicts, XOR-swizzled, or rows padded by 16 bytes")
        .acts_on({shared_memory, issue});
    t.add("q_in_registers", "q", &C::q_in_registers,
          "keep Q in registers, else read it from shared memory for every tile")
        .acts_on({shared_memory, latency});
    t.add("fetch", "f", &C::fetch, "heed::decode::Fetch", {"as_needed", "bytes_128", "bytes_256"},
          "how much the L2 is asked to fetch with each 16 bytes of K and V")
        .acts_on({dram, l2});
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

// Tiles of packed rows in a launch, over all key heads and batch entries.
std::int64_t all_row_tiles(const decode::Config& c, const Workload& w) {
  const int tiles = decode::row_tiles(c, static_cast<int>(w.heads / w.heads_kv), static_cast<int>(w.len_q));
  return w.batch * w.heads_kv * tiles;
}

class DecodeFamily final : public Family {
 public:
  std::string_view name() const override { return "fwd_decode"; }
  std::string_view folder() const override { return "kernels/decode"; }
  std::string_view description() const override {
    return "few queries, many keys: heads of a group packed into one tile, keys split over the whole chip";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  bool is_special() const override { return true; }
  std::string_view requirements() const override {
    return "an NVIDIA GPU of compute capability 8.0 or newer and NVRTC 12.4 or newer";
  }
  std::vector<Dtype> dtypes() const override { return {Dtype::fp16, Dtype::bf16}; }
  std::vector<int> head_dims() const override { return {64, 128}; }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }

  std::optional<std::string> refuses(const Workload& workload, const DeviceFacts& device) const override {
    if (auto reason = refused_by_mma(workload, device)) return reason;
    if (auto reason = refused_by_packed_rows(workload)) return reason;
    if (workload.batch > decode::kMostGridYZ)
      return fmt::format("{} batch entries exceed the grid limit of {}", workload.batch, decode::kMostGridYZ);
    const std::int64_t group = workload.heads / workload.heads_kv;
    const std::int64_t fewest_tiles =
        workload.heads_kv * ((group * workload.len_q + kMostBlockRows - 1) / kMostBlockRows);
    if (fewest_tiles > decode::kMostGridYZ)
      return fmt::format("{} key heads of {} packed rows exceed the grid limit of {} tiles of {} rows: use fwd_sm80",
                         workload.heads_kv, group * workload.len_q, decode::kMostGridYZ, kMostBlockRows);
    return std::nullopt;
  }

  std::string_view made_for(const Workload& workload, const DeviceFacts&) const override {
    return workload.len_q <= kFewQueries ? "few queries: heads of a group share a tile, keys are split over the chip"
                                         : "";
  }

  std::optional<std::string> is_illegal(const Config& config, const Workload& workload,
                                        const DeviceFacts& device) const override {
    const decode::Config c = table().aggregate_of(config);
    const Problem problem = problem_of(workload);
    const std::int64_t grid_y = all_row_tiles(c, workload) / workload.batch;
    if (grid_y > decode::kMostGridYZ)
      return fmt::format("{} tiles of rows a batch entry exceed the grid limit of {}", grid_y, decode::kMostGridYZ);
    switch (decode::is_legal(c, problem, device.shared_bytes_per_block, device.shared_bytes_per_processor)) {
      case decode::Illegal::no:
        return std::nullopt;
      case decode::Illegal::head_dim:
        return fmt::format("head dim {} is not 64 or 128", problem.head_dim);
      case decode::Illegal::block_m:
        return fmt::format("block_m {} is no multiple of warp_rows {}", c.block_m, c.warp_rows);
      case decode::Illegal::groups:
        return fmt::format("{} groups of several warps exceed the 15 named barriers", c.groups);
      case decode::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", decode::threads(c));
      case decode::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}",
                           decode::shared_plan(c, problem.head_dim).total, device.name, device.shared_bytes_per_block);
      case decode::Illegal::occupancy:
        return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
      case decode::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit",
                           decode::registers_needed(c, problem.head_dim), decode::registers_allowed(c));
    }
    return "unknown reason";
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    // The most bytes under way that fit: two blocks a multiprocessor where its shared memory allows, so that one
    // streams while the other starts or merges. A tile of K holds 4 KiB.
    const std::int64_t rows = workload.heads / workload.heads_kv * workload.len_q;
    decode::Config c;
    c.block_m = rows <= 16 ? 16 : rows <= 32 ? 32 : static_cast<int>(kMostBlockRows);
    c.warp_rows = rows <= 16 ? 16 : 32;
    c.block_n = workload.dim == 128 ? 16 : 32;
    c.rescale = static_cast<attention::Rescale>(1);  // when_grown
    Config config;
    const auto fits = [&](int groups, int blocks, int stages) {
      c.groups = groups;
      c.min_blocks = blocks;
      c.stages = stages;
      config = table().config_of(c);
      return !is_illegal(config, workload, device);
    };
    for (const int groups : {4, 2})  // the partial outputs of 64 rows are too large for four groups on sm_89
      for (const int blocks : {2, 1})
        for (const int stages : {4, 3, 2, 1})
          if (fits(groups, blocks, stages)) return config;
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }

  std::string prelude(const Config& config, const Workload& workload) const override {
    return kernel_prelude("decode", table().render(config), problem(config, workload));
  }

  std::string entry() const override { return kernel_entry({.name = "decode"}); }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts& device) const override {
    const decode::Config c = table().aggregate_of(config);
    const std::int64_t tiles = all_row_tiles(c, workload);
    const std::int64_t processors = device.processors > 0 ? device.processors : kUnknownProcessors;
    const std::int64_t slots = processors * c.min_blocks * c.rounds;
    const int splits =
        decode::choose_splits(c, tiles, slots, static_cast<int>(workload.visible_keys(workload.len_q - 1)));
    LaunchPlan plan;
    plan.entry = "heed_forward";
    plan.grid = {static_cast<std::uint32_t>(splits), static_cast<std::uint32_t>(tiles / workload.batch),
                 static_cast<std::uint32_t>(workload.batch)};
    plan.threads = static_cast<std::uint32_t>(decode::threads(c));
    plan.shared_bytes = decode::shared_plan(c, static_cast<int>(workload.dim)).total;
    plan.workspace_bytes = decode::workspace_bytes(c, tiles, splits, static_cast<int>(workload.dim));
    plan.counters = splits > 1 ? static_cast<int>(tiles) : 0;
    return plan;
  }

  int register_limit(const Config& config) const override {
    return decode::registers_allowed(table().aggregate_of(config));
  }
};

}  // namespace

const Family& decode_family() {
  static const DecodeFamily family;
  return family;
}

}  // namespace heed
