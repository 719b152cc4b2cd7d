#include <fmt/format.h>

#include "base/check.hpp"
#include "kernels/sm80/decode/config.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/registry.hpp"
#include "variant/rule_table.hpp"

namespace heed {
namespace {

constexpr std::int64_t kMostBlockRows = 64;

const KnobTable<sm80_decode::Config>& table() {
  static const KnobTable<sm80_decode::Config> knobs = [] {
    using enum Bound;
    using C = sm80_decode::Config;
    KnobTable<C> t;
    t.add("block_m", &C::block_m, {16, 32, 64},
          "packed query rows a CTA (the query heads of one K/V head, GQA packing)")
        .acts_on({tail, latency, l2, shared_memory})
        .shares_work();
    t.add("block_n", &C::block_n, {16, 32, 64}, "keys of a KV tile").acts_on({latency, issue, dram});
    t.add("warp_rows", &C::warp_rows, {16, 32}, "packed query rows a warp")
        .acts_on({shared_memory, issue, latency, tensor})
        .shares_work();
    t.add("kv_groups", &C::kv_groups, {1, 2, 4, 8, 16},
          "groups of warps that share the rows of a CTA and split the keys")
        .acts_on({latency, issue, dram})
        .shares_work();
    t.add("stages", &C::stages, {1, 2, 3, 4, 5, 6, 8}, "K/V pipeline stages of a group (cp.async)")
        .acts_on({latency, l2, dram});
    t.add("min_blocks", &C::min_blocks, {1, 2, 3, 4}, "CTAs a multiprocessor, for __launch_bounds__ and the grid")
        .acts_on({latency, tail, dram});
    t.add("waves", &C::waves, {1, 2, 4}, "waves of CTAs a launch: how far split-KV cuts the keys")
        .acts_on({tail, dram});
    t.add("smem_layout", &C::smem_layout,
          "shared memory layout of tiles: linear, XOR-swizzled, or rows padded by 16 bytes")
        .acts_on({shared_memory, issue});
    t.add("q_in_registers", &C::q_in_registers,
          "Q stays in registers; off: Q is read from shared memory for every tile")
        .acts_on({shared_memory, latency});
    t.add("l2_prefetch_size", &C::l2_prefetch_size, "L2 prefetch size of the loads of K and V: none, 128 or 256 bytes")
        .acts_on({dram, l2});
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

// Tiles of packed rows in a launch, over all key heads and batch entries.
std::int64_t all_row_tiles(const sm80_decode::Config& c, const Workload& w) {
  const int tiles = sm80_decode::row_tiles(c, static_cast<int>(w.heads / w.heads_kv), static_cast<int>(w.len_q));
  return w.batch * w.heads_kv * tiles;
}

std::int64_t shared_bytes_of(const sm80_decode::Config& c, const Problem& problem) {
  return sm80_decode::shared_plan(c, problem.head_dim, sm80_decode::key_bytes(problem)).total;
}

// A tile of K holds 4 KiB, of head dim 256 8 KiB, or 4 in 8 bits.
int block_n_of(const Workload& w) {
  const int row_bytes = static_cast<int>(w.dim) * sm80_decode::key_bytes(problem_of(w));
  return row_bytes <= 64 ? 64 : row_bytes <= 128 ? 32 : 16;
}

class Sm80DecodeFamily final : public Family {
 public:
  std::string_view name() const override { return "fwd_sm80_decode"; }
  std::string_view folder() const override { return "kernels/sm80/decode"; }
  std::string_view description() const override {
    return "decode from Ampere on: GQA packing, cp.async, split-KV over the whole GPU, merged in the same launch";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  bool is_special() const override { return true; }
  std::string_view requirements() const override {
    return "an NVIDIA GPU of compute capability 8.0 or newer and NVRTC 12.4 or newer";
  }
  std::vector<Dtype> dtypes() const override { return {Dtype::fp16, Dtype::bf16}; }
  HeadDims head_dims() const override { return {.listed = {64, 128, 256}}; }
  std::vector<MaskKind> masks() const override { return {MaskKind::none, MaskKind::causal, MaskKind::window}; }
  Features features() const override {
    return {
        .softcap = true, .bias = true, .alibi = true, .sinks = true, .lengths = true, .pages = true, .relative = true};
  }
  std::string_view quantised() const override { return "K and V, each in e4m3, e5m2 or int8"; }
  bool reads(const Quantised& quantised) const override { return !quantised.q && quantised.k && quantised.v; }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }

  std::optional<std::string> refuses_device(const DeviceFacts& device) const override { return refused_by_mma(device); }
  std::optional<std::string> refuses_sizes(const Workload& workload) const override {
    if (auto reason = refused_by_packed_rows(workload)) return reason;
    if (workload.quantised) {
      if (const ScaleBy by = workload.quantised->v->by; by == ScaleBy::block || by == ScaleBy::token)
        return "factors of V differ from key to key; it takes those of tensors, heads and channels";
    }
    if (workload.batch > sm80_decode::kMostGridYZ)
      return fmt::format("{} batch entries exceed the grid limit of {}", workload.batch, sm80_decode::kMostGridYZ);
    const std::int64_t group = workload.heads / workload.heads_kv;
    const std::int64_t fewest_tiles =
        workload.heads_kv * ((group * workload.len_q + kMostBlockRows - 1) / kMostBlockRows);
    if (fewest_tiles > sm80_decode::kMostGridYZ)
      return fmt::format("{} key heads of {} packed rows exceed the grid limit of {} tiles of {} rows: use fwd_sm80",
                         workload.heads_kv, group * workload.len_q, sm80_decode::kMostGridYZ, kMostBlockRows);
    return std::nullopt;
  }

  std::optional<std::string> refuses_config(const Config& config, const Specialization&, const Workload& workload,
                                            const DeviceFacts& device) const override {
    const sm80_decode::Config c = table().aggregate_of(config);
    const Problem problem = problem_of(workload);
    const std::int64_t grid_y = all_row_tiles(c, workload) / workload.batch;
    if (grid_y > sm80_decode::kMostGridYZ)
      return fmt::format("{} tiles of rows a batch entry exceed the grid limit of {}", grid_y,
                         sm80_decode::kMostGridYZ);
    switch (sm80_decode::is_legal(c, problem, device.shared_bytes_per_block, device.shared_bytes_per_processor)) {
      case sm80_decode::Illegal::no:
        return std::nullopt;
      case sm80_decode::Illegal::head_dim:
        return fmt::format("head dim {} is not 64, 128 or 256", problem.head_dim);
      case sm80_decode::Illegal::block_m:
        return fmt::format("block_m {} is no multiple of warp_rows {}", c.block_m, c.warp_rows);
      case sm80_decode::Illegal::kv_groups:
        return fmt::format("{} groups of several warps exceed the 15 named barriers", c.kv_groups);
      case sm80_decode::Illegal::copies:
        return fmt::format("{} threads of a group cannot share the {} chunks of 16 bytes of a tile evenly",
                           sm80_decode::threads_per_group(c), c.block_n * problem.head_dim / 16);
      case sm80_decode::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", sm80_decode::threads(c));
      case sm80_decode::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}", shared_bytes_of(c, problem),
                           device.name, device.shared_bytes_per_block);
      case sm80_decode::Illegal::occupancy:
        return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
      case sm80_decode::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit", sm80_decode::registers_needed(c, problem),
                           sm80_decode::registers_allowed(c));
    }
    return "unknown reason";
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    // The most bytes under way that fit: two blocks a multiprocessor where its shared memory allows, so that one
    // streams while the other starts or merges.
    const std::int64_t rows = workload.heads / workload.heads_kv * workload.len_q;
    sm80_decode::Config c;
    c.block_m = rows <= 16 ? 16 : rows <= 32 ? 32 : static_cast<int>(kMostBlockRows);
    // The output of 32 rows takes all registers at 256; at 128 they do not hold the factors of keys beside it.
    c.warp_rows = rows <= 16 || workload.dim == 256 || (workload.dim == 128 && workload.quantised) ? 16 : 32;
    c.block_n = block_n_of(workload);
    c.rescale = attention::Rescale::when_grown;
    Config config;
    const auto fits = [&](bool q_in_registers, int groups, int blocks, int stages) {
      c.q_in_registers = q_in_registers;
      c.kv_groups = groups;
      c.min_blocks = blocks;
      c.stages = stages;
      config = table().config_of(c);
      return !is_illegal(config, workload, device);
    };
    for (const bool q_in_registers : {true, false})  // biases and pages take registers too
      for (const int groups :
           {4, 2, 1})  // the partial outputs of 64 rows are too large for four on sm_89, of 256 for two
        for (const int blocks : {2, 1})
          for (const int stages : {4, 3, 2, 1}) {
            // One stage of head dim 256 for two blocks each is less under way than several of one.
            if (workload.dim == 256 && blocks == 2 && stages == 1) continue;
            if (fits(q_in_registers, groups, blocks, stages)) return config;
          }
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }

