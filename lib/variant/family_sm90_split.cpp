#include <fmt/format.h>

#include "base/check.hpp"
#include "kernels/sm90/split/legality.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/plan_grid.hpp"
#include "variant/registry.hpp"
#include "variant/sm90_split_default.hpp"

namespace heed {
namespace {

const KnobTable<sm90_split::Config>& table() {
  static const KnobTable<sm90_split::Config> knobs = [] {
    using enum Bound;
    using C = sm90_split::Config;
    KnobTable<C> t;
    t.add("m_warpgroups", &C::m_warpgroups, {1, 2, 3, 4},
          "consumer warpgroups along M: block_m is 64 query rows times this")
        .acts_on({tail, latency, l2, shared_memory})
        .shares_work();
    t.add("kv_groups", &C::kv_groups, {1, 2},
          "intra-CTA split-KV: groups of consumer warpgroups that hold the same rows and split the keys")
        .acts_on({latency, tail})
        .shares_work();
    t.add("cluster", &C::cluster, {1, 2, 4, 8},
          "split-KV over the CTAs of a cluster, merged over distributed shared memory")
        .acts_on({latency, tail})
        .shares_work();
    t.add("block_n", &C::block_n, {32, 64, 128}, "keys of one QK GEMM (n-block)").acts_on({latency, issue, tensor});
    t.add("n_blocks_per_stage", &C::n_blocks_per_stage, {1, 2, 3, 4, 6, 8},
          "n-blocks of one unrolled mainloop iteration, which fill one K/V stage")
        .acts_on({latency, issue, tensor});
    t.add("stages", &C::stages, {1, 2, 3, 4}, "K/V pipeline stages in shared memory").acts_on({latency, l2, dram});
    t.add("qk_in_flight", &C::qk_in_flight, {1, 2, 3, 4, 6, 8}, "QK GEMMs issued before the first exponential")
        .acts_on({latency, tensor});
    t.add("v_barriers", &C::v_barriers, {1, 2, 3, 4}, "barriers for the V of one stage").acts_on({latency});
    t.add("pv_ksteps_per_commit", &C::pv_ksteps_per_commit, {1, 2, 4},
          "k-steps (16 keys) of PV in one wgmma commit group")
        .acts_on({tensor, issue, latency});
    t.add("pv_start_step", &C::pv_start_step, {0, 2, 3, 4, 5, 6, 8},
          "softmax step of 16 keys before which no PV is issued")
        .acts_on({tensor, latency});
    t.add("late_convert", &C::late_convert, "P is rounded to 16 bits one step after the exponentials")
        .acts_on({issue, exponentials});
    t.add("prefetch_next_qk", &C::prefetch_next_qk, "the first QK of the next iteration is issued within this one")
        .acts_on({latency, tensor});
    t.add("row_max", &C::row_max,
          "what the softmax subtracts: the running maximum, or a stale one, of the first n-block or of the first 16 "
          "keys, until a sum overflows")
        .acts_on({issue, fma, latency});
    t.add("mask_at", &C::mask_at, "where the causal mask applies: to scores, in a branch, or to P, without one")
        .acts_on({latency, issue});
    t.add("rowsum", &C::rowsum, "row sums by fp32 additions, or by the tensor cores (a column of ones beside V)")
        .acts_on({issue, fma, tensor});
    t.add("overflow_check", &C::overflow_check,
          "when splits find out that a stale row maximum overflowed: before the merge, or after O is stored")
        .acts_on({latency, issue});
    t.add("merge_dtype", &C::merge_dtype,
          "type in which partial O travels between splits: that of O, fp32, 16-bit fixed point, or 24 bits of fp32")
        .acts_on({latency});
    t.add("lse_first", &C::lse_first, "splits send their log-sum-exp ahead of partial O").acts_on({latency});
    t.add("pv_split_n", &C::pv_split_n, "a split computes the columns of O that it keeps after those that it sends")
        .acts_on({tensor, latency});
    t.add("asm_order", &C::asm_order,
          "exponentials and conversions stay in source order, or move where the compiler likes")
        .acts_on({issue, exponentials, tensor});
    t.add("gqa", &C::gqa,
          "query heads may share K/V heads (grouped-query attention), which costs the first load a division")
        .acts_on({launch, latency});
    t.add("tma_multicast", &C::tma_multicast, "CTAs of a cluster multicast their share of Q, or each load all of Q")
        .acts_on({l2, latency});
    t.add("prologue", &C::prologue,
          "what is known before the first TMA load: lengths, then tensor maps; both at once; or only what Q needs")
        .acts_on({launch, latency});
    t.add("producer", &C::producer, "TMA producer: one warp, a warpgroup (setmaxnreg), or the first consumer warp")
        .acts_on({latency, issue});
    t.add("pdl_trigger", &C::pdl_trigger, "programmatic dependent launch: when a CTA lets the next launch begin")
        .acts_on({launch});
    t.add("epilogue", &C::epilogue,
          "how O is stored: 4-byte or 16-byte stores from registers, or TMA stores by way of shared memory")
        .acts_on({l2, dram});
    using enum attention::TileOrder;
    t.add("tile_order", &C::tile_order, {ascending, descending, lpt_then_spt},
          "Q tiles of a head first to last, last to first, or of all heads longest first and then shortest first (LPT, "
          "SPT)")
        .acts_on({tail});
    t.add("min_blocks", &C::min_blocks, {1, 2, 3, 4}, "CTAs a multiprocessor, for __launch_bounds__")
        .acts_on({latency, tail});
    return t;
  }();
  return knobs;
}

// Up to so many keys two blocks that share a Q tile have two KV tiles each, and starting is what counts. H200, us,
// causal, this family / fwd_sm90_persistent: b4h8l256d64 3.62 / 3.68, b1h16l512d64 4.29 / 4.12, b1h8l1024d64 5.77
// / 5.21.
constexpr std::int64_t kKeysOfShortRows = 256;

std::int64_t q_tiles(const sm90_split::Config& c, const Workload& w) {
  const std::int64_t rows = std::int64_t{c.m_warpgroups} * sm90_split::kWarpgroupRows;
  return (w.len_q + rows - 1) / rows;
}

// Q tiles of 64 rows, of all heads.
std::int64_t all_row_tiles(const Workload& w) {
  return q_tiles({.m_warpgroups = 1}, w) * w.heads * w.batch;
}

// Whether Q tiles that are each split in two take more than one wave, but all run at once, two blocks a
// multiprocessor.
bool fits_two_a_processor(const Workload& w, std::int64_t num_sms) {
  const std::int64_t tiles = all_row_tiles(w);
  return sm90_split::padded_dim(static_cast<int>(w.dim)) == 64 && 2 * tiles > num_sms && tiles <= num_sms;
}

class Sm90SplitFamily final : public Family {
 public:
  std::string_view name() const override { return "fwd_sm90_split"; }
  std::string_view folder() const override { return "kernels/sm90/split"; }
  std::string_view description() const override {
    return "latency kernel for Hopper: split-KV over a cluster, merged in the same launch, fully unrolled iterations";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  std::string_view requirements() const override {
    return "an NVIDIA GPU of compute capability 9.0 (Hopper) and NVRTC 12.4 or newer";
  }
  std::vector<Dtype> dtypes() const override { return {Dtype::fp16, Dtype::bf16}; }
  HeadDims head_dims() const override { return {.listed = {32, 64, 96, 128, 192, 256}, .step = 8, .most = 256}; }
  std::vector<MaskKind> masks() const override { return {MaskKind::none, MaskKind::causal, MaskKind::window}; }
  Features features() const override { return {.softcap = true, .sinks = true, .lengths = true}; }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }
  SpecializationSupport specializations() const override { return sm90_split::kSpecializations; }
  SpecializationSupport specializations_of(const Config& config, const Workload& workload) const override {
    return sm90_split::specializations_of(table().aggregate_of(config), known_problem(workload));
  }

