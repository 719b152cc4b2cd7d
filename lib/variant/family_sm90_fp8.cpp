#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>

#include "base/check.hpp"
#include "kernels/sm90/fp8/entries.hpp"
#include "variant/family.hpp"
#include "variant/family_limits.hpp"
#include "variant/kernel_source.hpp"
#include "variant/registry.hpp"
#include "variant/rule_table.hpp"

namespace heed {
namespace {

// The kernel counts Q tiles and pieces of V in 32 bits, up to one grid beyond the last.
constexpr std::int64_t kMostTiles = std::int64_t{1} << 30;
constexpr int kLeastKeys = 64;  // of a KV tile

// V transposed of entries with lengths of their own, or in pages, has room for the most keys in each, which may be many
// times what there is: serving engines give the longest context that a model has.
constexpr std::int64_t kMostWorkspaceOfEntries = std::int64_t{4} << 30;

const KnobTable<sm90_fp8::Config>& table() {
  static const KnobTable<sm90_fp8::Config> knobs = [] {
    using enum Bound;
    using C = sm90_fp8::Config;
    KnobTable<C> t;
    t.add("m_warpgroups", &C::m_warpgroups, {1, 2, 3, 4},
          "consumer warpgroups along M: block_m is 64 query rows times this")
        .acts_on({tail, tensor, l2, shared_memory})
        .shares_work();
    t.add("block_n", &C::block_n, {64, 96, 128, 160, 192, 224}, "keys of a KV tile, the N of one QK GEMM")
        .acts_on({tensor, issue, latency});
    t.add("stages", &C::stages, {1, 2, 3, 4, 5, 6}, "pipeline stages of K in shared memory, and as many of V")
        .acts_on({latency, l2, dram});
    t.add("q_stages", &C::q_stages, {1, 2}, "Q tiles kept in shared memory").acts_on({latency, tail, dram});
    t.add("pingpong", &C::pingpong,
          "consumer warpgroups take turns by named barriers: issue their GEMMs one after the other (FlashAttention-3, "
          "3.1)")
        .acts_on({tensor, exponentials, latency});
    using enum attention::TileOrder;
    t.add("tile_order", &C::tile_order, {row_major, lpt_l2},
          "Q tiles head by head, or longest first over all heads that fit the L2")
        .acts_on({tail, l2, dram});
    t.add("exp2", &C::exp2, "share of the exponentials computed by a polynomial on the FMA pipe (FlashAttention-4)")
        .acts_on({exponentials, fma});
    t.add("min_blocks", &C::min_blocks, {1, 2}, "CTAs a multiprocessor, for __launch_bounds__ and the grid")
        .acts_on({latency, tail});
    t.add("promote_every", &C::promote_every, {0, 1, 2, 4, 8, 16},
          "KV tiles after which outputs are added to sums in shared memory, as tensor cores keep 13 bits of what they "
          "add; 0: never")
        .acts_on({issue, shared_memory})
        .of_accuracy();
    return t;
  }();
  return knobs;
}

std::int64_t q_tiles_of(const sm90_fp8::Config& c, const Workload& w) {
  return attention::q_tiles_of_head(w.len_q, sm90_fp8::block_rows(c)) * w.heads * w.batch;
}

// Keys that tensor cores add up by themselves: of so many equal values they lose 2.4%, less than P loses in 8 bits.
// Programs for short problems run long ones, so that all of them promote.
constexpr int kSummedKeys = 1024;

int promote_every_of(int block_n) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(kSummedKeys / block_n)));
}

// Tiles of the default where a head dim has keys up to a number: the first that factors of K and shared memory allow.
struct Tiles {
  std::int64_t dim = 0;
  std::int64_t most_keys = 0;
  int m_warpgroups = 2;
  int block_n = 0;
  int stages = 0;
  int q_stages = 1;
  sm90_fp8::Pingpong pingpong = sm90_fp8::Pingpong::off;
  std::string_view provenance{};

