#include "variant/sm90_persistent_default.hpp"

#include <algorithm>

#include "kernels/sm90/persistent/legality.hpp"
#include "variant/registry.hpp"
#include "variant/sm90_persistent_rules.hpp"

// Times are of an H200, in microseconds, causal ones in brackets or named.
namespace heed {
namespace {

using namespace sm90_persistent;

// Keys over which a Q tile is done before the loads of the next one arrive, unless they were asked for long before.
constexpr std::int64_t kFewKeys = 128;
// The fewest keys that were measured in two blocks of four consumer warpgroups, and up to how many a branch that frees
// a stage is 1 to 2.5% faster there than a condition (b4h8l512d64, b1h16l1024d64); with 2048 it is 0.2% slower.
constexpr std::int64_t kSplitKeysFrom = 512;
constexpr std::int64_t kFreedInBranches = 1024;
// Up to so many keys a loop of two tiles with two stages, whose stage the compiler knows in every iteration, is faster
// than one with four: 1.007 times at b1h8l1024d64, 1.02 at b1h16l512d64; with 2048 (b1h4l2048d64) they are equal. Where
// inputs come from memory it is slower: 7.15 us instead of 6.7.
constexpr std::int64_t kTwoStages = 1024;
// More stages than this hide nothing further.
constexpr int kMostStages = 8;

// The fewest consumer warpgroups whose blocks all run at once, so that every processor has one; where there are more
// rows than that, the most that leave the fewest without rows at the end of a head.
int choose_warpgroups(const Workload& w, std::int64_t num_sms, int most) {
  most = static_cast<int>(std::min<std::int64_t>(most, (w.len_q + kWarpgroupRows - 1) / kWarpgroupRows));
  for (int groups = 1; groups <= most; ++groups)
    if (q_tiles_of_launch(groups, w) <= num_sms) return groups;
  int best = most;
  for (int groups = most - 1; groups > most / 2; --groups)
    if (groups * q_tiles_of_launch(groups, w) < best * q_tiles_of_launch(best, w)) best = groups;
  return best;
}

// Where two consumer warpgroups with two KV groups each, which take turns two by two, would be one wave, and this is
// one, too: those / this: b1h8l2048d64 17.4 / 17.0, b1h16l1024d64 10.0 / 9.76, b4h8l512d64 6.55 / 6.36,
// b1h6l2048d64 15.8 / 15.5, b1h8l1920k4096d64 31.6 / 30.7, b2h8l1000k1500d64 13.5 / 13.4.
bool splits_keys(const Workload& w, std::int64_t num_sms) {
  return !w.is_causal() && padded_dim(static_cast<int>(w.dim)) == 64 && w.len_k >= kSplitKeysFrom &&
         choose_warpgroups(w, num_sms, 4) == 2 &&
         kSplitKv.cluster * q_tiles_of_launch(kSplitKv.m_warpgroups, w) <= num_sms;
}

// Q tiles of one or two KV tiles: starting and ending them is most of the work, which other blocks hide. With twice
// as many keys only where a head has no rows for more consumer warpgroups: four take 37.6 at b64h12l256d64, small
// blocks 42.5.
bool has_few_keys(const Workload& w, std::int64_t num_sms) {
  const bool few_rows = w.len_q <= 2 * kWarpgroupRows;
  return padded_dim(static_cast<int>(w.dim)) == 64 && w.len_k <= (few_rows ? 2 * kFewKeys : kFewKeys) &&
         q_tiles_of_launch(1, w) > num_sms;
}

// What follows from the workload and from what has been decided so far.
class Rule {
 public:
  Rule(const Workload& workload, std::int64_t num_sms, const std::function<bool(const Config&)>& is_legal,
       RuleTrace* trace)
      : w_(workload),
        num_sms_(num_sms),
        is_legal_(is_legal),
        trace_(trace),
        dim_(padded_dim(static_cast<int>(workload.dim))),
        causal_(workload.is_causal()),
        short_(workload.len_k <= kShortKeys),
        few_keys_(has_few_keys(workload, num_sms)),
        biased_(workload.bias.has_value()) {}

