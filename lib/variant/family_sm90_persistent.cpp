#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "kernels/sm90/persistent/legality.hpp"
#include "kernels/sm90/persistent/stream_k.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/plan_grid.hpp"
#include "variant/registry.hpp"
#include "variant/rule_table.hpp"
#include "variant/sm90_persistent_default.hpp"
#include "variant/sm90_persistent_rules.hpp"
#include "workload/features.hpp"

namespace heed {
namespace {

// The kernel counts Q tiles in 32 bits, up to one grid beyond the last.
constexpr std::int64_t kMostRowTiles = std::int64_t{1} << 30;

const KnobTable<sm90_persistent::Config>& table() {
  static const KnobTable<sm90_persistent::Config> knobs = [] {
    using enum Bound;
    using C = sm90_persistent::Config;
    KnobTable<C> t;
    t.add("m_warpgroups", &C::m_warpgroups, {1, 2, 3, 4},
          "consumer warpgroups along M: block_m is 64 query rows times this")
        .acts_on({tail, tensor, l2, shared_memory})
        .shares_work();
    t.add("kv_groups", &C::kv_groups, {1, 2, 4},
          "intra-CTA split-KV: groups of consumer warpgroups that hold the same rows and split the keys")
        .acts_on({latency, tail})
        .shares_work();
    t.add("cluster", &C::cluster, {1, 2},
          "CTAs of a cluster that split the keys of one Q tile and merge over distributed shared memory")
        .acts_on({latency, tail})
        .shares_work();
    t.add("block_n", &C::block_n, {32, 48, 64, 80, 96, 112, 128}, "keys of a KV tile, the N of one QK GEMM")
        .acts_on({tensor, issue, latency});
    t.add("stages", &C::stages, {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16},
          "K/V pipeline stages of each KV group in shared memory")
        .acts_on({latency, l2, dram});
    t.add("q_stages", &C::q_stages, {1, 2, 3, 4}, "Q tiles kept in shared memory (persistent schedulers)")
        .acts_on({latency, tail, dram});
    t.add("scheduler", &C::scheduler,
          "tile scheduler: one Q tile a CTA, a static stride over Q tiles, Q tiles drawn from an atomic counter, or "
          "lists of blocks divided evenly over CTAs where one is long (Stream-K), else drawn")
        .acts_on({tail, latency, launch});
    t.add("grid", &C::grid,
          "CTAs of the static persistent scheduler: as many as fit, or the fewest that need no more waves")
        .acts_on({tail, l2, dram})
        .of_launch();
    t.add("softmax_overlap", &C::softmax_overlap,
          "intra-warpgroup overlap: GEMMs of the own warpgroup that run beside the softmax (FlashAttention-3, 3.2)")
        .acts_on({tensor, exponentials, latency});
    t.add("gemm_order", &C::gemm_order, "order in which QK and PV of one iteration are issued")
        .acts_on({tensor, latency});
    t.add("row_max", &C::row_max,
          "what the softmax subtracts: the running maximum, or a stale one, of the first KV tile or of the first 16 "
          "keys, until a sum overflows")
        .acts_on({issue, fma, latency});
    t.add("rowsum", &C::rowsum, {attention::Rowsum::fadd, attention::Rowsum::fadd_rounded},
          "row sums of P before it is rounded to fp16, or after it; of bf16 always after it")
        .acts_on({fma, issue})
        .of_accuracy();
    t.add("pingpong", &C::pingpong,
          "consumer warpgroups issue their GEMMs one after the other, by named barriers (FlashAttention-3, 3.1)")
        .acts_on({tensor, exponentials, latency});
    t.add("stagger_splits", &C::stagger_splits, "each KV group begins after the first scores of the group before it")
        .acts_on({tensor, exponentials, latency});
    t.add("overflow_check", &C::overflow_check,
          "when a warp votes whether a stale row maximum overflowed: at once, or after the GEMMs beside the softmax")
        .acts_on({issue, latency});
    t.add("mask_path", &C::mask_path,
          "how a masked tile leaves the unmasked path: by a branch before the softmax, by redoing the softmax after "
          "the overflow vote, or in a loop of its own")
        .acts_on({issue, tensor, exponentials});
    t.add("producer", &C::producer,
          "TMA producer: one warp, or a warpgroup that gives its registers to the consumers (setmaxnreg)")
        .acts_on({latency, issue});
    t.add("setmaxnreg", &C::setmaxnreg,
          "when a producer warpgroup gives up its registers: first of all, or after the first TMA loads are issued")
        .acts_on({latency, launch});
    t.add("tile_setup", &C::tile_setup,
          "when a consumer computes the rows and KV tiles of its Q tile: when Q has arrived, or while Q is on the way")
        .acts_on({latency, launch});
    t.add("pdl_trigger", &C::pdl_trigger, "programmatic dependent launch: when a CTA lets the next launch begin")
        .acts_on({launch, latency});
    t.add("epilogue", &C::epilogue,
          "how O is stored: 4-byte or 16-byte stores from registers, 128-byte lines by way of shared memory (addresses "
          "computed at the end or at the start), or TMA stores")
        .acts_on({l2, dram});
    using enum attention::TileOrder;
    t.add("tile_order", &C::tile_order, {row_major, lpt_l2, paired, lpt_then_spt},
          "Q tiles head by head, longest first over all heads that fit the L2, paired from both ends of a head, or "
          "longest first and then shortest first (LPT, SPT)")
        .acts_on({tail, l2, dram});
    t.add("share_causal_tail", &C::share_causal_tail,
          "KV tiles that only one of two paired warpgroups sees are taken by both in turn, and partial results added")
        .acts_on({tail, latency, tensor});
    t.add("evict_first", &C::evict_first,
          "tensors whose L2 lines are marked evict-first; the last five spare a part of the heads or what a CTA begins "
          "with")
        .acts_on({l2, dram});
    t.add("barrier_wait", &C::barrier_wait,
          "when a consumer asks the barrier of the next stage: at use, or beside the softmax before (try_wait)")
        .acts_on({latency, tensor});
    t.add("stage_release", &C::stage_release,
          "how a consumer frees a stage: by one lane in a branch, or by a predicated arrive among the exponentials")
        .acts_on({issue, latency});
    t.add("rowsum_reduce", &C::rowsum_reduce,
          "when the four lanes of a row add up row sums: after the last PV, or beside it")
        .acts_on({latency});
    t.add("scale_placement", &C::scale_placement,
          "where scores are scaled in the source: at the exponential, 16 keys ahead, or a tile ahead")
        .acts_on({issue, fma, exponentials});
    t.add(
         "convert_placement", &C::convert_placement,
         "where P is rounded to 16 bits in the source: after the exponential, 16 keys later, or at the end of the tile")
        .acts_on({issue, exponentials});
    t.add("rowsum_placement", &C::rowsum_placement,
          "where P is summed in the source: after the exponential, 16 keys later, or at the end of the tile")
        .acts_on({issue, fma, exponentials});
    t.add("virtual_ctas", &C::virtual_ctas, {1, 2, 3, 4},
          "CTAs that run as one, each with stages and a producer warp of its own")
        .acts_on({latency, launch, tail, l2, dram});
    t.add("min_blocks", &C::min_blocks, {1, 2, 3, 4}, "CTAs a multiprocessor, for __launch_bounds__ and the grid")
        .acts_on({latency, tail});
    return t;
  }();
  return knobs;
}

class Sm90PersistentFamily final : public Family {
 public:
  std::string_view name() const override { return "fwd_sm90_persistent"; }
  std::string_view folder() const override { return "kernels/sm90/persistent"; }
  std::string_view description() const override {
    return "warp-specialised FlashAttention for Hopper: TMA producer, wgmma consumers, persistent tile schedulers, "
           "long rows";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  std::string_view requirements() const override { return sm90_split_family().requirements(); }
  std::vector<Dtype> dtypes() const override { return sm90_split_family().dtypes(); }
  HeadDims head_dims() const override { return sm90_split_family().head_dims(); }
  std::vector<MaskKind> masks() const override { return sm90_split_family().masks(); }
  Features features() const override { return kAllFeatures; }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }
  SpecializationSupport specializations() const override { return sm90_persistent::kSpecializations; }
  SpecializationSupport specializations_of(const Config& config, const Workload& workload) const override {
    return sm90_persistent::specializations_of(table().aggregate_of(config), known_problem(workload));
  }