  [[nodiscard]] sm90_fp8::Config config() const {
    return {.m_warpgroups = m_warpgroups,
            .block_n = block_n,
            .stages = stages,
            .q_stages = q_stages,
            .pingpong = pingpong,
            .promote_every = promote_every_of(block_n)};
  }
};
// Of 121, 73 and 8 tiles by head dim, with one choice of promote_every each and hardware exponentials, within 3% of the
// fastest on an H200 at 16,384 unmasked tokens of 512, 2,048 and 16,384 keys.
constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
constexpr std::array kMeasured = {
    Tiles{.dim = 64,
          .most_keys = 512,
          .m_warpgroups = 4,
          .block_n = 64,
          .stages = 4,
          .q_stages = 2,
          .provenance = "tiles that divide the keys take 1.4 times the rate of others at b32h32l512d64"},
    Tiles{.dim = 64,
          .most_keys = kAny,
          .m_warpgroups = 3,
          .block_n = 128,
          .stages = 4,
          .provenance = "1.09 to 1.15 times the rate of 2 x 64 x 224 (b8h32l2048d64, b1h32l16384d64)"},
    Tiles{.dim = 128,
          .most_keys = 1024,
          .block_n = 128,
          .stages = 2,
          .pingpong = sm90_fp8::Pingpong::on,
          .provenance = "tiles that divide the keys take 1.2 times the rate of others at b32h16l512d128"},
    Tiles{.dim = 128,
          .most_keys = kAny,
          .block_n = 192,
          .stages = 2,
          .provenance = "within 3% of the fastest at b8h16l2048d128 and b1h16l16384d128"},
    Tiles{.dim = 256,
          .most_keys = kAny,
          .block_n = 128,
          .stages = 3,
          .pingpong = sm90_fp8::Pingpong::on,
          .provenance = "within 3% of the fastest at b32h8l512d256, b8h8l2048d256 and b1h8l16384d256"},
    Tiles{.dim = 256,
          .most_keys = kAny,
          .block_n = 128,
          .stages = 2,
          .pingpong = sm90_fp8::Pingpong::on,
          .provenance = "where three stages do not fit; not measured"}};

// Keys that share a factor of K; 0: all of a head do.
std::int64_t keys_of_factor(const Workload& w) {
  if (!w.quantised || !w.quantised->k) return 0;
  const QuantisedTensor& k = *w.quantised->k;
  return k.by == ScaleBy::block ? k.rows : k.by == ScaleBy::token ? 1 : 0;
}

class Sm90Fp8Family final : public Family {
 public:
  std::string_view name() const override { return "fwd_sm90_fp8"; }
  std::string_view folder() const override { return "kernels/sm90/fp8"; }
  std::string_view description() const override {
    return "FP8 FlashAttention for Hopper: wgmma in e4m3 with fp32 sums, TMA producer, persistent CTAs, V transposed "
           "in "
           "the same launch";
  }
  DeviceKind device() const override { return DeviceKind::cuda; }
  std::string_view requirements() const override { return sm90_split_family().requirements(); }
  std::vector<Dtype> dtypes() const override { return {Dtype::fp16, Dtype::bf16}; }
  HeadDims head_dims() const override { return {.listed = {64, 128, 256}}; }
  std::vector<MaskKind> masks() const override { return {MaskKind::none, MaskKind::causal, MaskKind::window}; }
  Features features() const override { return {.softcap = true, .sinks = true, .lengths = true, .pages = true}; }
  std::string_view quantised() const override { return "Q, K and V in e4m3"; }
  bool reads(const Quantised& quantised) const override {
    const auto is_e4m3 = [](const std::optional<QuantisedTensor>& t) { return t && t->dtype == Dtype::e4m3; };
    return is_e4m3(quantised.q) && is_e4m3(quantised.k) && is_e4m3(quantised.v);
  }
  const std::vector<Knob>& knobs() const override { return table().knobs(); }