  Config run() {
    c_.producer = Producer::warpgroup;
    if (w_.blocks) {
      use_lists_of_blocks();
      count_waves();
      // Virtual CTAs are of CTAs that stay.
      if (c_.virtual_ctas > 1 && one_wave_) c_.scheduler = Scheduler::static_persistent;
      if (!one_wave_ && !w_.has_lengths()) {
        c_.scheduler = Scheduler::stream_k;
        c_.grid = Grid::full;
        c_.tile_order = TileOrder::row_major;
      }
    } else if (few_keys_) {
      use_small_blocks();
      count_waves();
    } else if (dim_ == 64) {
      use_four_warpgroups();
      count_waves();
      order_at_64();
    } else if (dim_ == 128) {
      use_own_products();
      count_waves();
      order_at_128();
    } else {
      c_.m_warpgroups = choose_warpgroups(w_, num_sms_, 2);
      if (dim_ == 192) c_.softmax_overlap = SoftmaxOverlap::qk_pv;
      count_waves();
      // Two consumer warpgroups that wait for both of their products fall into step. b4h8l2048d256: 248; in order 200,
      // and 196 in alternating order.
      if (dim_ > 192 && c_.m_warpgroups > 1) {
        c_.pingpong = Pingpong::on;
        c_.gemm_order = GemmOrder::interleaved;
      }
    }
    facts_ = facts();
    c_.evict_first = choose(kEvictFirst, kEvictFirsts, facts_, trace_);
    const Start start = choose(kStart, kStarts, facts_, trace_);
    c_.tile_setup = start.tile_setup;
    c_.setmaxnreg = start.setmaxnreg;
    if (w_.has_features()) fit_registers();
    c_.stages = most_stages_;
    while (c_.stages > 1 && !is_legal_(c_)) --c_.stages;
    store_rows();
    return c_;
  }

 private:
  void use_small_blocks() {
    c_.m_warpgroups = 1;
    c_.row_max = RowMax::stale_16;
    if (w_.len_k <= kFewKeys) {
      // b64h12l128d64 (causal): two blocks and tiles of 128 keys 14.1 (15.8); 13.3 (12.4) like this; and in alternating
      // order 12.9 (12.3).
      c_.block_n = 64;
      c_.min_blocks = 3;
      c_.gemm_order = GemmOrder::interleaved;
      most_stages_ = 2;
    } else {
      c_.block_n = 128;
      c_.min_blocks = 2;
    }
  }

  // A Q tile has the rows that a list is for: with 64 of them other CTAs of the multiprocessor have products meanwhile,
  // as many as registers and shared memory leave room for. Each reads its keys from the L2 for itself, whose rate is
  // the limit there: 400 TFLOP/s at head dim 128 are 6 TB/s. b1h8l16384d128 at a density of 0.25, us: 64 rows 651, 128
  // rows 619, exponentials beside values 577, beside both products 539. With lists as long as all keys, those of global
  // rows (window4+global1): a CTA for each Q tile 425, Stream-K 256, and beside both products 213. Where no list is
  // long Stream-K draws whole Q tiles: at the stride of the grid / drawn from the counter, on an H200, 545 / 512 at a
  // density of 0.25, 247 / 227 at 0.1, and at head dim 64 351 / 337 at 0.25.
  void use_lists_of_blocks() {
    c_.m_warpgroups = static_cast<int>(std::min(w_.blocks->rows, w_.len_q + kWarpgroupRows - 1) / kWarpgroupRows);
    c_.block_n = kLeastBlock;
    most_stages_ = 4;
    if (c_.m_warpgroups > 1 && dim_ == 64) {
      c_.virtual_ctas = 2;  // four consumer warpgroups keep products and exponentials busy
      return;
    }
    c_.min_blocks = c_.m_warpgroups > 1 ? 1 : dim_ == 64 ? 3 : dim_ == 128 ? 2 : 1;
    c_.producer = Producer::warp;  // one consumer warpgroup leaves it the registers that reading lists takes
    if (c_.m_warpgroups > 1 && dim_ == 128) {
      c_.softmax_overlap = SoftmaxOverlap::qk_pv;
      c_.gemm_order = GemmOrder::interleaved;
    }
  }

