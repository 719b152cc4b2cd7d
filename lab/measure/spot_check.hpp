/// Blocks that are stopped where no candidate can know, and what must hold of their memory then.
///
/// A spot check begins as a timed block does and stops after a random number of replays and a random prefix of the
/// next. Inputs and guards must be as they were, every output that was written must be right: as the oracle says in
/// sampled rows, and as another slot's outputs of the same launches are in all rows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "measure/timed_sets.hpp"
#include "verify/compare.hpp"
#include "worker/worker.hpp"

namespace heed::measure {

/// What a spot check multiplies K by besides the random signs of every replay.
enum class KeyScale {
  ones,      ///< as where times are read
  outliers,  ///< one channel in 16 by 32
  large,     ///< all by the power of two with which scores reach about +-60 before the softmax, or +-160
  /// Of a CPU: about two keys of each head by the power of two with which their scores reach some 200, which a sample
  /// of keys does not show
  loud_keys,
};

/// One place to stop at, for one slot or several.
class SpotCheck {
 public:
  /// What is not drawn from the seed.
  struct Choice {
    std::optional<KeyScale> kind = {};  ///< none: drawn from those of every device, half of them ones
    bool is_whole = false;              ///< stops behind the last launch, so that none can be left out at the end
    int pauses = 0;                     ///< how often the last replay is stopped and goes on; on a CPU alone
  };
  /// @param sets must outlive it
  SpotCheck(TimedSets& sets, std::uint64_t seed, const Choice& choice);
  SpotCheck(TimedSets& sets, std::uint64_t seed) : SpotCheck(sets, seed, Choice()) {}
  /// After whole passes over the launch list, with K as it is now: the outputs of eager launches. For `fetch`.
  static SpotCheck of_whole_passes(TimedSets& sets, std::uint64_t seed);

  /// What a slot left.
  struct Image {
    worker::Stopped stopped;
    /// The sets looked at, one after the other; where `memory` is known the outputs looked at. Empty: they are still in
    /// the arena.
    std::vector<std::byte> kept;
    /// What was found of everything but outputs. A CPU launches in the arena itself: there it is compared in place, at
    /// once, and only outputs need to be kept.
    std::optional<verify::Comparison> memory;
  };
  /// Bytes that an image keeps, of all sets or outputs.
  static std::uint64_t kept_bytes(const TimedSets& sets, const worker::Worker& worker);
  /// Runs the slot to where this check stops. @param keep copies what must be compared out of the arena, so that it can
  /// be compared later; inputs that a CPU's runner cannot write to are then left to `check_inputs`
  Image take(worker::Worker& worker, int slot, bool keep, double limit_s);
  /// The timed image as launches of another kind than a block's left it.
  Image fetch(worker::Worker& worker, double limit_s);

  /// Guards, inputs and every output; rows against the oracle. @return finding none where all is right
  [[nodiscard]] verify::Comparison check(worker::Worker& worker, const Image& image);
  /// Of a CPU, once for all images that were kept: its runners cannot write to inputs, so what would ever be changed
  /// there stays so. K as the last launches had it.
  static verify::Comparison check_inputs(const TimedSets& sets, worker::Worker& worker);
  /// Whether any output could be looked at: on a CPU all may have been under way.
  [[nodiscard]] bool saw_outputs(const worker::Worker& worker, const Image& image) const;
  /// Whether the stop came after the last launch and not at the place drawn for it, where launches write one output
  /// after another: a kernel that leaves out what later launches write again is then complete.
  [[nodiscard]] bool came_late(const Image& image) const;

  /// Every output looked at, as a slot left them, and the launch that wrote each.
  struct Outputs {
    std::vector<const std::byte*> at;  ///< within a kept image, or one of the copies
    std::vector<int> writers;
    std::vector<bool> turned;  ///< whether the writer read K that a pause had changed
    std::vector<std::vector<std::byte>> copies;
  };
  [[nodiscard]] Outputs outputs(worker::Worker& worker, const Image& image) const;
  /// All rows of two slots' outputs that the same launches wrote. Call after `check` of both.
  [[nodiscard]] verify::Comparison compare(const Outputs& base, const Outputs& trial) const;