  std::optional<std::string> refuses_device(const DeviceFacts& device) const override {
    return refused_by_wgmma(device);
  }
  std::optional<std::string> refuses_sizes(const Workload& workload) const override {
    if (!workload.quantised) return "it computes quantised inputs alone: Q, K and V in e4m3";
    if (const std::int64_t keys = keys_of_factor(workload); keys % kLeastKeys != 0)
      return fmt::format(
          "{} of K share a scale factor; it takes factors of tensors, heads and blocks of multiples of {} keys",
          keys == 1 ? "single keys" : fmt::format("{} keys", keys), kLeastKeys);
    if (keys_of_factor(workload) > 0 && workload.page_size > 0)
      return fmt::format(
          "blocks of {} keys of K share a scale factor, and keys lie in pages, several of which may be in a tile; it "
          "takes factors of tensors and heads there",
          keys_of_factor(workload));
    if (keys_of_factor(workload) > 0 && workload.has_left_bound() &&
        unseen_in_front(MaskKind::window, mask_bounds(whole_sizes_of(workload))) > 0)
      return "a window hides the first keys from all rows, so that tiles do not begin where blocks of factors do; it "
             "takes factors of tensors and heads there";
    if (const ScaleBy by = workload.quantised->v->by; by == ScaleBy::block || by == ScaleBy::token)
      return "factors of V differ from key to key; it takes those of tensors, heads and channels";
    if (workload.page_size > 0 && !sm90_fp8::pages_fit(workload.page_size))
      return fmt::format(
          "a page of {} keys is no multiple of the {} that its copies take at once; fwd_sm80 has pages of any size",
          workload.page_size, sm90_fp8::kPageStep);
    if (workload.has_lengths() || workload.page_size > 0)
      if (const std::int64_t bytes = sm90_fp8::workspace_bytes({.block_n = kLeastKeys}, static_cast<int>(workload.dim),
                                                               workload.len_k, workload.heads_kv, workload.batch);
          bytes > kMostWorkspaceOfEntries)
        return fmt::format(
            "V transposed takes {} bytes where each of {} entries may have {} keys; it takes up to {}: give the most "
            "keys that one has, or use fwd_sm80",
            bytes, workload.batch, workload.len_k, kMostWorkspaceOfEntries);
    if (const std::int64_t tiles = q_tiles_of({.m_warpgroups = 1}, workload); tiles > kMostTiles)
      return fmt::format("{} tiles of {} rows exceed the {} it counts to", tiles, sm90_fp8::kWarpgroupRows, kMostTiles);
    if (const std::int64_t slabs = (workload.len_k / sm90_fp8::kSlabKeys + 8) * workload.heads_kv * workload.batch;
        slabs > kMostTiles)
      return fmt::format("{} pieces of {} keys exceed the {} it counts to", slabs, sm90_fp8::kSlabKeys, kMostTiles);
    return std::nullopt;
  }

  std::optional<std::string> refuses_config(const Config& config, const Specialization&, const Workload& workload,
                                            const DeviceFacts& device) const override {
    const sm90_fp8::Config c = table().aggregate_of(config);
    const int dim = static_cast<int>(workload.dim);
    if (keys_of_factor(workload) % c.block_n != 0)
      return fmt::format("a tile of {} keys does not divide the {} that share a scale factor", c.block_n,
                         keys_of_factor(workload));
    if (c.m_warpgroups == 1 && c.pingpong != sm90_fp8::Pingpong::off)
      return "a consumer warpgroup alone takes no turns; write pingpong=off";
    switch (sm90_fp8::is_legal(c, problem_of(workload), device.shared_bytes_per_block)) {
      case sm90_fp8::Illegal::no:
        break;
      case sm90_fp8::Illegal::head_dim:
        return fmt::format("head dim {} is not 64, 128 or 256", dim);
      case sm90_fp8::Illegal::block_n:
        return fmt::format("a tile of {} keys is no multiple of 32 from 64 to 256", c.block_n);
      case sm90_fp8::Illegal::threads:
        return fmt::format("{} threads a block exceed 1024", sm90_fp8::threads(c));
      case sm90_fp8::Illegal::shared_memory:
        return fmt::format("it needs {} bytes of shared memory a block; {} allows {}",
                           sm90_fp8::shared_plan(c, dim).total, device.name, device.shared_bytes_per_block);
      case sm90_fp8::Illegal::registers:
        return fmt::format("it needs at least {} registers a thread, {} fit",
                           sm90_fp8::registers_needed(c, problem_of(workload)), sm90_fp8::registers_allowed(c));
      case sm90_fp8::Illegal::operands:
        return fmt::format("its products name {} registers; at launch a thread has {}",
                           tile::registers_named(std::max(dim, c.block_n)), tile::launch_registers(c));
    }
    // The runtime keeps 1 KiB of each block for itself.
    if (c.min_blocks * (sm90_fp8::shared_plan(c, dim).total + 1024) > device.shared_bytes_per_processor ||
        c.min_blocks * sm90_fp8::threads(c) > 2048)
      return fmt::format("{} blocks do not fit a multiprocessor's shared memory or threads", c.min_blocks);
    return std::nullopt;
  }