  // Exponentials take as long as products, so that consumer warpgroups which take turns keep both busy: four of them.
  void use_four_warpgroups() {
    c_.m_warpgroups = choose_warpgroups(w_, num_sms_, biased_ ? 3 : 4);
    // Three hide more of the time that biases take, rows that there are not counted: b8h16l1024d64 with a bf16 bias
    // takes 160 us on an H200 with two, 132 with three, an eighth of whose rows there are not.
    if (biased_ && c_.m_warpgroups == 2 && q_tiles_of_launch(2, w_) > num_sms_ &&
        4 * 3 * q_tiles_of_launch(3, w_) <= 5 * 2 * q_tiles_of_launch(2, w_))
      c_.m_warpgroups = 3;
    c_.kv_groups = c_.m_warpgroups <= (biased_ ? 1 : 2) && w_.len_k > c_.block_n ? 2 : 1;
    if (c_.m_warpgroups == 1 && c_.kv_groups == 2) {
      // As evolved at b1h8l1024d64: 7.13; 7.41 with a producer warpgroup and values first.
      c_.softmax_overlap = SoftmaxOverlap::qk_pv;
      c_.gemm_order = GemmOrder::interleaved;
      // Blocks that stay merge KV groups beside their loop, for which a producer warp leaves too few registers.
      if (q_tiles_of_launch(1, w_) <= num_sms_) c_.producer = Producer::warp;
      start_in_turn();
      if (!causal_) {
        c_.overflow_check = OverflowCheck::deferred;    // 6.84, 6.99 at once
        c_.barrier_wait = BarrierWait::try_wait_early;  // 1.01 times as fast
      }
    }
  }

  // Registers are for two consumer warpgroups. Products take twice as long as exponentials, which hide behind the
  // group's own.
  void use_own_products() {
    c_.m_warpgroups = choose_warpgroups(w_, num_sms_, 2);
    c_.kv_groups = c_.m_warpgroups == 1 && w_.len_k > c_.block_n ? 2 : 1;
    // b1h32l1024d128: 32.9 with tiles of 64 keys, 34.6 with 96. Long rows want the larger.
    if (c_.m_warpgroups == 2) c_.block_n = short_ || biased_ ? 64 : 96;
    c_.softmax_overlap = SoftmaxOverlap::qk_pv;
    c_.gemm_order = causal_ ? GemmOrder::qk_first : GemmOrder::interleaved;
    start_in_turn();
  }

  // Two KV groups that begin together stay in step, and each tensor core idles while both exponentiate. Together / in
  // iteration: b1h8l1024d64 6.29 / 6.15 (both as is best for each), b1h16l512d64 4.41 / 4.33, b1h8l1000k900d64 6.07
  // / 5.89, b1h4l2048d64 10.09 / 9.93, b1h8l1024k4096d64 18.15 / 18.10, b1h8l1024d128 8.82 / 8.66, b1h16l512d128 6.09
  // / 5.97. Under a mask it is not measured.
  void start_in_turn() {
    if (!causal_ && c_.kv_groups == 2 && q_tiles_of_launch(c_.m_warpgroups, w_) <= num_sms_)
      c_.stagger_splits = StaggerSplits::on;
  }

  // Where CTAs are more than one wave they are persistent, and load the next Q tile's queries and keys beside the last
  // products of this.
  void count_waves() {
    const LaunchFacts f = facts();
    one_wave_ = f.one_wave();
    two_waves_ = f.two_waves();
    if (one_wave_) {
      // It is as long as its longest block: rows from both ends of a head make blocks equal.
      if (causal_) c_.tile_order = TileOrder::paired;
      return;
    }
    const Schedule schedule = choose(kSchedule, kSchedules, f, trace_);
    c_.scheduler = schedule.scheduler;
    c_.grid = schedule.grid;
    c_.tile_order = schedule.tile_order;
    if (w_.ragged) {
      const bool is_of_short_entries = w_.len_k <= 512;
      // Most Q tiles may lie behind the end of their entry: passed over by their index each costs no atomic, and the
      // longest first no CTA has those of the same row of every head. On an H200, by index / by the counter / by the
      // counter head by head: b8h16l2048d64 causal 156 / 139 / 153, b16h16l8192d64 causal 358 / 325 / 373, without a
      // mask 605 / 601 / 629; b8h32hkv8l2048d128 860 / 889 / 860, causal 477 / 499 / 498, b16h32hkv8l8192d128 2058 /
      // 2160 / 2133; short entries b128h16l512d64 63.5 / 62.0 / 58.7, causal 58.5 / 56.8 / 53.3, b128h32hkv8l512d128
      // 171 / 184 / 171, causal 161 / 163 / 152.
      c_.scheduler = is_of_short_entries || dim_ == 64 ? Scheduler::dynamic_persistent : Scheduler::static_persistent;
      c_.grid = Grid::full;
      c_.tile_order = is_of_short_entries ? TileOrder::row_major : TileOrder::lpt_l2;
    }
    if (dim_ <= 128) c_.q_stages = 2;
  }

