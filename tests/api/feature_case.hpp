/// Problems with features for tests of the C interface: tensors as the gate lays them out, in host memory with poison
/// and guards around them, and what the oracle says of them.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "c_library.hpp"
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
    heed_problem p = api::problem_of(workload_, device);
    p.flags |= HEED_WANTS_LSE;
    const auto strides = [](const verify::Place& place) {
      return heed_strides{place.strides.batch, place.strides.head, place.strides.row, 1};
    };
    p.q_strides = strides(scene_->q());
    p.k_strides = strides(scene_->k());
    p.v_strides = strides(scene_->v());
    p.o_strides = strides(scene_->o());
    const FeatureParams& launch = scene_->launch().shape;
    p.bias_strides = {launch.bias_batch, launch.bias_head, launch.bias_row, launch.bias_key};
    if (workload_.ragged) {
      p.total_q = scene_->places().query_rows();
      p.total_k = workload_.page_size > 0 ? 0 : scene_->places().key_rows();
    }
    if (workload_.ragged && workload_.page_size > 0) p.flags |= HEED_KEY_LENGTHS;
    p.pages = scene_->places().pages();
    if (workload_.blocks) {
      p.block_most = launch.block_most;
      const auto strides_from = [](const TensorStrides& s, std::int64_t dim) {
        return heed_strides{s.batch, s.head, s.row, dim};
      };
      p.block_count_strides = strides_from(launch.block_count_strides, 0);
      p.block_index_strides = strides_from(launch.block_index_strides, 1);
    }
    return p;
  }

  [[nodiscard]] heed_tensors tensors() {
    heed_tensors t;
    heed_tensors_init(&t);
    t.q = at(scene_->q());
    t.k = at(scene_->k());
    t.v = at(scene_->v());
    t.o = at(scene_->o());
    t.lse = static_cast<float*>(at(scene_->lse()));
    using S = verify::Scene;
    t.bias = at(scene_->feature(S::bias));
    t.sinks = static_cast<const float*>(at(scene_->feature(S::sinks)));
    t.alibi_slopes = static_cast<const float*>(at(scene_->feature(S::alibi_slopes)));
    t.cu_seqlens_q = static_cast<const std::int32_t*>(at(scene_->feature(S::cu_seqlens_q)));
    t.cu_seqlens_k = static_cast<const std::int32_t*>(at(scene_->feature(S::cu_seqlens_k)));
    t.seqused_k = static_cast<const std::int32_t*>(at(scene_->feature(S::seqused_k)));
    t.page_table = static_cast<const std::int32_t*>(at(scene_->feature(S::page_table)));
    t.block_counts = static_cast<const std::int32_t*>(at(scene_->feature(S::block_counts)));
    t.prefix_lengths = static_cast<const std::int32_t*>(at(scene_->feature(S::prefix_lengths)));
    t.block_indices = static_cast<const std::int32_t*>(at(scene_->feature(S::block_indices)));
    t.dropout_seed = scene_->launch().shape.dropout_seed;
    t.dropout_offset = scene_->launch().shape.dropout_offset;
    t.dropout_first_entry = scene_->launch().shape.dropout_first_entry;
    return t;
  }

  /// O and the log-sum-exp against the oracle, and that nothing else was written. Of fp32 tensors.
  void check(double tolerance = 3e-5) const {
    const verify::Scene::Trespass trespass = scene_->trespass(memory_.data());
    EXPECT_EQ(trespass.text, "");
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
  [[nodiscard]] void* at(const verify::Place& place) {
    return place.bytes == 0 ? nullptr : memory_.data() + place.offset;
  }

  Workload workload_;
  std::unique_ptr<verify::Scene> scene_;
  std::vector<std::byte> memory_;
};

}  // namespace heed::testing_support
