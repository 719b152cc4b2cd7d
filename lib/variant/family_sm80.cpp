#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "kernels/sm80/forward/config.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/plan_grid.hpp"
#include "variant/registry.hpp"
#include "variant/sm80_default.hpp"
#include "workload/features.hpp"

namespace heed {
namespace {

const KnobTable<sm80::Config>& table() {
  static const KnobTable<sm80::Config> knobs = [] {
    using enum Bound;
    using C = sm80::Config;
    KnobTable<C> t;
    t.add("block_m", &C::block_m, {16, 32, 64, 128}, "query rows a CTA")
        .acts_on({tail, latency, l2, shared_memory})
        .shares_work();
    t.add("block_n", &C::block_n, {16, 32, 64, 128}, "keys of a KV tile").acts_on({latency, issue, shared_memory});
    t.add("warp_rows", &C::warp_rows, {16, 32}, "query rows a warp")
        .acts_on({shared_memory, issue, latency, tensor})
        .shares_work();
    t.add("kv_groups", &C::kv_groups, {1, 2, 4, 8},
          "intra-CTA split-KV: groups of warps that hold the same rows and split the keys")
        .acts_on({latency, tail})
        .shares_work();
    t.add("stages", &C::stages, {1, 2, 3, 4}, "K/V pipeline stages of a group (cp.async)").acts_on({latency, l2, dram});
    t.add("smem_layout", &C::smem_layout,
          "shared memory layout of tiles: linear, XOR-swizzled, or rows padded by 16 bytes")
        .acts_on({shared_memory});
    t.add("q_in_registers", &C::q_in_registers,
          "Q stays in registers; off: Q is read from shared memory for every tile")
        .acts_on({shared_memory, latency});
    t.add("split_wait", &C::split_wait, "K and V of a stage are waited for separately").acts_on({latency});
    t.add("overlap", &C::overlap, "PV of a tile beside the softmax of the next")
        .acts_on({tensor, exponentials, latency});
    t.add("late_loads", &C::late_loads, "loads of later tiles are issued after QK; off: before")
        .acts_on({issue, latency});
    t.add("pipeline_sync", &C::pipeline_sync,
          "how warps share stages: a barrier of the group each iteration, or full and empty mbarriers of each stage")
        .acts_on({latency, tensor});
    t.add("exp2", &C::exp2, "share of the exponentials computed by a polynomial on the FMA pipe (FlashAttention-4)")
        .acts_on({exponentials, fma});
    t.add("rescale", &C::rescale,
          "when partial O is rescaled: always, when the row maximum grew, when it grew by more than 2^8 "
          "(FlashAttention-4), or never until a sum overflows")
        .acts_on({fma, issue});
    t.add("rowsum", &C::rowsum, {attention::Rowsum::fadd, attention::Rowsum::mma},
          "row sums of P before it is rounded to 16 bits, an addition an element; or after it, by the tensor cores")
        .acts_on({fma, issue, tensor})
        .of_accuracy();
    t.add("epilogue", &C::epilogue, "O from registers, or by way of shared memory (kv_groups=1)")
        .acts_on({l2, dram, shared_memory});
    using enum attention::TileOrder;
    t.add("tile_order", &C::tile_order, {ascending, descending, lpt, lpt_then_spt},
          "Q tiles of a head first to last, last to first, longest first over all heads (LPT), or longest first and "
          "then shortest first (LPT, SPT)")
        .acts_on({tail});
    t.add("min_blocks", &C::min_blocks, {1, 2, 3, 4}, "CTAs a multiprocessor, for __launch_bounds__")
        .acts_on({latency, tail});
    return t;
  }();
  return knobs;
}

// Whether a config that is preferred for 16 bits is one for 8 bits, where need be with tiles of 32 keys. What spills by
// ptxas 13.0: 32 rows a warp and tiles of 64 keys, with overlap 100 to 200 bytes beside 255 registers (sm_80, int8,
// head dim 64), or beside V in e4m3, 420 (head dim 128); tiles of 32 keys take 224 and spill none. Hopper multiplies
// e4m3 as fp16, to which mma.sync brings it with registers of its own: 16 rows a warp spill 24 to 44 bytes beside tiles
// of 64 keys; beside tiles of 32 so do 32 rows at head dim 128, and 4 bytes 16 rows at head dim 256 (causal).
bool fits_8_bits(sm80::Config& c, const Workload& w, const DeviceFacts& device) {
  const bool widens_keys = w.quantised->q->dtype == Dtype::e4m3 && device.compute_capability >= 90;
  const bool is_tall = c.warp_rows == 32;
  if ((is_tall && (c.overlap || w.quantised->v)) || widens_keys)
    c.block_n = std::min(c.block_n, widens_keys && w.dim == 256 ? 16 : 32);
  return !(widens_keys && is_tall && w.dim == 128);
}

constexpr int kWidest_fp32 = 128;

class Sm80Family final : public Family {
 public:
  std::string_view name() const override { return "fwd_sm80"; }
  std::string_view folder() const override { return "kernels/sm80/forward"; }
  std::string_view description() const override {
    return "FlashAttention-2 from Ampere on: mma.sync with all operands in registers, cp.async stages, intra-CTA "
           "split-KV; fp32 by three products in tf32";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  std::string_view requirements() const override {
    return "an NVIDIA GPU of compute capability 8.0 or newer and NVRTC 12.4 or newer";
  }
  std::vector<Dtype> dtypes() const override { return {Dtype::fp16, Dtype::bf16, Dtype::fp32}; }
  HeadDims head_dims() const override { return {.listed = {64, 128, 256}}; }
  std::vector<MaskKind> masks() const override { return {MaskKind::none, MaskKind::causal, MaskKind::window}; }
  Features features() const override { return kAllFeatures; }
  // And V in e4m3 beside either.
  std::string_view quantised() const override { return "Q and K in int8 or e4m3"; }
  bool reads(const Quantised& quantised) const override {
    const auto& [q, k, v] = quantised;
    return q && k && q->dtype == k->dtype && q->dtype != Dtype::e5m2 && (!v || v->dtype == Dtype::e4m3);
  }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }

