/// Problems with features for tests of the C interface: tensors as the gate lays them out, in host memory with poison
/// and guards around them, and what the oracle says of them.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "c_library.hpp"
#include "conformance/checked_plan.hpp"
#include "verify/inputs.hpp"
#include "verify/scene.hpp"

namespace heed::testing_support {

class FeatureCase {
 public:
  /// @param text of the workload; entries with lengths have drawn ones, 0 and the most among them
  explicit FeatureCase(std::string_view text, std::uint64_t seed = 1) : workload_(parse_workload(text)) {
    verify::InputValues values = verify::make_inputs(workload_, verify::InputClass::normal, seed);
    verify::make_features(workload_, seed, values);
    verify::draw_lengths(workload_, seed, values);
    if (workload_.has_lengths()) values.lengths[0] = {workload_.len_q, workload_.len_k};  // never all 0
    scene_ = std::make_unique<verify::Scene>(workload_, values, LaunchPlan{}, seed,
                                             verify::SceneOptions{.with_lse = true, .padding_rows = 3});
    memory_ = scene_->image();
  }

  [[nodiscard]] heed_problem problem(DeviceKind device = DeviceKind::cpu) const {
    return conformance::problem_of(*scene_, device);
  }

  [[nodiscard]] heed_tensors tensors() { return conformance::tensors_of(*scene_, memory_.data()); }

  /// O and the log-sum-exp against the oracle, and that nothing else was written. Of fp32 tensors.
  void check(double tolerance = 3e-5) const {
    const verify::Scene::ForbiddenWrite forbidden_write = scene_->forbidden_write(memory_.data());
    EXPECT_EQ(forbidden_write.text, "");
    std::vector<RowIndex> rows;
    for (const RowIndex& row : all_rows(workload_))
      if (row.row < scene_->rows_of(row.batch)) rows.push_back(row);
    const HostTensors inputs = scene_->tensors();
    const ReferenceRows expected = reference_attention(workload_, inputs, rows, 1);
    const auto* const o = reinterpret_cast<const float*>(memory_.data() + scene_->o().offset);
    const auto* const lse = reinterpret_cast<const float*>(memory_.data() + scene_->lse().offset);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto place = [&] {
        return fmt::format("{} batch {} head {} row {}", to_string(workload_), rows[i].batch, rows[i].head,
                           rows[i].row);
      };
      for (std::int64_t c = 0; c < workload_.dim_v; ++c)
        ASSERT_NEAR(o[scene_->o_index(rows[i]) + static_cast<std::size_t>(c)],
                    expected.out[i * static_cast<std::size_t>(workload_.dim_v) + static_cast<std::size_t>(c)],
                    tolerance)
            << place() << " column " << c;
      const double found = lse[scene_->lse_index(rows[i])];
      if (std::isinf(expected.lse[i]))
        ASSERT_EQ(found, expected.lse[i]) << place();
      else
        ASSERT_NEAR(found, expected.lse[i], 1e-4) << place();
    }
  }

  [[nodiscard]] const Workload& workload() const { return workload_; }
  [[nodiscard]] const verify::Scene& scene() const { return *scene_; }
  [[nodiscard]] std::vector<std::byte>& memory() { return memory_; }

 private:
  Workload workload_;
  std::unique_ptr<verify::Scene> scene_;
  std::vector<std::byte> memory_;
};

}  // namespace heed::testing_support
