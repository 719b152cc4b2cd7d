/// A scene, its reference, and the image that a perfect kernel leaves: tests then break one thing of it.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "verify/compare.hpp"
#include "workload/half.hpp"

namespace heed::verify {

struct Scenario {
  explicit Scenario(const std::string& text, std::int64_t padding = 0)
      : Scenario(parse_workload(text), make_inputs(parse_workload(text), InputClass::normal, 5), padding) {
    hard_limit = scene.workload().dtype == Dtype::fp16;
  }
  Scenario(const Workload& workload, const InputValues& values, std::int64_t padding = 0)
      : scene(workload, values, LaunchPlan{}, 6, {.with_lse = true, .padding_rows = padding}),
        reference(make_reference(scene, all_rows(scene.workload()))),
        after(scene.image()) {
    // What a perfect kernel leaves behind.
    const Workload& w = scene.workload();
    for (std::size_t i = 0; i < reference.rows.size(); ++i) {
      const RowIndex& row = reference.rows[i];
      for (std::int64_t d = 0; d < w.dim_v; ++d)
        set(row, d,
            static_cast<float>(
                reference.oracle.out[i * static_cast<std::size_t>(w.dim_v) + static_cast<std::size_t>(d)]));
      const auto lse = static_cast<float>(reference.oracle.lse[i]);
      std::memcpy(after.data() + scene.lse().offset + ((row.batch * w.heads + row.head) * w.len_q + row.row) * 4, &lse,
                  4);
    }
  }
  std::size_t index(const RowIndex& row, std::int64_t column) const {
    const Strides& s = scene.o().strides;
    return static_cast<std::size_t>(row.batch * s.batch + row.head * s.head + row.row * s.row + column);
  }
  void set(const RowIndex& row, std::int64_t column, float value) {
    store_element(scene.workload().dtype, after.data() + scene.o().offset, index(row, column), value);
  }
  [[nodiscard]] Comparison compare() const { return verify::compare(scene, after.data(), reference, hard_limit); }

  /// Every row at once: change(row, column, value) is what is left there.
  template <typename Change>
  void change_all(const Change& change) {
    const Workload& w = scene.workload();
    for (std::int64_t b = 0; b < w.batch; ++b)
      for (std::int64_t h = 0; h < w.heads; ++h)
        for (std::int64_t r = 0; r < w.len_q; ++r)
          for (std::int64_t d = 0; d < w.dim_v; ++d) {
            const RowIndex row{b, h, r};
            set(row, d, change(row, d, load_element(w.dtype, after.data() + scene.o().offset, index(row, d))));
          }
  }
  void set_lse(const RowIndex& row, float value) {
    const Workload& w = scene.workload();
    std::memcpy(after.data() + scene.lse().offset + ((row.batch * w.heads + row.head) * w.len_q + row.row) * 4, &value,
                4);
  }

  bool hard_limit = false;  ///< fp16 inputs from N(0,1)
  Scene scene;
  Reference reference;
  std::vector<std::byte> after;
};

}  // namespace heed::verify
