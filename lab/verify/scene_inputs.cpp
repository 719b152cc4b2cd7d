// Q, K and V of a scene, and their scale factors where they are quantised.
#include <cstring>

#include "base/check.hpp"
#include "base/parallel.hpp"
#include "verify/scene.hpp"
#include "workload/elements.hpp"

namespace heed::verify {

std::array<Scene::Input, 3> Scene::inputs() const {
  const Workload& w = workload_;
  const Quantised* const quantised = w.quantised ? &*w.quantised : nullptr;
  const auto of = [&](std::optional<QuantisedTensor> Quantised::*tensor) {
    return quantised == nullptr ? nullptr : &(quantised->*tensor);
  };
  using L = worker::Launch;
  using P = FeatureParams;
  return {{{&Scene::q_, q_scales, &P::q_scales, &L::q_scales, w.heads, w.len_q, w.dim, true, w.dtype_q(),
            of(&Quantised::q), &InputValues::q},
           {&Scene::k_, k_scales, &P::k_scales, &L::k_scales, w.heads_kv, w.len_k, w.dim, false, w.dtype_k(),
            of(&Quantised::k), &InputValues::k},
           {&Scene::v_, v_scales, &P::v_scales, &L::v_scales, w.heads_kv, w.len_k, w.dim_v, false, w.dtype_v(),
            of(&Quantised::v), &InputValues::v}}};
}

void Scene::put_output_features(const InputValues& values) {
  const Workload& w = workload_;
  FeatureParams& s = launch_.shape;
  s.out_columns = static_cast<int>(w.dim_v);
  if (w.out_norm) {
    const Place& weights = features_[out_norm_weight];
    std::memcpy(image_.data() + weights.offset, values.out_norm_weight.data(), weights.bytes);
    launch_.out_norm_weight = weights.offset;
    s.out_norm_head = w.out_norm->by_head ? w.dim_v : 0;
    s.out_norm_eps = static_cast<float>(w.out_norm->eps);
  }
  if (w.out_gate == OutGate::none) return;
  const Place& gates = features_[out_gate];
  const std::int64_t columns = w.out_gate == OutGate::head ? 1 : w.dim_v;
  launch_.out_gate = gates.offset;
  s.out_gate_strides = {gates.strides.batch, gates.strides.head, gates.strides.row};
  s.out_gate_column = w.out_gate == OutGate::head ? 0 : 1;
  std::byte* const to = image_.data() + gates.offset;
  parallel_for(w.batch * w.heads, 0, [&](std::int64_t index) {
    const std::int64_t batch = index / w.heads, head = index % w.heads;
    for (std::int64_t row = 0; row < rows_of(batch); ++row) {
      const auto base = static_cast<std::size_t>(element_index(gates.strides, places_.query(batch, row), head));
      const float* const source = values.out_gate.data() + (index * w.len_q + row) * columns;
      for (std::int64_t d = 0; d < columns; ++d)
        store_element(w.dtype, to, base + static_cast<std::size_t>(d), source[d]);
    }
  });
}

void Scene::put_input(const Input& input, const InputValues& all_values, const Scales* scales) {
  const Workload& w = workload_;
  const Values& values = all_values.*(input.values);
  const Place& place = this->*(input.place);
  HEED_CHECK(static_cast<std::int64_t>(values.size()) == w.batch * input.heads * input.rows * input.dim);
  std::byte* const to = image_.data() + place.offset;
  parallel_for(w.batch * input.heads, 0, [&](std::int64_t index) {
    const std::int64_t batch = index / input.heads, head = index % input.heads;
    const EntryLengths& lengths = places_.lengths()[static_cast<std::size_t>(batch)];
    for (std::int64_t row = 0; row < (input.are_queries ? lengths.len_q : lengths.len_k); ++row) {
      const float* source = values.data() + (index * input.rows + row) * input.dim;
      const RowPlace at = input.are_queries ? places_.query(batch, row) : places_.key(batch, row);
      const auto base = static_cast<std::size_t>(element_index(place.strides, at, head));
      const std::size_t factor = scales == nullptr ? 0 : scales->index(batch, head, row, 0);
      const auto columns = static_cast<std::size_t>(input.dim);
      if (scales == nullptr)
        store_elements(input.dtype, to, base, source, columns);
      else
        store_quantised(input.dtype, to, base, source, columns, scales->factors().data() + factor,
                        scales->channel() != 0);
    }
  });
  if (scales == nullptr) return;
  const Place& at = features_[input.scales_input];
  std::memcpy(image_.data() + at.offset, scales->factors().data(), at.bytes);
  launch_.*(input.scales_address) = at.offset;
  const Strides& strides = scales->strides();
  launch_.shape.*(input.scales) = {.at = nullptr,
                                   .strides = {strides.batch, strides.head, strides.row},
                                   .rows = scales->rows(),
                                   .channel = scales->channel(),
                                   .first_row = 0,
                                   .reserved = 0};
}

}  // namespace heed::verify
