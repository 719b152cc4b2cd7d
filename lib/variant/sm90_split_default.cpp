#include "variant/sm90_split_default.hpp"

#include <cstdint>
#include <string_view>

#include "kernels/sm90/split/legality.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"

// Times are of an H200, in microseconds.
namespace heed {
namespace {

using namespace sm90_split;

constexpr std::string_view kCtaRule = "cta";
constexpr std::string_view kMainloopRule = "mainloop";
constexpr std::string_view kStartRule = "start";
constexpr std::string_view kMergeRule = "merge";

struct Facts {
  int dim = 0;  // padded
  bool causal = false;
  bool window_with_features = false;
  std::int64_t len_k = 0;
  std::int64_t tiles = 0;  // of 64 rows, of all heads
  std::int64_t num_sms = 0;
  int cluster = 0;  // what was chosen before, from here on
  int min_blocks = 0;
  bool can_keep = false;  // can_keep_for_later

  // Q tiles that are each split in two, all at once.
  [[nodiscard]] constexpr bool one_wave() const { return 2 * tiles <= num_sms; }
  [[nodiscard]] constexpr bool is_split() const { return cluster > 1; }
};

template <class Choice>
using Row = RuleRow<Facts, Choice>;

constexpr bool always(const Facts&) {
  return true;
}

struct CtaShape {
  int m_warpgroups;
  int cluster;
  int min_blocks;
  Producer producer;
};
constexpr Row<CtaShape> kCtaShapes[] = {
    {[](const Facts& f) { return f.causal && f.dim == 64 && f.len_k <= 128 && f.tiles > 4 * f.num_sms; },
     {1, 1, 4, Producer::consumer_warp},
     "two n-blocks of keys at most, in many waves; not measured beside others: b64h12l128d64:fp16:causal_top_left"},
    {[](const Facts& f) { return !f.one_wave() && f.dim == 64 && f.tiles <= f.num_sms; },
     {1, 2, 2, Producer::warp},
     "Q tiles that are each split in two take more than one wave, but two CTAs a multiprocessor all run at once: "
     "b1h8l1024d64:fp16:causal_top_left 5.77"},
    {[](const Facts& f) { return !f.one_wave(); },
     {2, 1, 1, Producer::warpgroup},
     "two CTAs a tile only while they all run at once; not measured beside others: b4h16l512d64"},
    {always,
     {1, 2, 1, Producer::consumer_warp},
     "latency decides, and two CTAs halve the keys of each; not measured beside others: b1h8l512d64, b1h16l256d128"},
};

struct Mainloop {
  int block_n;
  int n_blocks_per_stage;
  int stages;
  int qk_in_flight;
  int v_barriers;
  int pv_start_step;
};
constexpr Row<Mainloop> kMainloops[] = {
    {[](const Facts& f) { return f.min_blocks == 4; },
     {64, 1, 2, 1, 1, 0},
     "registers of four CTAs a multiprocessor: b64h12l128d64:fp16:causal_top_left"},
    {[](const Facts& f) { return f.min_blocks == 2 && f.causal; },
     {64, 2, 2, 2, 1, 3},
     "as evolved: b1h8l1024d64:fp16:causal_top_left 5.81; 5.87 with PV from step 5 on and lengths first"},
    {[](const Facts& f) { return f.dim == 64 && (f.min_blocks == 2 || !f.is_split()); },
     {64, 2, 2, 2, 1, 0},
     "parts longer than one iteration need a second stage: b1h8l1024d64"},
    {[](const Facts& f) { return f.dim == 256; },
     {32, 1, 2, 1, 1, 0},
     "128 registers of output leave little: b1h8l256d256"},
    {[](const Facts& f) { return f.dim > 128 || !f.is_split(); },
     {64, 1, 2, 1, 1, 0},
     "parts longer than one iteration need a second stage: b1h16l1024d128"},
    {[](const Facts& f) { return f.dim > 64; },
     {64, 2, 1, 1, 2, 0},
     "one iteration of two n-blocks / two of one: b1h16l256d128 3.89 / 4.32"},
    {[](const Facts& f) { return f.window_with_features; },
     {64, 2, 1, 2, 2, 8},
     "online row maxima wait for all scores of an iteration, whose 128 registers leave too few for features as well "
     "(104 bytes spilled with a softcap); not measured: b1h8l512d64:fp16:window=100:sinks"},
    {always, {64, 4, 1, 2, 2, 8}, "all keys of a part in one iteration; not measured beside others: b1h8l512d64"},
};

struct Start {
  attention::TileOrder tile_order;
  Prologue prologue;
  int pv_ksteps_per_commit;
};
constexpr Row<Start> kStarts[] = {
    {[](const Facts& f) { return f.min_blocks == 2 && f.causal; },
     {attention::TileOrder::lpt_then_spt, Prologue::q_first, 2},
     "pairs of a long and a short Q tile are even; as evolved: b1h8l1024d64:fp16:causal_top_left 5.81"},
    {[](const Facts& f) { return f.one_wave() && f.dim == 64 && !f.causal; },
     {attention::TileOrder::ascending, Prologue::maps_first, 4},
     "one wave runs in any order, without the number of Q tiles: b1h8l512d64 0.03 less, with four steps of "
     "PV a commit group 1.002 times as fast as with two"},
    {[](const Facts& f) { return f.one_wave() && f.dim <= 128; },
     {attention::TileOrder::ascending, Prologue::q_first, 2},
     "likewise: b1h16l256d128 0.08 to 0.09 less"},
    {always,
     {attention::TileOrder::descending, Prologue::lengths_first, 2},
     "longest first; not measured beside others: b4h16l512d64:fp16:causal_top_left"},
};

struct Merge {
  PvSplitN pv_split_n;
  LseFirst lse_first;
};
constexpr Row<Merge> kMerges[] = {
    {[](const Facts& f) { return f.can_keep && f.causal; },
     {PvSplitN::on, LseFirst::off},
     "columns that stay beside those that are sent / after them: b1h16l256d128:fp16:causal_top_left 3.84 / 3.76, 1.004 "
     "times as fast without the weights first, 1.008 times with a barrier for the values of each n-block (evolved)"},
    {[](const Facts& f) { return f.can_keep; },
     {PvSplitN::on, LseFirst::on},
     "columns that stay beside those that are sent / after them / weights first as well: b1h16l256d128 3.79 / 3.73 / "
     "3.68"},
    {[](const Facts& f) { return f.dim == 64 && f.is_split(); },
     {PvSplitN::off, LseFirst::on},
     "together / weights first: b1h8l512d64 3.31 / 3.28, b1h8l512d64:fp16:causal_top_left 3.355 / 3.345, "
     "b1h8l1024d64:fp16:causal_top_left 5.97 / 5.96"},
    {always, {PvSplitN::off, LseFirst::off}, "not measured beside others: b1h8l256d256"},
};

sm90_split::Config with(const CtaShape& s, sm90_split::Config c = {}) {
  c.m_warpgroups = s.m_warpgroups;
  c.cluster = s.cluster;
  c.min_blocks = s.min_blocks;
  c.producer = s.producer;
  return c;
}
sm90_split::Config with(const Mainloop& i, sm90_split::Config c = {}) {
  c.block_n = i.block_n;
  c.n_blocks_per_stage = i.n_blocks_per_stage;
  c.stages = i.stages;
  c.qk_in_flight = i.qk_in_flight;
  c.v_barriers = i.v_barriers;
  c.pv_start_step = i.pv_start_step;
  return c;
}
sm90_split::Config with(const Start& o, sm90_split::Config c = {}) {
  c.tile_order = o.tile_order;
  c.prologue = o.prologue;
  c.pv_ksteps_per_commit = o.pv_ksteps_per_commit;
  return c;
}
sm90_split::Config with(const Merge& m, sm90_split::Config c = {}) {
  c.pv_split_n = m.pv_split_n;
  c.lse_first = m.lse_first;
  return c;
}

}  // namespace

sm90_split::Config sm90_split_default(const Workload& workload, const DeviceFacts& device, RuleTrace* trace) {
  const int dim = padded_dim(static_cast<int>(workload.dim));
  const bool causal = workload.is_causal();
  Facts facts{.dim = dim,
              .causal = causal,
              .window_with_features = mask_kind(workload) == MaskKind::window && workload.has_features(),
              .len_k = workload.len_k,
              .tiles = (workload.len_q + kWarpgroupRows - 1) / kWarpgroupRows * workload.heads * workload.batch,
              .num_sms = num_sms_of(device)};
  sm90_split::Config c = with(choose(kCtaRule, kCtaShapes, facts, trace));
  facts.cluster = c.cluster;
  facts.min_blocks = c.min_blocks;
  c = with(choose(kMainloopRule, kMainloops, facts, trace), c);
  c = with(choose(kStartRule, kStarts, facts, trace), c);
  if (workload.heads == workload.heads_kv) c.gqa = Gqa::off;
  if (dim > 64) c.rowsum = Rowsum::fadd;
  if (causal) {
    c.row_max = RowMax::stale_16;
    const bool lined_up = mask_bounds(workload).right_offset % 64 == 0;
    // 168 registers hold capped scores or what is seen of the diagonal: with both, 36 bytes are spilled.
    if (lined_up && (workload.softcap == 0 || c.min_blocks != 2)) c.mask_at = MaskAt::probabilities;
  }
  facts.can_keep = can_keep_for_later(c, dim);
  c = with(choose(kMergeRule, kMerges, facts, trace), c);
  if (c.pv_split_n == PvSplitN::on) {
    c.row_max = RowMax::stale_16;
    c.v_barriers = 2;
    if (causal) c.pv_ksteps_per_commit = 1;
  }
  return c;
}

std::vector<DefaultRule> sm90_split_rules(std::string (*text_of)(const sm90_split::Config&,
                                                                 std::initializer_list<std::string_view>)) {
  return {rule_of(kCtaRule, kCtaShapes,
                  [&](const CtaShape& s) {
                    return text_of(with(s), {"m_warpgroups", "cluster", "min_blocks", "producer"});
                  }),
          rule_of(kMainloopRule, kMainloops,
                  [&](const Mainloop& i) {
                    return text_of(with(i), {"block_n", "n_blocks_per_stage", "stages", "qk_in_flight", "v_barriers",
                                             "pv_start_step"});
                  }),
          rule_of(kStartRule, kStarts,
                  [&](const Start& o) { return text_of(with(o), {"tile_order", "prologue", "pv_ksteps_per_commit"}); }),
          rule_of(kMergeRule, kMerges, [&](const Merge& m) { return text_of(with(m), {"pv_split_n", "lse_first"}); })};
}

}  // namespace heed