  Config default_config(const Workload& workload, const DeviceFacts& device) const override {
    using sm90_fp8::Pingpong;
    if (const auto row = measured_row(workload, device)) return config_with(kMeasured.at(*row), workload);
    // Blocks of factors, or less shared memory.
    for (const int block_n : {192, 160, 128, 96, 64})
      for (const int stages : {3, 2, 1}) {
        if (workload.dim == 256 && block_n > 128) continue;
        const Tiles tiles{
            .block_n = block_n, .stages = stages, .pingpong = workload.dim == 256 ? Pingpong::on : Pingpong::off};
        if (is_possible(tiles, workload, device)) return config_with(tiles, workload);
      }
    HEED_CHECK(false && "tiles of 64 keys and one stage are legal everywhere");
    return {};
  }

  std::vector<DefaultRule> rules() const override {
    DefaultRule rule{kTiles, {}};
    for (const Tiles& tiles : kMeasured)
      rule.rows.push_back({table().text_of(tiles.config(), {"m_warpgroups", "block_n", "stages", "q_stages", "pingpong",
                                                            "promote_every"}),
                           tiles.provenance});
    return {rule};
  }
  Config default_by(const Workload& workload, const DeviceFacts& device, RuleTrace& trace) const override {
    const std::optional<std::size_t> row = trace.forces(kTiles) ? trace.forced->row : measured_row(workload, device);
    if (!row) return default_config(workload, device);
    trace.decided.push_back({kTiles, *row});
    return config_with(kMeasured.at(*row), workload);
  }

  std::string prelude(const Config& config, const Problem& problem) const override {
    return kernel_prelude(folder(), "sm90_fp8", table().render(config), problem);
  }

  std::string entry() const override {
    return kernel_entry(
        {.name = "sm90_fp8", .takes_maps = true, .has_features = true, .call = "forward<kConfig, kProblem>({})"});
  }

  LaunchPlan plan(const Config& config, const Workload& workload, const DeviceFacts& device) const override {
    const sm90_fp8::Config c = table().aggregate_of(config);
    const int dim = static_cast<int>(workload.dim);
    LaunchPlan plan;
    plan.entry = "heed_forward";
    plan.grid = {static_cast<std::uint32_t>(std::min(q_tiles_of(c, workload), num_sms_of(device) * c.min_blocks)), 1,
                 1};
    plan.threads = static_cast<std::uint32_t>(sm90_fp8::threads(c));
    plan.shared_bytes = sm90_fp8::shared_plan(c, dim).total;
    plan.workspace_bytes = sm90_fp8::workspace_bytes(c, dim, workload.len_k, workload.heads_kv, workload.batch);
    plan.semaphores = sm90_fp8::kSemaphores;
    const int k_rows =
        workload.page_size == 0 ? c.block_n : sm90_fp8::rows_of_page_box(c, static_cast<int>(workload.page_size));
    plan.tensor_maps = TensorMapSpec{.problem = problem_of(workload),
                                     .columns = sm90_fp8::box_columns(dim),
                                     .q_rows = sm90_fp8::kWarpgroupRows,
                                     .k_rows = k_rows,
                                     .v_rows = std::min(k_rows, sm90_fp8::kSlabKeys)};  // for V's alignment alone
    plan.supports_pdl = true;
    return plan;
  }

  int register_limit(const Config& config) const override {
    return sm90_fp8::registers_allowed(table().aggregate_of(config));
  }

 private:
  static constexpr std::string_view kTiles = "tiles";

  static Config config_with(const Tiles& tiles, const Workload& workload) {
    sm90_fp8::Config c = tiles.config();
    using enum attention::TileOrder;
    c.tile_order = workload.has_right_bound() ? lpt_l2 : row_major;
    return table().config_of(c);
  }
  bool is_possible(const Tiles& tiles, const Workload& workload, const DeviceFacts& device) const {
    return keys_of_factor(workload) % tiles.block_n == 0 && !is_illegal(config_with(tiles, workload), workload, device);
  }
  std::optional<std::size_t> measured_row(const Workload& workload, const DeviceFacts& device) const {
    for (std::size_t row = 0; row < kMeasured.size(); ++row)
      if (kMeasured.at(row).dim == workload.dim && workload.len_k <= kMeasured.at(row).most_keys &&
          is_possible(kMeasured.at(row), workload, device))
        return row;
    return std::nullopt;
  }
};

}  // namespace

const Family& sm90_fp8_family() {
  static const Sm90Fp8Family family;
  return family;
}

}  // namespace heed
