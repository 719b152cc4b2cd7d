/// Edited sources judged one reply at a time, outside a search: for `heed judge` and programs that propose edits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jit/build.hpp"
#include "store/store.hpp"
#include "trial/trial_runner.hpp"
#include "variant/family.hpp"

namespace heed::evolve {

/// What became of a reply.
struct Judgement {
  store::TrialRecord trial;  ///< id 0: not stored, for the reply made no variant (verdict illegal, check "edits")
  jit::Resources resources;  ///< registers, spills, ... of what was built
  std::string log;           ///< the compiler's words on what it built or did not build
  /// Of a duplicate: the trial that it equals, with that one's reading; of what equals the base a trial with the id 0,
  /// ok and exactly as fast.
  std::optional<store::TrialRecord> earlier;
  bool faster = false;  ///< whether the whole interval lies above what the base shows against itself
};

class SourceJudge {
 public:
  /// Builds, verifies and measures the base, the default of the parent's family. Trials go to a run of their own, which
  /// later judges of the same workload, family, device and sources go on with, so that none judges what another has.
  /// @param parent what edits are applied to: knobs of a family; its edits, if any, are taken off
  /// @throws Error as trial::TrialRunner does where there is no base
  SourceJudge(store::Store& store, jit::Builder& builder, const DeviceFacts& device, const Workload& workload,
              const Variant& parent, const trial::Options& options);
  ~SourceJudge();
  SourceJudge(const SourceJudge&) = delete;
  SourceJudge& operator=(const SourceJudge&) = delete;

  /// Parses, applies, refuses, builds, verifies and measures, in this order, and stores the trial and what insights
  /// have of it. Never throws for anything that the reply says or its code does. @throws Error(interrupted, store)
  Judgement judge(std::string_view reply);
  /// The same for edits of another variant of the family, which may have edits already.
  Judgement judge(std::string_view reply, const Variant& parent);
  /// Builds, verifies, measures and stores a variant as it is. @param why in words, for the record
  Judgement judge_knobs(const Variant& variant, const std::string& why);

  /// Judged so far, by this process and those before it.
  [[nodiscard]] const std::vector<store::TrialRecord>& trials() const { return trials_; }
  [[nodiscard]] const trial::Built& base() const { return trial_runner_.base(); }
  [[nodiscard]] double base_us() const { return base_us_; }
  [[nodiscard]] double self_spread() const { return self_spread_; }
  [[nodiscard]] std::int64_t run() const { return run_; }

 private:
  void open_run();
  [[nodiscard]] store::TrialRecord new_record(const Variant& variant, std::string_view operation,
                                              const std::string& why) const;
  void judge_variant(const Variant& variant, Judgement& judgement);
  void judge_and_store(const Variant& variant, store::TrialRecord record, Judgement& judgement);
  struct Twin {
    store::TrialRecord earlier;
    std::string reason;
  };
  /// The earlier trial that it is the same as by its knobs and tokens.
  [[nodiscard]] std::optional<Twin> token_twin(const store::TrialRecord& record) const;
  [[nodiscard]] std::optional<Twin> code_twin(const Variant& variant, const jit::BuildOutcome& build) const;
  /// What the trial says of its change, beside what runs' trials say.
  void harvest(const store::TrialRecord& trial);

  store::Store& store_;
  jit::Builder& builder_;
  DeviceFacts device_;
  Variant parent_;
  trial::TrialRunner trial_runner_;
  std::vector<store::TrialRecord> trials_;
  std::int64_t run_ = 0;
  store::RunRecord record_;  ///< of it, with its base
  double base_us_ = 0;
  double self_spread_ = 0;
};

}  // namespace heed::evolve
