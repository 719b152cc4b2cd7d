#include "variant/sm90_persistent_default.hpp"

#include <algorithm>

#include "kernels/sm90/persistent/legality.hpp"
#include "variant/registry.hpp"

// Times are of an H200, in microseconds, causal ones in brackets or named.
namespace heed {
namespace {

using namespace sm90_persistent;

// Keys over which a Q tile is done before the loads of the next one arrive, unless they were asked for long before.
constexpr std::int64_t kFewKeys = 128;
// Up to so many keys a launch of one wave takes less than 20 us, of which its start is a good part, and tiles of 64
// keys are the faster ones at head dim 128.
constexpr std::int64_t kShortKeys = 2048;
// The fewest keys that were measured in two blocks of four consumer warpgroups, and up to how many a branch that frees
// a stage is 1 to 2.5% faster there than a condition (b4h8l512d64, b1h16l1024d64); with 2048 it is 0.2% slower.
constexpr std::int64_t kSplitKeysFrom = 512;
constexpr std::int64_t kFreedInBranches = 1024;
// Up to so many keys a loop of two tiles with two stages, whose stage the compiler knows in every iteration, is faster
// than one with four: 1.007 times at b1h8l1024d64, 1.02 at b1h16l512d64; with 2048 (b1h4l2048d64) they are equal. Where
// inputs come from memory it is slower: 7.15 us instead of 6.7.
constexpr std::int64_t kTwoStages = 1024;
// Up to so many waves a last one that leaves multiprocessors idle is a good part of a launch.
constexpr std::int64_t kFewWaves = 4;
// Up to so many keys Q tiles of a causal launch come head by head at head dims from 128 on, and up to so many waves
// of them by their index.
constexpr std::int64_t kFewHeadKeys = 512;
constexpr std::int64_t kWavesByIndex = 8;
// Bytes of queries, keys, values and outputs up to which those of two launches stay in an L2 of 50 MB, queries and keys
// alone do, and keys alone; and those of the largest that were measured with what blocks begin with.
constexpr double kAllStays = 20e6;
constexpr double kQueriesAndKeysStay = 37e6;
constexpr double kKeysStay = 80e6;
constexpr double kFirstKeysStay = 68e6;
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
  Rule(const Workload& workload, std::int64_t num_sms, const std::function<bool(const Config&)>& is_legal)
      : w_(workload),
        num_sms_(num_sms),
        is_legal_(is_legal),
        dim_(padded_dim(static_cast<int>(workload.dim))),
        causal_(workload.is_causal()),
        short_(workload.len_k <= kShortKeys),
        few_keys_(has_few_keys(workload, num_sms)) {}