  void order_at_64() {
    // Two consumer warpgroups and two KV groups meet in no order, in which scores first is 1.024 times as fast as
    // values first at b1h8l2048d64, alternating 1.014 times. Where the way from exponentials to the next products is
    // short, row groups overlap more; where it is the same for all of them, they may fall into step and overlap
    // less: 17.4 in order, 17.8 without.
    const bool in_no_order = !causal_ && c_.m_warpgroups == 2 && c_.kv_groups == 2;
    if (in_no_order) {
      c_.gemm_order = GemmOrder::qk_first;
      c_.pingpong = Pingpong::on;
    }
    // With four consumer warpgroups alternating products are 1.006 times as fast as values first where rows leave as
    // lines (b4h16l512d64).
    if (!causal_ && one_wave_ && c_.m_warpgroups == 4) c_.gemm_order = GemmOrder::interleaved;
    if (!causal_ && !one_wave_) c_.gemm_order = GemmOrder::qk_first;
    if (!in_no_order && (causal_ || one_wave_)) c_.row_max = RowMax::stale_16;
    // Blocks that stay merge KV groups beside their loop, and have no registers for exponentials beside values.
    const bool fits_twice = two_waves_ && c_.kv_groups == 1;
    const bool alone = causal_ && c_.softmax_overlap == SoftmaxOverlap::none && (one_wave_ || fits_twice);
    if (alone) {
      c_.gemm_order = GemmOrder::qk_first;
      // And where there is time to hand results over, those with few keys help: b1h8l2048d64 12.5 / 12.3, b2h8l2048d64
      // 20.3 / 18.9, b1h8l4096d64 37.2 / 32.7; b4h16l512d64 7.8 / 8.7, b2h16l1024d64 11.8 / 12.0.
      if (one_wave_ && w_.len_k >= kShortKeys) c_.share_causal_tail = ShareCausalTail::on;
      if (c_.share_causal_tail == ShareCausalTail::on && c_.kv_groups == 2) {
        // Beside values / beside nothing like this: b1h8l2048d64 11.76 / 11.64, b1h4l4096d64 20.75 / 20.4, b2h4l2048d64
        // 11.74 / 11.63; with four consumer warpgroups 19.5 / 20.0 (b2h8l2048d64).
        c_.stage_release = StageRelease::predicated;
        c_.barrier_wait = BarrierWait::try_wait_early;
      } else {
        // Where few consumer warpgroups are busy at a time, each has to hide its own exponentials. Beside nothing /
        // beside values: b4h16l512d64 7.82 / 7.72, b4h16l1024d64 21.5 / 20.8.
        c_.softmax_overlap = SoftmaxOverlap::pv;
      }
    } else {
      const bool two_halves = causal_ && c_.kv_groups == 2;
      // As evolved at b4h16l512d64, whose rows leave as lines: branches are 1.004 times as fast.
      const bool four_alone = one_wave_ && !causal_ && c_.m_warpgroups == 4;
      if (one_wave_ ? !two_halves && !four_alone : !causal_) c_.stage_release = StageRelease::predicated;
      if (causal_ && !two_halves) c_.barrier_wait = BarrierWait::try_wait_early;
    }
    // Copies that nobody waits for yet come between those that everybody waits for at the start. With as many stages as
    // fit / 3: b1h8l1024d64 6.77 / 6.72, b4h16l512d64 9.99 / 9.94; with 3 / 4: b1h8l1024d64 6.60 / 6.56, b4h16l512d64
    // causal 7.81 / 7.72.
    if (one_wave_ && short_) most_stages_ = alone || c_.m_warpgroups == 1 ? 4 : 3;
    if (!causal_ && one_wave_) {
      // As measured among all orders: b1h8l1024d64 with four stages 1.004 times as fast, b1h8l2048d64 1.006,
      // b4h16l512d64 1.003.
      if (c_.softmax_overlap == SoftmaxOverlap::qk_pv && w_.len_k <= kTwoStages) {
        most_stages_ = 2;
        // Ahead / at use: b1h8l1024d64 6.15 / 6.21, b1h16l512d64 4.33 / 4.35, b1h12l640d64 4.75 / 4.80; of bf16, which
        // sums what it has rounded, 6.53 / 6.45.
        if (w_.dtype == Dtype::bf16) c_.barrier_wait = BarrierWait::at_use;
        c_.convert_placement = ConvertPlacement::at_end;
      } else if (c_.softmax_overlap == SoftmaxOverlap::qk_pv) {
        c_.scale_placement = ScalePlacement::step_ahead;
        c_.convert_placement = ConvertPlacement::at_end;
        c_.rowsum_placement = RowsumPlacement::step_later;
      } else if (c_.m_warpgroups == 4) {
        c_.scale_placement = ScalePlacement::step_ahead;
      } else if (in_no_order) {
        c_.convert_placement = ConvertPlacement::step_later;
      }
    }
  }

