/// One run of the gate: its scenes, launches and verdict, and the checks one by one.
#pragma once

#include <string>
#include <vector>

#include "base/random.hpp"
#include "verify/gate.hpp"
#include "verify/nonfinite.hpp"
#include "verify/scene.hpp"

namespace heed::verify {

class Gate {
 public:
  Gate(worker::Worker& worker, int slot, const Variant& variant, const Workload& workload, const DeviceFacts& device,
       const GateOptions& options)
      : worker_(worker), slot_(slot), variant_(variant), workload_(workload), device_(device), options_(options) {}

  GateReport run();

 private:
  std::byte* result() { return worker_.arena().data() + result_offset_; }
  LaunchPlan plan_for(const Workload& workload) const { return variant_.plan(workload, device_); }
  std::uint64_t next_seed() { return substream(options_.seed, ++seeds_); }

  void start(const std::string& name);
  void fail(Verdict verdict, Finding finding, std::string reason);
  /// Image to the arena, one launch, result in the arena behind it.
  void launch(const Scene& scene);
  /// A failed comparison as a verdict; `context` replaces an inexactness by what it means in this check.
  bool judge(const Comparison& comparison, const Reference& reference, Finding context, bool required = true);
  void add_check(bool passed);
  /// The total error of the last check's launch, where the workload is quantised.
  void add_total_error(const Scene& scene, const InputValues& values, const std::vector<RowIndex>& rows);
  Scene make_scene(const Workload& workload, const InputValues& values, const SceneOptions& options = {});

  /// How tensors of a scene lie: maybe by strides of their own.
  SceneOptions drawn_strides(const Workload& workload, double probability);
  [[nodiscard]] std::uint64_t most_scene_bytes() const { return worker_.arena().size() / 2 - 4096; }

  /// Which launches ask for the log-sum-exp: the path without it must be right on every kind of inputs too.
  enum class Lse { drawn, both };
  /// One scene, one comparison a launch.
  bool check_scene(Scene scene, const Reference& reference, bool hard_limit, Finding context, Lse lse);
  bool check_scene(Scene scene, double oracle_flops, bool hard_limit, Finding context, Lse lse = Lse::drawn);

  void run_checks();
  bool check_class(InputClass inputs);
  /// Every row of every head and batch entry against the oracle of the first head.
  bool check_equal_heads(Scene scene, std::uint64_t seed);
  /// Whether nothing but the values of Q, K and V tells heads and batch entries from each other.
  [[nodiscard]] bool heads_are_alike() const;
  /// Whether keys that lie beside each other share scale factors, so that their order means something.
  [[nodiscard]] bool has_blocks_of_scales() const;
  /// Entries without queries, without keys, with all there are.
  bool check_lengths();
  bool check_given();
  /// Shapes that no list in these sources holds.
  bool check_held_back();
  /// A program for fixed sizes runs no other workload.
  [[nodiscard]] bool may_run(const Workload& w) const;
  /// Dropout makes outputs larger, and beside V in 8 bits with an exponent P has their digits.
  [[nodiscard]] bool hard() const {
    const bool has_digits = workload_.dtype_v() != Dtype::e4m3 && workload_.dtype_v() != Dtype::e5m2;
    return workload_.dtype == Dtype::fp16 && has_digits && !workload_.scale && workload_.dropout == 0;
  }
  /// The workload itself: right, the same every time, and right again when the inputs change under the same addresses.
  bool check_workload();
  bool check_without_lse();
  /// Every row of the output against the constant, not only the rows the oracle was computed for.
  bool check_constant(const Scene& scene);
  /// Heads further apart than their rows, the gap filled with NaN; then gaps between all rows, heads and entries, in
  /// each tensor others.
  bool check_padding();
  /// NaN, infinity and scores beyond fp32 show in the rows that see them, and in no others: in a few tiles, and at
  /// lengths up to the workload's own.
  bool check_nonfinite();
  [[nodiscard]] Workload nonfinite_shape(bool is_long);
  static std::int64_t any_key(const KeyRange& keys, Random& random);
  /// As many blemishes a scene as there are key heads.
  bool check_blemishes(const char* name, const Workload& w, const std::vector<Blemish>& blemishes, bool by_all);
  /// Launches that feed each other and follow at once, as programmatic dependents where the plan allows it, against the
  /// same launches waited for.
  bool check_chains();
  /// Keys and values in another order: the same output. Under a mask the order means something, so nothing to
  /// check.
  bool check_permutation();

  static constexpr double kNeighbourFlops = 0.05e9;  ///< of the oracle, for a scene of a neighbouring shape

  worker::Worker& worker_;
  int slot_;
  const Variant& variant_;
  const Workload& workload_;
  const DeviceFacts& device_;
  const GateOptions& options_;
  GateReport report_;
  std::uint64_t result_offset_ = 0;
  std::uint64_t seeds_ = 0;
};

}  // namespace heed::verify