  std::string prelude(const Config& config, const Problem& problem) const override {
    return kernel_prelude(folder(), "sm80_decode", table().render(config), problem);
  }

  std::string entry() const override { return kernel_entry({.name = "sm80_decode", .has_features = true}); }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts& device) const override {
    const sm80_decode::Config c = table().aggregate_of(config);
    const std::int64_t tiles = all_row_tiles(c, workload);
    const std::int64_t processors = num_sms_of(device, kAmpereSms);
    const std::int64_t slots = processors * c.min_blocks * c.waves;
    const int splits = sm80_decode::choose_splits(c, tiles, slots, static_cast<int>(workload.seen_keys().count()));
    LaunchPlan plan;
    plan.entry = "heed_forward";
    plan.grid = {static_cast<std::uint32_t>(splits), static_cast<std::uint32_t>(tiles / workload.batch),
                 static_cast<std::uint32_t>(workload.batch)};
    plan.threads = static_cast<std::uint32_t>(sm80_decode::threads(c));
    plan.shared_bytes = shared_bytes_of(c, problem_of(workload));
    plan.workspace_bytes = sm80_decode::workspace_bytes(c, tiles, splits, static_cast<int>(workload.dim));
    plan.semaphores = splits > 1 ? static_cast<int>(tiles) : 0;
    return plan;
  }

  int register_limit(const Config& config) const override {
    return sm80_decode::registers_allowed(table().aggregate_of(config));
  }
};

}  // namespace

const Family& sm80_decode_family() {
  static const Sm80DecodeFamily family;
  return family;
}

}  // namespace heed