  void order_at_128() {
    if (causal_ && two_waves_) {
      // b1h8l4096d128: 56.0 in order, 54.2 with tiles of 64 keys as well; 18.5 instead of 19.1 at b1h32l1024d128.
      c_.pingpong = Pingpong::on;
      c_.block_n = 64;
      if (short_) {
        c_.row_max = RowMax::stale_16;
        c_.barrier_wait = BarrierWait::try_wait_early;
        most_stages_ = 3;  // 1.01 times as fast as with 5
      }
    }
    if (causal_ || !short_) c_.stage_release = StageRelease::predicated;
    if (!causal_ && short_ && !one_wave_) {
      // At use / like this: b1h32l1024d128 32.1 / 31.0 (with a stage less, which leaves room for rows on their way out,
      // and rows as lines 30.5, with references of the first keys as well 30.3), b16h16l1024d128 245.3 / 235.5.
      c_.scale_placement = ScalePlacement::tile_ahead;
      if (two_waves_) {
        c_.row_max = RowMax::stale_16;
        most_stages_ = 4;
      }
    }
  }

  // Features take registers that choices made without them leave none for: what matters least gives way first.
  void fit_registers() {
    const auto fits = [&] {
      Config c = c_;
      c.stages = 2;
      c.epilogue = EpilogueStore::st_b128;
      return is_legal_(c);
    };
    if (fits()) return;
    c_.barrier_wait = BarrierWait::at_use;
    c_.scale_placement = ScalePlacement::at_use;
    c_.convert_placement = ConvertPlacement::at_once;
    c_.rowsum_placement = RowsumPlacement::at_once;
    if (!fits()) c_.producer = Producer::warpgroup;
    if (!fits() && c_.softmax_overlap == SoftmaxOverlap::pv) c_.softmax_overlap = SoftmaxOverlap::none;
    if (!fits() && c_.block_n > 64) c_.block_n = 64;
    if (!fits() && c_.m_warpgroups > 1) c_.kv_groups = 1;
    if (!fits()) c_.softmax_overlap = SoftmaxOverlap::none;
    while (!fits() && c_.block_n > 32) c_.block_n -= kMmaK;
  }

  void store_rows() {
    const Store store = choose(kStore, kStores, facts_, trace_);
    c_.epilogue = store.epilogue;
    if (!is_legal_(c_)) c_.epilogue = EpilogueStore::st_b128;
    c_.rowsum_reduce = store.rowsum_reduce;
  }

  // Of what has been decided so far.
  [[nodiscard]] LaunchFacts facts() const {
    return {.dim = dim_,
            .len_k = w_.len_k,
            .bytes = w_.bytes(),
            .causal = causal_,
            .few_keys = few_keys_,
            .m_warpgroups = c_.m_warpgroups,
            .shares_tail = c_.share_causal_tail == ShareCausalTail::on,
            .staggers = c_.stagger_splits == StaggerSplits::on,
            .q_tiles = q_tiles_of_launch(c_.m_warpgroups, w_),
            .ctas = num_sms_ * c_.min_blocks * c_.virtual_ctas};
  }

  const Workload& w_;
  std::int64_t num_sms_;
  const std::function<bool(const Config&)>& is_legal_;
  RuleTrace* trace_;
  int dim_;  // padded
  bool causal_;
  bool short_;
  bool few_keys_;
  bool biased_;
  Config c_;
  int most_stages_ = kMostStages;
  bool one_wave_ = false;
  bool two_waves_ = false;
  LaunchFacts facts_;
};

}  // namespace

std::int64_t q_tiles_of_launch(int m_warpgroups, const Workload& workload) {
  return attention::q_tiles_of_head(workload.len_q, m_warpgroups * kWarpgroupRows) * workload.heads * workload.batch;
}

sm90_persistent::Config sm90_persistent_default(const Workload& workload, std::int64_t num_sms,
                                                const std::function<bool(const sm90_persistent::Config&)>& is_legal,
                                                RuleTrace* trace) {
  // Clusters are not for entries with lengths of their own.
  const bool has_clusters = !workload.has_lengths();
  if (has_clusters && splits_q_tiles(workload, num_sms) && is_legal(kSplitQTiles)) return kSplitQTiles;
  if (has_clusters && splits_keys(workload, num_sms) && is_legal(kSplitKv)) {
    Config c = kSplitKv;
    if (workload.len_k > kFreedInBranches) c.stage_release = StageRelease::predicated;
    return c;
  }
  return Rule(workload, num_sms, is_legal, trace).run();
}

}  // namespace heed
