/// Plans of heed_options.precision on a CPU, with tensors as the gate lays them out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/problem.hpp"
#include "conformance/checked_plan.hpp"
#include "device/device.hpp"
#include "dispatch/program_file.hpp"
#include "jit/build.hpp"
#include "quantise/quantise.hpp"
#include "testing.hpp"
#include "variant/family.hpp"
#include "verify/accuracy.hpp"
#include "verify/quantisation_modes.hpp"
#include "workload/elements.hpp"

namespace heed::testing_support {

inline constexpr std::uint64_t kSeedOfPlans = 48;  // of the signs of rotations

/// A workload's tensors in host memory, and what they are in double precision. Keys that no row sees are NaN.
class PrecisionCase {
 public:
  explicit PrecisionCase(std::string_view text, verify::InputClass inputs = verify::InputClass::normal,
                         std::uint64_t seed = 1)
      : workload_(parse_workload(text)), values_(verify::make_inputs(workload_, inputs, seed)) {
    verify::make_features(workload_, seed, values_);
    verify::draw_lengths(workload_, seed, values_);
    if (workload_.has_lengths()) values_.lengths[0] = {workload_.len_q, workload_.len_k};
    verify::InputValues given = values_;
    verify::poison_unseen_keys(workload_, given);
    scene_ = std::make_unique<verify::Scene>(workload_, given, LaunchPlan{}, seed,
                                             verify::SceneOptions{.with_lse = true, .padding_rows = 3});
    memory_ = scene_->image();
    for (const RowIndex& row : all_rows(workload_))
      if (row.row < scene_->rows_of(row.batch)) rows_.push_back(row);
    exact_ = reference_attention(workload_, scene_->tensors(), rows_, 1);
  }

  [[nodiscard]] heed_problem problem() const { return conformance::problem_of(*scene_, DeviceKind::cpu); }
  [[nodiscard]] heed_tensors tensors() { return conformance::tensors_of(*scene_, memory_.data()); }
  [[nodiscard]] const Workload& workload() const { return workload_; }
  [[nodiscard]] const std::vector<RowIndex>& rows() const { return rows_; }
  [[nodiscard]] const ReferenceRows& exact() const { return exact_; }
  [[nodiscard]] std::string forbidden_write() const { return scene_->forbidden_write(memory_.data()).text; }

  /// Of the quantised numbers, as the gate quantises them.
  [[nodiscard]] ReferenceRows quantised(const quantise::Mode& mode) const {
    const verify::Scene given(quantise::quantised_by(workload_, mode),
                              verify::prepared_by(workload_, mode, values_, kSeedOfPlans), LaunchPlan{}, 1);
    return reference_attention(given.workload(), given.tensors(), rows_, 1);
  }

  [[nodiscard]] std::vector<double> out() const {
    const auto columns = static_cast<std::size_t>(workload_.dim_v);
    std::vector<double> out(rows_.size() * columns);
    for (std::size_t i = 0; i < rows_.size(); ++i)
      load_elements(workload_.dtype, memory_.data() + scene_->o().offset, scene_->o_index(rows_[i]), columns,
                    out.data() + i * columns);
    return out;
  }
  [[nodiscard]] std::vector<double> lse() const {
    const auto* const all = reinterpret_cast<const float*>(memory_.data() + scene_->lse().offset);
    std::vector<double> lse;
    for (const RowIndex& row : rows_) lse.push_back(all[scene_->lse_index(row)]);
    return lse;
  }

 private:
  Workload workload_;
  verify::InputValues values_;
  std::unique_ptr<verify::Scene> scene_;
  std::vector<std::byte> memory_;
  std::vector<RowIndex> rows_;
  ReferenceRows exact_;
};

/// A plan with a workspace of its own.
class PrecisionRun {
 public:
  PrecisionRun(const heed_problem& problem, const heed_options& options) {
    status_ = heed_plan_create(&problem, &options, &plan_);
    heed_plan_info_init(&info_);
    if (status_ != HEED_OK) return;
    heed_plan_get_info(plan_, &info_);
    room_.assign(info_.workspace_bytes + info_.workspace_alignment, std::byte{0xff});  // NaN wherever it is not written
    const auto at = reinterpret_cast<std::uintptr_t>(room_.data());
    if (info_.workspace_bytes > 0)
      workspace_ = reinterpret_cast<void*>((at + info_.workspace_alignment - 1) / info_.workspace_alignment *
                                           info_.workspace_alignment);
    status_ = heed_plan_prepare(plan_, workspace_, nullptr);
  }
  ~PrecisionRun() { heed_plan_destroy(plan_); }
  PrecisionRun(const PrecisionRun&) = delete;
  PrecisionRun& operator=(const PrecisionRun&) = delete;

  heed_status run(const heed_tensors& tensors) const {
    return status_ != HEED_OK ? status_ : heed_plan_run(plan_, &tensors, workspace_, nullptr);
  }
  [[nodiscard]] const heed_plan* plan() const { return plan_; }
  [[nodiscard]] const heed_plan_info& info() const { return info_; }
  [[nodiscard]] void* workspace() const { return workspace_; }

 private:
  heed_plan* plan_ = nullptr;
  heed_plan_info info_{};
  heed_status status_ = HEED_OK;
  std::vector<std::byte> room_;
  void* workspace_ = nullptr;
};

}  // namespace heed::testing_support