 private:
  static constexpr int kEarlier = -1;   // written by the replay before the one that was stopped, or by the lead
  static constexpr int kUnderWay = -2;  // may hold anything
  struct WholePasses {};
  SpotCheck(TimedSets& sets, std::uint64_t seed, WholePasses whole);
  void choose_outputs(Random& random);
  const std::byte* bytes_of(worker::Worker& worker, const Image& image, std::size_t index) const;
  const std::byte* output_of(worker::Worker& worker, const Image& image, std::size_t index) const;
  [[nodiscard]] bool uses_workspace(int set, const worker::Stopped& stopped) const;
  /// The first of the sets looked at in which anything but outputs is not as it was, or guards of other outputs.
  verify::Comparison check_memory(worker::Worker& worker, const Image& image, TimedSets::Reach reach) const;
  [[nodiscard]] verify::Comparison described(verify::Comparison found, const std::string& where,
                                             const Image& image) const;
  /// The launch of the stopped replay that wrote an output last; kEarlier: one of the replay before; kUnderWay.
  [[nodiscard]] int writer(int output, const worker::Stopped& stopped) const;
  /// The last of the first `launches` that writes an output; kEarlier: none does.
  [[nodiscard]] int last_writer(int output, int launches) const;
  /// The launch of the replay before the one that was stopped, or of the lead, that wrote an output; kEarlier: none
  /// did.
  [[nodiscard]] int earlier_writer(int output) const;
  /// Whether a launch wrote the output, and which is known.
  [[nodiscard]] bool is_known(const worker::Worker& worker, int output, int writer) const;
  /// Whether K of the launch that wrote an output is other than in the launches before the pauses.
  [[nodiscard]] bool is_turned(int writer, const worker::Stopped& stopped) const;
  const verify::Reference& reference(int output, int writer, bool turned, double share);
  /// Which of the outputs looked at is compared with the oracle.
  [[nodiscard]] std::size_t with_rows(const worker::Worker& worker, const Image& image) const;
  [[nodiscard]] std::vector<worker::Range> wanted() const;

  TimedSets& sets_;
  std::uint64_t seed_;
  int replays_ = 0;                             // whole ones, after the lead
  int launches_ = 0;                            // of the one that is stopped
  std::vector<worker::ChannelFactors> totals_;  // of K, for each replay
  worker::KeyChanges changes_;
  std::vector<int> looked_at_;  // sets, in random order
  std::vector<int> outputs_;    // looked at, in random order; those of the sets looked at, or others
  std::map<std::tuple<int, int, bool, double>, verify::Reference> references_;
};

/// A slot whose outputs or memory are wrong where a block was stopped.
struct SpotFailure {
  int slot = 0;
  verify::Comparison comparison;
};

/// Spot checks at random places of a measurement.
class SpotChecks {
 public:
  /// @param slots {the base's, the candidate's} or one alone
  /// @param blocks so many at least will be taken
  /// @param warm_up_ms how long the device takes to be warm again after it has waited for a comparison
  SpotChecks(TimedSets& sets, worker::Worker& worker, std::vector<int> slots, int blocks, double warm_up_ms,
             double limit_s);
  /// Call before each block: checks if this is one of the places.
  void before_block();
  /// The checks that no block was left for, and all comparisons that were put off. @return the first failure, the
  /// base's before the candidate's of the same check
  [[nodiscard]] std::optional<SpotFailure> finish();
  /// How many checks saw outputs of every slot, after `finish`.
  [[nodiscard]] int taken() const { return taken_; }
  /// Of the wall clock, so far: stopping, comparing, and warming the device up again.
  [[nodiscard]] double seconds() const { return seconds_; }

 private:
  struct Taken {
    SpotCheck check;
    std::vector<SpotCheck::Image> images;  // one a slot
  };
  void take();
  /// The first failure of one check, the base's before the candidate's.
  std::optional<SpotFailure> compare(Taken& taken);

  TimedSets& sets_;
  worker::Worker& worker_;
  std::vector<int> slots_;
  double warm_up_ms_;
  double limit_s_;
  Random random_;
  std::vector<int> places_;  // blocks before which a check is taken
  int block_ = 0;
  int begun_ = 0;
  int taken_ = 0;
  std::vector<SpotCheck::Choice> first_;  // of the first checks, so that none of them depends on luck
  double seconds_ = 0;
  int most_;
  std::vector<Taken> put_off_;
  std::optional<SpotFailure> failure_;
};

}  // namespace heed::measure