  std::optional<std::string> refuses_device(const DeviceFacts& device) const override {
    return refused_by_wgmma(device);
  }
  std::optional<std::string> refuses_sizes(const Workload& workload) const override {
    if (const std::int64_t tiles = q_tiles_of_launch(1, workload); tiles > kMostRowTiles)
      return fmt::format("{} tiles of {} rows exceed the {} it counts to", tiles, sm90_persistent::kWarpgroupRows,
                         kMostRowTiles);
    if (workload.page_size > 0 && !sm90_persistent::pages_fit(workload.page_size))
      return fmt::format(
          "a page of {} keys is no multiple of the 8 that its bulk copies take at once; fwd_sm80 has pages of any size",
          workload.page_size);
    return std::nullopt;
  }

  std::optional<std::string> refuses_config(const Config& config, const Specialization& specialization,
                                            const Workload& workload, const DeviceFacts& device) const override {
    const sm90_persistent::Config c = table().aggregate_of(config);
    Problem problem = known_problem(workload);
    problem.specialization = specialization;
    const int dim = problem.head_dim;
    // 128 registers of output leave none for probabilities that wait: 28 bytes spilled.
    const bool waits = c.convert_placement != sm90_persistent::ConvertPlacement::at_once ||
                       c.rowsum_placement != sm90_persistent::RowsumPlacement::at_once;
    if (sm90_persistent::padded_dim(dim) == 256 && c.softmax_overlap == sm90_persistent::SoftmaxOverlap::qk_pv && waits)
      return "probabilities that wait do not fit the registers; write "
             "convert_placement=at_once,rowsum_placement=at_once";
    if (workload.blocks && workload.blocks->rows < sm90_persistent::block_rows(c))
      return fmt::format("the {} rows of a Q tile walk one list, of {} rows here; write m_warpgroups={}",
                         sm90_persistent::block_rows(c), workload.blocks->rows,
                         workload.blocks->rows / sm90_persistent::kWarpgroupRows);
    if (c.scheduler == sm90_persistent::Scheduler::single_tile)
      if (const auto reason = refused_by_grid(workload)) return *reason + "; write scheduler=static_persistent";
    const std::int64_t of_head = (workload.len_q + sm90_persistent::block_rows(c) - 1) / sm90_persistent::block_rows(c);
    if (c.scheduler == sm90_persistent::Scheduler::single_tile &&
        sm90_persistent::grid_axes(c) == attention::GridAxes::heads_tiles_batch && of_head > kMostGridYZ)
      return fmt::format("{} row tiles a head exceed the grid limit of {}; write tile_order=row_major", of_head,
                         kMostGridYZ);
    switch (sm90_persistent::is_legal(c, problem, device.shared_bytes_per_block, device.shared_bytes_per_processor)) {
      case sm90_persistent::Illegal::no:
        return std::nullopt;
      case sm90_persistent::Illegal::head_dim:
        return fmt::format("head dim {} is no multiple of 8 up to 256", dim);
      case sm90_persistent::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", sm90_persistent::threads(c));
      case sm90_persistent::Illegal::block_n:
        return fmt::format("a tile of {} keys is no multiple of 16 from 32 to 128", c.block_n);
      case sm90_persistent::Illegal::softmax_overlap:
        return "exact maxima rescale the output, which no product in flight allows; write softmax_overlap=none";
      case sm90_persistent::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}",
                           sm90_persistent::shared_plan(c, problem).total, device.name, device.shared_bytes_per_block);
      case sm90_persistent::Illegal::occupancy:
        return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
      case sm90_persistent::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit",
                           sm90_persistent::registers_needed(c, problem), sm90_persistent::registers_allowed(c));
      case sm90_persistent::Illegal::operands:
        return fmt::format("its products name {} registers; at launch a thread has {}",
                           sm90_persistent::registers_named(c, dim), sm90_persistent::launch_registers(c));
      case sm90_persistent::Illegal::same_program:
        return one_name(config, specialization, workload);
    }
    return "unknown reason";
  }

  Config canonical(const Config& config, const Specialization&, const Workload& workload) const override {
    return table().config_of(sm90_persistent::canonical(table().aggregate_of(config), known_problem(workload)));
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    Config config = canonical(table().config_of(chosen(workload, device, nullptr)), {}, workload);
    HEED_CHECK(!is_illegal(config, workload, device));
    return config;
  }

  std::vector<DefaultRule> rules() const override {
    using namespace sm90_persistent;
    using C = sm90_persistent::Config;
    return {rule_of(kSchedule, kSchedules,
                    [](const Schedule& s) {
                      return table().text_of(C{.scheduler = s.scheduler, .grid = s.grid, .tile_order = s.tile_order},
                                             {"scheduler", "grid", "tile_order"});
                    }),
            rule_of(kStart, kStarts,
                    [](const Start& s) {
                      return table().text_of(C{.setmaxnreg = s.setmaxnreg, .tile_setup = s.tile_setup},
                                             {"setmaxnreg", "tile_setup"});
                    }),
            rule_of(kEvictFirst, kEvictFirsts,
                    [](EvictFirst e) { return table().text_of(C{.evict_first = e}, {"evict_first"}); }),
            rule_of(kStore, kStores, [](const Store& s) {
              return table().text_of(C{.epilogue = s.epilogue, .rowsum_reduce = s.rowsum_reduce},
                                     {"epilogue", "rowsum_reduce"});
            })};
  }
  Config default_by(const Workload& workload, const DeviceFacts& device, RuleTrace& trace) const override {
    return canonical(table().config_of(chosen(workload, device, &trace)), {}, workload);
  }

  std::string prelude(const Config& config, const Problem& problem) const override {
    return kernel_prelude(folder(), "sm90_persistent", table().render(config), problem) +
           cluster_attribute(table().aggregate_of(config).cluster);
  }

  std::string entry() const override {
    return kernel_entry({.name = "sm90_persistent",
                         .takes_maps = true,
                         .has_features = true,
                         .attributes = "HEED_CLUSTER ",
                         .call = "forward<kConfig, kProblem>({})"});
  }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts& device) const override {
    const sm90_persistent::Config c = table().aggregate_of(config);
    LaunchPlan plan;
    plan.entry = "heed_forward";
    plan.grid = plan_grid(sm90_persistent::launch_grid(c, workload.len_q, workload.heads, workload.batch,
                                                       num_sms_of(device) * c.min_blocks));
    plan.threads = static_cast<std::uint32_t>(sm90_persistent::threads(c));
    plan.cluster = static_cast<std::uint32_t>(c.cluster);
    plan.shared_bytes = sm90_persistent::shared_plan(c, problem_of(workload)).total;
    plan.semaphores = c.scheduler == sm90_persistent::Scheduler::dynamic_persistent ? 1 : 0;
    if (sm90_persistent::streams(c)) {
      const std::int64_t ctas = static_cast<std::int64_t>(plan.grid[0]) * c.virtual_ctas;
      const int warps = sm90_persistent::virtual_cta_threads(c) / 32;
      plan.workspace_bytes = sm90_persistent::stream_workspace_bytes(
          ctas, warps, sm90_persistent::padded_dim(static_cast<int>(workload.dim)));
      plan.semaphores = static_cast<int>(ctas * warps);
    }
    const int k_rows = workload.page_size == 0
                           ? c.block_n
                           : sm90_persistent::rows_of_page_box(c, static_cast<int>(workload.page_size));
    plan.tensor_maps =
        TensorMapSpec{.problem = problem_of(workload),
                      .columns = tile::kBoxColumns,
                      .q_rows = sm90_persistent::kWarpgroupRows,
                      .k_rows = k_rows,
                      .v_rows = k_rows,
                      .o_rows = c.epilogue == sm90_persistent::EpilogueStore::tma ? sm90_persistent::box_rows(c) : 0};
    plan.supports_pdl = c.pdl_trigger != sm90_persistent::PdlTrigger::none;
    return plan;
  }

  int register_limit(const Config& config) const override {
    return sm90_persistent::registers_allowed(table().aggregate_of(config));
  }

 private:
  sm90_persistent::Config chosen(const Workload& workload, const DeviceFacts& device, RuleTrace* trace) const {
    const Problem problem = known_problem(workload);
    return sm90_persistent_default(
        with_keys_of_a_tile(workload), num_sms_of(device),
        [&](const sm90_persistent::Config& c) {
          return !is_illegal(table().config_of(sm90_persistent::canonical(c, problem)), workload, device);
        },
        trace);
  }
};

}  // namespace

const Family& sm90_persistent_family() {
  static const Sm90PersistentFamily family;
  return family;
}

}  // namespace heed
