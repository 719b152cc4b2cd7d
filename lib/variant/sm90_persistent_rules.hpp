/// What fwd_sm90_persistent's default decides by tables: how Q tiles are scheduled, what is done ahead of the first
/// loads, what the L2 gives up first, and how rows are stored. Times are of an H200, in microseconds, causal ones in
/// brackets or named; "A / B" compares the other choice with the row's.
#pragma once

#include "kernels/sm90/persistent/config.hpp"
#include "variant/rule_table.hpp"

namespace heed::sm90_persistent {

/// Of a workload, a device, and what was chosen before.
struct LaunchFacts {
  int dim = 0;  ///< padded
  std::int64_t len_k = 0;
  double bytes = 0;  ///< of Q, K, V and O
  bool causal = false;
  bool few_keys = false;  ///< Q tiles of one or two KV tiles, small CTAs
  int m_warpgroups = 0;
  bool shares_tail = false;  ///< ShareCausalTail::on
  bool staggers = false;     ///< StaggerSplits::on
  std::int64_t q_tiles = 0;  ///< of all heads
  std::int64_t ctas = 0;     ///< that run at once

  [[nodiscard]] constexpr bool one_wave() const { return q_tiles <= ctas; }
  [[nodiscard]] constexpr bool two_waves() const { return !one_wave() && q_tiles <= 2 * ctas; }
  [[nodiscard]] constexpr bool many_waves() const { return 2 * q_tiles > 5 * ctas; }  ///< more than two and a half
  /// Of two waves, a second one that nearly all CTAs take part in.
  [[nodiscard]] constexpr bool two_whole_waves() const { return two_waves() && 5 * q_tiles > 8 * ctas; }
  /// Under a causal mask Q tiles differ; where all are short, evening them out costs more than it brings.
  [[nodiscard]] constexpr bool uneven() const { return causal && !few_keys && !two_whole_waves(); }
};

template <class Choice>
using Row = RuleRow<LaunchFacts, Choice>;

// Names of the rules.
inline constexpr std::string_view kSchedule = "schedule";
inline constexpr std::string_view kStart = "start";
inline constexpr std::string_view kEvictFirst = "evict_first";
inline constexpr std::string_view kStore = "store";

constexpr bool always(const LaunchFacts&) {
  return true;
}

/// Up to so many keys a launch of one wave takes less than 20 us, of which its start is a good part, and tiles of 64
/// keys are the faster ones at head dim 128.
inline constexpr std::int64_t kShortKeys = 2048;

// -------------------------------------------------------------------------------------- launches of more than one wave

struct Schedule {
  Scheduler scheduler;
  Grid grid;
  TileOrder tile_order;
};

/// Causal rows of few keys, many waves, from 128 columns on: they share those in the L2 when they come head by head.
constexpr bool comes_head_by_head(const LaunchFacts& f) {
  return f.uneven() && !f.two_waves() && f.dim >= 128 && f.len_k <= 512;
}

inline constexpr Row<Schedule> kSchedules[] = {
    {[](const LaunchFacts& f) { return comes_head_by_head(f) && f.q_tiles <= 8 * f.ctas; },
     {Scheduler::static_persistent, Grid::balanced, TileOrder::row_major},
     "the longest of all heads first / by the counter / by index with balanced waves: b8h16l512d128 28.8 / 29.8 / "
     "26.4, b16h16l512d128 55.0 / 54.0 / 51.7, b16h8l512d256 52.5 / 54.6 / 50.4; at head dim 64 b32h32l512d64 105.3 / "
     "106.9 / 108.8"},
    {comes_head_by_head,
     {Scheduler::dynamic_persistent, Grid::full, TileOrder::row_major},
     "likewise: b32h16l512d128 104.8 / 102.7 / 104.6, b48h16l256d128 61.1 / 57.1 / 59.5, b24h8l512d256 75.3 / 73.4 / "
     "73.7"},
    {[](const LaunchFacts& f) { return f.uneven(); },
     {Scheduler::dynamic_persistent, Grid::full, TileOrder::lpt_l2},
     "backwards / the longest first, as CTAs finish: 1.2 to 1.6 waves b1h20l1024d128 15.9 / 14.3, b1h26l1024d128 17.0 "
     "/ "
     "15.6, b3h16l1024d64 20.1 / 17.9, b2h5l2048d256 50.5 / 47.3; 1.7 waves b1h28l1024d128 16.7 / 17.0; many "
     "b1h48l2048d128 98.3 / 96.5, b3h8l2048d256 111 / 103"},
    {[](const LaunchFacts& f) { return !f.causal && f.dim == 64 && !f.few_keys && !f.two_waves(); },
     {Scheduler::dynamic_persistent, Grid::full, TileOrder::row_major},
     "by index / by the counter: b32h32l512d64 149.8 / 146.4, b16h32l1024d64 264.9 / 261.7, b64h12l256d64 36.1 / 35.4, "
     "b4h32l4096d64 960.0 / 955.6, two waves (b4h16l1024d64) 34.8 / 35.1; with two consumer warpgroups b8h16l2048d128 "
     "446.0 / 448.7"},
    {[](const LaunchFacts& f) {
       return f.few_keys && 20 * attention::persistent_ctas(true, f.q_tiles, f.ctas) >= 19 * f.ctas;
     },
     {Scheduler::static_persistent, Grid::balanced, TileOrder::row_major},
     "a launch of loads wants nearly all places; full / balanced: b64h12l128d64 causal with 384 of 396 14.01 / 13.90, "
     "b24h12l128d64 causal with 288 6.26 / 6.68"},
    {[](const LaunchFacts& f) { return !f.few_keys && f.dim == 128 && f.q_tiles <= 4 * f.ctas; },
     {Scheduler::static_persistent, Grid::balanced, TileOrder::row_major},
     "a last wave that leaves multiprocessors idle is a good part of few; full / balanced: b1h32l1024d128 31.4 / 31.2, "
     "causal 19.27 / 19.05, b1h20l1024d128 25.1 / 24.4, causal 16.4 / 16.0, b1h8l4096d128 causal 52.3 / 50.9, "
     "b2h32l1024d128 64.2 / 63.1; of six waves 166.3 / 167.1 (b3h16l2048d128), of 16 equal to 0.5%"},
    {always,
     {Scheduler::static_persistent, Grid::full, TileOrder::row_major},
     "of two whole causal waves the second goes backwards; paired / so: b1h32l1024d128 21.1 / 19.1, b1h8l4096d128 76.5 "
     "/ "
     "57.8, b1h8l4096d256 153 / 107, b4h16l1024d64 23.7 / 21.5. Balanced b4h16l1024d64 35.0 / 34.8"},
};

// ------------------------------------------------------------------------------------------------ before the first
// loads

struct Start {
  TileSetup tile_setup;
  Setmaxnreg setmaxnreg;
};

inline constexpr Row<Start> kStarts[] = {
    {[](const LaunchFacts& f) { return f.few_keys && f.many_waves(); },
     {TileSetup::early, Setmaxnreg::after_loads},
     "lazy and early / so: b64h12l128d64 13.30 / 13.12 (12.85 / 12.64), b48h12l128d64 9.96 / 9.79 (9.42 / 9.23), "
     "b96h12l128d64 20.86 / 20.74 (20.31 / 20.21), b64h12hkv4l128d64 12.9 / 12.76 (11.72 / 11.50), b128h12l128d64 "
     "28.86 "
     "/ 28.72 (26.88 / 26.76), b32h32l128d64 18.73 / 18.90 (18.95 / 18.80)"},
    {[](const LaunchFacts& f) { return f.few_keys; },
     {TileSetup::lazy, Setmaxnreg::early},
     "of fewer waves, so last: b40h12l128d64 8.46 / 8.41 (8.39 / 8.36), b32h12l128d64 6.79 / 6.63"},
    {[](const LaunchFacts& f) {
       const bool short_pairs = f.shares_tail && f.len_k <= kShortKeys;
       const bool short_fours = f.m_warpgroups == 4 && f.len_k <= 512;
       return f.causal && f.one_wave() && f.dim <= 128 && (f.m_warpgroups == 1 || short_pairs || short_fours);
     },
     {TileSetup::early, Setmaxnreg::early},
     "lazy / early: b1h8l1024d128 8.36 / 8.13, b1h16l512d128 5.86 / 5.75, b1h8l2048d64 11.87 / 11.79, b2h4l2048d64 "
     "11.85 "
     "/ 11.76, but b1h4l4096d64 20.64 / 20.81; four consumer warpgroups b4h16l512d64 7.56 / 7.55 (without a trigger "
     "7.48, where lazy gains nothing by that), b2h16l1024d64 11.6 / 11.9. Registers after the loads cost 1 to 3% "
     "(b4h16l512d64 and b1h8l2048d64 causal)"},
    {always,
     {TileSetup::lazy, Setmaxnreg::early},
     "without a mask lazy / early: b1h8l1024d64 6.13 / 6.25, others within 0.5%"},
};

// ------------------------------------------------------------------------------------------------------- lines of the
// L2
//
// Two sets of tensors in turn that do not fit the L2, of 50 MB here, push each other out, unless a part of them makes
// room for the rest.

inline constexpr Row<EvictFirst> kEvictFirsts[] = {
    {[](const LaunchFacts& f) { return f.bytes <= 20e6; }, EvictFirst::none,
     "two launches stay: marks are up to 4% slower of 12.6 MB (b3h16l512d64), up to 1.4% faster of 16.8 MB, but where "
     "other lines fill the L2 at first 3% slower (b4h16l512d64 causal in the arena, 7.6 / 7.8)"},
    {[](const LaunchFacts& f) { return !f.one_wave() && !f.few_keys && f.dim <= 128 && f.bytes <= 68e6; },
     EvictFirst::all_but_first_q_k,
     "persistent CTAs begin sooner where a call before left what they read first. Values and outputs / so: "
     "b1h32l1024d128 29.4 / 28.9 (causal 19.1 / 18.9; of fixed sizes 28.95 / 28.45 and 18.9 / 18.5), b8h16l512d64 "
     "1.021 "
     "times as fast (1.02), b1h8l4096d128 1.010 (1.010), b1h20l1024d128 0.9975 (0.9975); none / so: b12h16l512d64 "
     "1.032 "
     "(1.04), b2h32l1024d128 1.023 (1.024); with few keys 0.9"},
    {[](const LaunchFacts& f) { return f.bytes <= 37e6; }, EvictFirst::v_o,
     "queries and keys of two launches stay. None / values and outputs / all but keys: b1h32l1024d128 30.8 / 29.5 / "
     "30.0 "
     "(causal 20.0 / 18.9 / 19.2), b8h16l512d64 20.45 / 19.1 / 19.7, b4h8l512d256 17.6 / 15.9 / 17.2, b16h16l256d64 "
     "causal 11.8 / 10.1 / 10.6, b4h32hkv8l512d64 18.75 / 18.4 / 18.8. With one set 0.3% longer to 4% shorter"},
    {[](const LaunchFacts& f) { return f.few_keys && f.bytes <= 80e6; }, EvictFirst::q_v_o,
     "keys of two launches stay. Likewise: b48h12l128d64 11.2 / 10.3 / 9.71, b64h12l128d64 14.8 / 14.2 / 13.0 (causal "
     "14.7 "
     "/ 14.0 / 12.6), b96h12l128d64 20.8 / 20.9 / 20.45. Of six sets 2% longer at b64h12l128d64 (causal 4%)"},
    {always, EvictFirst::none,
     "of 40 to 80 MB with more keys values and outputs are 2% slower to 3% faster; of 100 MB (b128h12l128d64) marks "
     "are "
     "up to 4% slower"},
};

// ---------------------------------------------------------------------------------------------------------- the
// epilogue

struct Store {
  EpilogueStore epilogue;  ///< st_b128 where it does not fit
  RowsumReduce rowsum_reduce;
};

inline constexpr Row<Store> kStores[] = {
    {[](const LaunchFacts& f) { return f.one_wave() && f.causal && f.m_warpgroups == 4; },
     {EpilogueStore::smem_b128_preaddressed, RowsumReduce::beside_pv},
     "b4h16l512d64 causal 7.78 preaddressed, 7.89 without, 7.87 st_b128; sums beside PV 1.004 times as fast. Others of "
     "one wave up to 1% longer"},
    {[](const LaunchFacts& f) { return f.one_wave() && !f.causal && f.staggers && f.dim == 128; },
     {EpilogueStore::smem_b128_preaddressed, RowsumReduce::at_end},
     "0.3 to 0.5% less (b1h8l1024d128, b1h16l512d128); at head dim 64 up to 1% longer (6.26 / 6.21 at b1h8l1024d64)"},
    {[](const LaunchFacts& f) { return f.few_keys; },
     {EpilogueStore::tma, RowsumReduce::beside_pv},
     "b64h12l128d64 14.4 by TMA, 14.6 as lines; sums at the end / beside PV 14.1 / 14.0, causal 13.9 / 13.75"},
    {always,
     {EpilogueStore::smem_b128, RowsumReduce::at_end},
     "st_b128 / so: b64h12l128d64 14.6 / 14.2, causal 14.3 / 13.9, b1h32l1024d128 causal 21.0 / 20.5, b4h16l1024d64 "
     "causal "
     "21.0 / 20.5, b64h12l256d64 37.3 / 36.3, b1h8l2048d64 18.0 / 17.8; with a stage less for it equal at "
     "b1h32l1024d128. By TMA up to 2% longer; sums beside PV 0.99 to 1.004"},
};

}  // namespace heed::sm90_persistent