  std::optional<std::string> refuses_device(const DeviceFacts& device) const override {
    return refused_by_wgmma(device);
  }
  std::optional<std::string> refuses_sizes(const Workload& workload) const override {
    return refused_by_grid(workload);
  }

  std::optional<std::string> refuses_config(const Config& config, const Specialization& specialization,
                                            const Workload& workload, const DeviceFacts& device) const override {
    const sm90_split::Config c = table().aggregate_of(config);
    Problem problem = known_problem(workload);
    problem.specialization = specialization;
    const int dim = problem.head_dim;
    if (c.gqa == sm90_split::Gqa::off && workload.heads != workload.heads_kv)
      return fmt::format("{} query heads share {} key heads; write gqa=on", workload.heads, workload.heads_kv);
    if (sm90_split::grid_axes(c) == attention::GridAxes::heads_tiles_batch && q_tiles(c, workload) > kMostGridYZ)
      return fmt::format("{} row tiles a head exceed the grid limit of {}; write tile_order=descending",
                         q_tiles(c, workload), kMostGridYZ);
    switch (sm90_split::is_legal(c, problem, device.shared_bytes_per_block, device.shared_bytes_per_processor)) {
      case sm90_split::Illegal::no:
        return std::nullopt;
      case sm90_split::Illegal::head_dim:
        return fmt::format("head dim {} is no multiple of 8 up to 256", dim);
      case sm90_split::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", sm90_split::threads(c));
      case sm90_split::Illegal::num_splits:
        return fmt::format("{} parts cannot share {} columns; each keeps 16 at least", sm90_split::num_splits(c),
                           sm90_split::padded_dim(dim));
      case sm90_split::Illegal::cluster:
        return fmt::format("a cluster of {} blocks exceeds the 8 that every device schedules", c.cluster);
      case sm90_split::Illegal::iteration:
        return fmt::format("a segment of {} keys exceeds the 256 whose scores fit registers",
                           sm90_split::iteration_keys(c));
      case sm90_split::Illegal::v_barriers:
        return fmt::format("{} barriers do not divide {} n-blocks", c.v_barriers, c.n_blocks_per_stage);
      case sm90_split::Illegal::pv_commits:
        return fmt::format("products of {} steps do not divide the steps behind a barrier", c.pv_ksteps_per_commit);
      case sm90_split::Illegal::qk_in_flight:
        return fmt::format("a stage has {} n-blocks, fewer than qk_in_flight={}", c.n_blocks_per_stage, c.qk_in_flight);
      case sm90_split::Illegal::rowsum_mma:
        return "columns of ones need head dims up to 64; write rowsum=fadd";
      case sm90_split::Illegal::prefetch_next_qk:
        return "prefetching scores takes two n-blocks a stage and two stages at least";
      case sm90_split::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}",
                           sm90_split::shared_plan(c, dim).total, device.name, device.shared_bytes_per_block);
      case sm90_split::Illegal::occupancy:
        return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
      case sm90_split::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit", sm90_split::registers_needed(c, dim),
                           sm90_split::registers_allowed(c));
      case sm90_split::Illegal::operands:
        return fmt::format("its products name {} registers; at launch a thread has {}",
                           sm90_split::registers_named(c, dim), sm90_split::launch_registers(c));
      case sm90_split::Illegal::same_program:
        return one_name(config, specialization, workload);
    }
    return "unknown reason";
  }

  Config canonical(const Config& config, const Specialization& specialization,
                   const Workload& workload) const override {
    Problem problem = known_problem(workload);
    problem.specialization = specialization;
    sm90_split::Config c = sm90_split::canonical(table().aggregate_of(config), problem);
    if (workload.heads != workload.heads_kv) c.gqa = sm90_split::Gqa::on;
    return table().config_of(c);
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    Config config =
        table().config_of(sm90_split::canonical(sm90_split_default(workload, device, nullptr), problem_of(workload)));
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }

  std::vector<DefaultRule> rules() const override {
    return sm90_split_rules([](const sm90_split::Config& c, std::initializer_list<std::string_view> names) {
      return table().text_of(c, names);
    });
  }
  Config default_by(const Workload& workload, const DeviceFacts& device, RuleTrace& trace) const override {
    return table().config_of(sm90_split::canonical(sm90_split_default(workload, device, &trace), problem_of(workload)));
  }

  std::string prelude(const Config& config, const Problem& problem) const override {
    return kernel_prelude(folder(), "sm90_split", table().render(config), problem) +
           cluster_attribute(table().aggregate_of(config).cluster);
  }

  std::string entry() const override {
    return kernel_entry(
        {.name = "sm90_split",
         .takes_maps = true,
         .has_features = true,
         .attributes = "HEED_CLUSTER ",
         .call = "Forward<kConfig, kProblem>(heed::sm90_split::known<kProblem>(params), maps, shared).run()"});
  }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts&) const override {
    const sm90_split::Config c = table().aggregate_of(config);
    LaunchPlan plan;
    plan.entry = "heed_forward";
    plan.grid = plan_grid(sm90_split::launch_grid(c, workload.len_q, workload.heads, workload.batch));
    plan.threads = static_cast<std::uint32_t>(sm90_split::threads(c));
    plan.cluster = static_cast<std::uint32_t>(c.cluster);
    plan.shared_bytes = sm90_split::shared_plan(c, static_cast<int>(workload.dim)).total;
    plan.tensor_maps =
        TensorMapSpec{.problem = problem_of(workload),
                      .columns = tile::kBoxColumns,
                      .q_rows = sm90_split::query_box_rows(c),
                      .k_rows = c.block_n,
                      .v_rows = sm90_split::iteration_keys(c) / c.v_barriers,
                      .o_rows = c.epilogue == sm90_split::EpilogueStore::tma ? sm90_split::kStoredRows : 0,
                      .o_columns = sm90_split::kStoredColumns};
    plan.supports_pdl = c.pdl_trigger != sm90_split::PdlTrigger::none;
    return plan;
  }

  int register_limit(const Config& config) const override {
    return sm90_split::registers_allowed(table().aggregate_of(config));
  }
};

}  // namespace

bool prefers_split_kernel(const Workload& workload, std::int64_t num_sms) {
  return workload.is_causal() && workload.len_k <= kKeysOfShortRows && fits_two_a_processor(workload, num_sms);
}

bool splits_q_tiles(const Workload& workload, std::int64_t num_sms) {
  return workload.is_causal() && workload.len_k > kKeysOfShortRows && fits_two_a_processor(workload, num_sms);
}

const Family& sm90_split_family() {
  static const Sm90SplitFamily family;
  return family;
}

}  // namespace heed