  Config run() {
    c_.producer = Producer::warpgroup;
    if (few_keys_) {
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
    c_.evict_first = what_leaves_first();
    begin_ahead();
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

  // Exponentials take as long as products, so that consumer warpgroups which take turns keep both busy: four of them.
  void use_four_warpgroups() {
    c_.m_warpgroups = choose_warpgroups(w_, num_sms_, 4);
    c_.kv_groups = c_.m_warpgroups <= 2 && w_.len_k > c_.block_n ? 2 : 1;
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
    if (c_.m_warpgroups == 2) c_.block_n = short_ ? 64 : 96;
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

  // What a launch does in front of its first products, beside the loads that they wait for. One wave under a mask,
  // shares when due / ahead: b1h8l1024d128 8.36 / 8.13, b1h16l512d128 5.86 / 5.75, b1h8l2048d64 11.87 / 11.79,
  // b2h4l2048d64 11.85 / 11.76, but b1h4l4096d64 20.64 / 20.81, and with four consumer warpgroups b4h16l512d64 7.56
  // / 7.55 (without a trigger 7.48, where when due gains nothing by that), b2h16l1024d64 11.6 / 11.9; without a mask
  // b1h8l1024d64 6.13 / 6.25, others within 0.5%. Small blocks of many waves, when due and registers at once / ahead
  // and after the loads: b64h12l128d64 13.30 / 13.12 (12.85 / 12.64), b48h12l128d64 9.96 / 9.79 (9.42 / 9.23),
  // b96h12l128d64 20.86 / 20.74 (20.31 / 20.21), b64h12hkv4l128d64 12.9 / 12.76 (11.72 / 11.50), b128h12l128d64 28.86
  // / 28.72 (26.88 / 26.76), b32h32l128d64 18.73 / 18.90 (18.95 / 18.80); of fewer waves b40h12l128d64 8.41 / 8.46
  // (8.36 / 8.39), b32h12l128d64 6.63 / 6.79; elsewhere registers after the loads cost 1 to 3% (b4h16l512d64 and
  // b1h8l2048d64 causal).
  void begin_ahead() {
    const bool short_pairs = c_.share_causal_tail == ShareCausalTail::on && short_;
    const bool short_fours = c_.m_warpgroups == 4 && w_.len_k <= 512;
    const bool ahead = causal_ && one_wave_ && dim_ <= 128 && (c_.m_warpgroups == 1 || short_pairs || short_fours);
    if (few_keys_ ? many_small_ : ahead) c_.tile_setup = TileSetup::early;
    if (few_keys_ && many_small_) c_.setmaxnreg = Setmaxnreg::after_loads;
  }

  // Two sets of tensors in turn that do not fit the L2 push each other out, unless a part of them makes room for the
  // rest. Nothing marked / values and outputs / all but keys: b1h32l1024d128 30.8 / 29.5 / 30.0 (causal 20.0 / 18.9 /
  // 19.2), b8h16l512d64 20.45 / 19.1 / 19.7, b4h8l512d256 17.6 / 15.9 / 17.2, b16h16l256d64 causal 11.8 / 10.1 / 10.6,
  // b4h32hkv8l512d64 18.75 / 18.4 / 18.8; b48h12l128d64 11.2 / 10.3 / 9.71, b64h12l128d64 14.8 / 14.2 / 13.0 (causal
  // 14.7 / 14.0 / 12.6), b96h12l128d64 20.8 / 20.9 / 20.45. Blocks that stay begin sooner where a call before left what
  // they read first, which takes little room. Values and outputs / all but queries and keys of first Q tiles:
  // b1h32l1024d128 29.4 / 28.9 (causal 19.1 / 18.9; programs of fixed sizes 28.95 / 28.45 and 18.9 / 18.5),
  // b8h16l512d64 1.021 times as fast (1.02), b1h8l4096d128 1.010 (1.010), b1h20l1024d128 0.9975 (0.9975); nothing
  // marked / so: b12h16l512d64 1.032 (1.04), b2h32l1024d128 1.023 (1.024); with few keys 0.9. Of 12.6 MB (b3h16l512d64)
  // or 100 (b128h12l128d64) marks are up to 4% slower, of 40 to 80 MB with more keys values and outputs 2% slower to 3%
  // faster; of 16.8 MB up to 1.4% faster, but where other lines fill the L2 at first 3% slower (b4h16l512d64 causal in
  // the arena, 7.6 / 7.8). With one set values and outputs take 0.3% longer to 4% shorter. Where a launch finds nothing
  // of one before (six sets) they take 2% longer to 3% shorter, all but keys 2% longer at b64h12l128d64 (causal 4%).
  EvictFirst what_leaves_first() const {
    const double bytes = w_.bytes();
    if (bytes <= kAllStays) return EvictFirst::none;
    if (!one_wave_ && !few_keys_ && dim_ <= 128 && bytes <= kFirstKeysStay) return EvictFirst::all_but_first_q_k;
    if (bytes <= kQueriesAndKeysStay) return EvictFirst::v_o;
    return few_keys_ && bytes <= kKeysStay ? EvictFirst::q_v_o : EvictFirst::none;
  }

  // Where blocks are more than one wave they stay, and load the next Q tile's queries and keys beside the last
  // products of this.
  void count_waves() {
    const std::int64_t blocks = num_sms_ * c_.min_blocks;
    const std::int64_t tiles = q_tiles_of_launch(c_.m_warpgroups, w_);
    one_wave_ = tiles <= blocks;
    two_waves_ = !one_wave_ && tiles <= 2 * blocks;
    many_small_ = 2 * tiles > 5 * blocks;
    if (one_wave_) {
      // It is as long as its longest block: rows from both ends of a head make blocks equal.
      if (causal_) c_.tile_order = TileOrder::paired;
      return;
    }
    // Under a causal mask Q tiles differ. Of two whole waves the second goes backwards, so that every block has as
    // much of both; with rows from both ends of a head in each Q tile / like this: b1h32l1024d128 21.1 / 19.1,
    // b1h8l4096d128 76.5 / 57.8, b1h8l4096d256 153 / 107, b4h16l1024d64 23.7 / 21.5. Of others the longest come first
    // and blocks take them as they finish. Backwards / so: 1.2 to 1.6 waves b1h20l1024d128 15.9 / 14.3, b1h26l1024d128
    // 17.0 / 15.6, b3h16l1024d64 20.1 / 17.9, b2h5l2048d256 50.5 / 47.3; 1.7 waves b1h28l1024d128 16.7 / 17.0; many
    // b1h48l2048d128 98.3 / 96.5, b3h8l2048d256 111 / 103. Where all are short that costs more than it evens out.
    const bool two_whole = two_waves_ && 5 * tiles > 8 * blocks;
    const bool uneven = causal_ && !few_keys_ && !two_whole;
    // Rows of few keys share those in the L2 when they come head by head, from 128 columns on. The longest of all heads
    // first / by the counter / by index with even waves: b8h16l512d128 28.8 / 29.8 / 26.4, b16h16l512d128 55.0 / 54.0 /
    // 51.7, b32h16l512d128 104.8 / 102.7 / 104.6, b48h16l256d128 61.1 / 57.1 / 59.5, b16h8l512d256 52.5 / 54.6 / 50.4,
    // b24h8l512d256 75.3 / 73.4 / 73.7; at head dim 64 b32h32l512d64 105.3 / 106.9 / 108.8.
    if (uneven && !two_waves_ && dim_ >= 128 && w_.len_k <= kFewHeadKeys) {
      const bool few = tiles <= kWavesByIndex * blocks;
      c_.scheduler = few ? Scheduler::static_persistent : Scheduler::dynamic_persistent;
      if (few) c_.grid = Grid::balanced;
      if (dim_ <= 128) c_.q_stages = 2;
      return;
    }
    // Q tiles without a mask are all the same, and four consumer warpgroups are faster with the counter all the same;
    // by index / by counter: b32h32l512d64 149.8 / 146.4, b16h32l1024d64 264.9 / 261.7, b64h12l256d64 36.1 / 35.4,
    // b4h32l4096d64 960.0 / 955.6, two waves (b4h16l1024d64) 34.8 / 35.1; with two consumer warpgroups b8h16l2048d128
    // 446.0 / 448.7.
    const bool many_at_64 = !causal_ && dim_ == 64 && !few_keys_ && !two_waves_;
    c_.scheduler = uneven || many_at_64 ? Scheduler::dynamic_persistent : Scheduler::static_persistent;
    if (uneven) c_.tile_order = TileOrder::lpt_l2;
    if (c_.scheduler == Scheduler::static_persistent) choose_waves(tiles, blocks);
    if (dim_ <= 128) c_.q_stages = 2;
  }

  // Filled / even: b1h32l1024d128 31.4 / 31.2, causal 19.27 / 19.05, b1h20l1024d128 25.1 / 24.4, causal 16.4 / 16.0,
  // b1h8l4096d128 causal 52.3 / 50.9, b2h32l1024d128 64.2 / 63.1; of six waves 166.3 / 167.1 (b3h16l2048d128), of 16
  // equal to 0.5%. Four consumer warpgroups of head dim 64 in two waves 34.8 / 35.0 (b4h16l1024d64). Where few keys
  // make a launch one of loads it wants nearly all places: b64h12l128d64 causal with 384 of 396 14.01 / 13.90, full
  // equal, b24h12l128d64 causal with 288 6.26 / 6.68.
  void choose_waves(std::int64_t tiles, std::int64_t places) {
    const bool nearly_all = 20 * attention::persistent_ctas(true, tiles, places) >= 19 * places;
    if (few_keys_ ? nearly_all : dim_ == 128 && tiles <= kFewWaves * places) c_.grid = Grid::balanced;
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
        if (w_.dtype != Dtype::fp16) c_.barrier_wait = BarrierWait::at_use;
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

  void store_rows() {
    // In pieces / as lines: b64h12l128d64 14.6 / 14.2, causal 14.3 / 13.9, b1h32l1024d128 causal 21.0 / 20.5,
    // b4h16l1024d64 causal 21.0 / 20.5, b64h12l256d64 37.3 / 36.3, b1h8l2048d64 18.0 / 17.8; with a stage less for it
    // equal at b1h32l1024d128. Aimed at the start b4h16l512d64 causal takes 7.78 instead of 7.89 (7.87 in pieces), the
    // others of one wave up to 1% longer; where KV groups start in turn, at head dim 128 0.3 to 0.5% less
    // (b1h8l1024d128, b1h16l512d128) and at 64 up to 1% longer (6.26 / 6.21 at b1h8l1024d64).
    const bool in_turn = c_.stagger_splits == StaggerSplits::on;
    const bool aimed = one_wave_ && (causal_ ? c_.m_warpgroups == 4 : in_turn && dim_ == 128);
    // As boxes b64h12l128d64 takes 14.4, as lines 14.6; others up to 2% longer.
    c_.epilogue = aimed       ? EpilogueStore::smem_b128_preaddressed
                  : few_keys_ ? EpilogueStore::tma
                              : EpilogueStore::smem_b128;
    if (!is_legal_(c_)) c_.epilogue = EpilogueStore::st_b128;
    // Sums at the end / beside values: b64h12l128d64 14.1 / 14.0, causal 13.9 / 13.75; b4h16l512d64 causal 1.004 times
    // as fast, elsewhere 0.99 to 1.004.
    if (few_keys_ || (aimed && causal_)) c_.rowsum_reduce = RowsumReduce::beside_pv;
  }

  const Workload& w_;
  std::int64_t num_sms_;
  const std::function<bool(const Config&)>& is_legal_;
  int dim_;  // padded
  bool causal_;
  bool short_;
  bool few_keys_;
  Config c_;
  int most_stages_ = kMostStages;
  bool one_wave_ = false;
  bool two_waves_ = false;
  bool many_small_ = false;  // more than two and a half waves
};

}  // namespace

std::int64_t q_tiles_of_launch(int m_warpgroups, const Workload& workload) {
  return attention::q_tiles_of_head(workload.len_q, m_warpgroups * kWarpgroupRows) * workload.heads * workload.batch;
}

sm90_persistent::Config sm90_persistent_default(const Workload& workload, std::int64_t num_sms,
                                                const std::function<bool(const sm90_persistent::Config&)>& is_legal) {
  if (splits_q_tiles(workload, num_sms)) return kSplitQTiles;
  if (splits_keys(workload, num_sms)) {
    Config c = kSplitKv;
    if (workload.len_k > kFreedInBranches) c.stage_release = StageRelease::predicated;
    return c;
  }
  return Rule(workload, num_sms, is_legal).run();
}

}  // namespace heed