  std::optional<std::string> refuses_device(const DeviceFacts& device) const override { return refused_by_mma(device); }
  std::optional<std::string> refuses_inputs(const Quantised& quantised, const DeviceFacts& device) const override {
    return quantised.q->dtype == Dtype::e4m3 ? refused_by_mma_of_fp8(device) : std::nullopt;
  }
  std::optional<std::string> refuses_sizes(const Workload& workload) const override {
    // At 256 every config spills, and the sums of 768 products that tensor cores truncate are off by 6e-6.
    if (workload.dtype == Dtype::fp32 && workload.dim > kWidest_fp32)
      return fmt::format("head dim {} in fp32 is not supported; it takes 64 and {}", workload.dim, kWidest_fp32);
    if (workload.dtype == Dtype::fp32 && workload.quantised)
      return "quantised inputs with O and V in fp32 are not supported; it takes them with fp16 and bf16";
    if (workload.quantised && workload.quantised->v)
      if (const ScaleBy by = workload.quantised->v->by; by == ScaleBy::block || by == ScaleBy::token)
        return "factors of V differ from key to key; it takes those of tensors, heads and channels";
    return refused_by_grid(workload);
  }

  std::optional<std::string> refuses_config(const Config& config, const Specialization&, const Workload& workload,
                                            const DeviceFacts& device) const override {
    const sm80::Config c = table().aggregate_of(config);
    const Problem problem = problem_of(workload);
    if (const std::int64_t tiles = (workload.len_q + c.block_m - 1) / c.block_m;
        sm80::grid_axes(c.tile_order) != attention::GridAxes::tiles_heads_batch && tiles > kMostGridYZ)
      return fmt::format("tile_order counts {} tiles of {} rows in the grid's last dimension, which ends at {}", tiles,
                         c.block_m, kMostGridYZ);
    switch (sm80::is_legal(c, problem, device.shared_bytes_per_block, device.shared_bytes_per_processor)) {
      case sm80::Illegal::no:
        return std::nullopt;
      case sm80::Illegal::head_dim:
        return fmt::format("head dim {} is not 64, 128 or 256", problem.head_dim);
      case sm80::Illegal::block_m:
        return fmt::format("block_m {} is no multiple of warp_rows {}", c.block_m, c.warp_rows);
      case sm80::Illegal::kv_groups:
        return fmt::format("{} key splits exceed the 15 named barriers", c.kv_groups);
      case sm80::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", sm80::threads(c));
      case sm80::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}",
                           sm80::shared_plan(c, problem).total, device.name, device.shared_bytes_per_block);
      case sm80::Illegal::occupancy:
        return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
      case sm80::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit", sm80::registers_needed(c, problem),
                           sm80::registers_allowed(c));
      case sm80::Illegal::overlap:
        return "overlap=on waits for values one tile later as it is and keeps two tiles: it needs split_wait=off and "
               "two "
               "or more stages";
      case sm80::Illegal::polynomial:
        return "rescale=stale_tile needs exp2=hardware: the polynomial's overflow does not show";
      case sm80::Illegal::polynomial_fp32:
        return "in fp32 exp2=hardware alone has the digits: the polynomial is made for probabilities of 16 bits";
      case sm80::Illegal::rowsum_fp32:
        return "rowsum=mma sums probabilities as they are rounded to 16 bits, and in fp32 none are; write rowsum=fadd";
      case sm80::Illegal::rowsum_dropout:
        return "rowsum=mma sums what the values are multiplied by, and with dropout these are the probabilities that "
               "are kept; write rowsum=fadd";
      case sm80::Illegal::late_loads:
        return "late_loads=on needs two or more stages: the only one is free after a tile's values";
      case sm80::Illegal::pipeline_sync:
        return "pipeline_sync=stage needs split_wait=off, two or more stages and two or more warps a group: a stage is "
               "waited for as a whole, and what warps may be apart by are copies of the next round";
      case sm80::Illegal::listed_blocks:
        return fmt::format(
            "with lists of blocks of keys the {} rows of a block walk one list by tiles of {} keys; both "
            "must divide {}",
            c.block_m, c.block_n, kLeastBlock);
      case sm80::Illegal::same_program:
        return "with key splits both epilogues are the same program; write epilogue=shared";
    }
    return "unknown reason";
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    return chosen(workload, device, nullptr);
  }

  std::vector<DefaultRule> rules() const override {
    return {sm80_tiles_rule([](const sm80::Config& c) {
      return table().text_of(c, {"block_m", "block_n", "warp_rows", "kv_groups", "stages", "q_in_registers",
                                 "split_wait", "overlap", "late_loads", "pipeline_sync", "rescale", "min_blocks"});
    })};
  }
  Config default_by(const Workload& workload, const DeviceFacts& device, RuleTrace& trace) const override {
    return chosen(workload, device, &trace);
  }

  std::string prelude(const Config& config, const Problem& problem) const override {
    return kernel_prelude(folder(), "sm80", table().render(config), problem);
  }

  std::string entry() const override { return kernel_entry({.name = "sm80", .has_features = true}); }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts&) const override {
    const sm80::Config c = table().aggregate_of(config);
    LaunchPlan plan;
    plan.entry = "heed_forward";
    plan.grid = plan_grid(sm80::launch_grid(c, workload.len_q, workload.heads, workload.batch));
    plan.threads = static_cast<std::uint32_t>(sm80::threads(c));
    plan.shared_bytes = sm80::shared_plan(c, problem_of(workload)).total;
    return plan;
  }

  int register_limit(const Config& config) const override {
    return sm80::registers_allowed(table().aggregate_of(config));
  }

 private:
  Config chosen(const Workload& workload, const DeviceFacts& device, RuleTrace* trace) const {
    for (sm80::Config c : sm80_defaults(workload, device, trace)) {
      if (workload.quantised && !fits_8_bits(c, workload, device)) continue;
      Config config = table().config_of(c);
      if (!is_illegal(config, workload, device)) return config;
    }
    HEED_CHECK(false && "the last of the defaults is legal everywhere");
    return {};
  }
};

}  // namespace

const Family& sm80_family() {
  static const Sm80Family family;
  return family;
}

}  // namespace heed
