#include "verify/accuracy.hpp"

#include <cmath>

#include "workload/elements.hpp"

namespace heed::verify {

Accuracy total_error(const Scene& scene, const InputValues& values, const std::byte* after,
                     const std::vector<RowIndex>& rows) {
  Workload original = scene.workload();
  original.quantised.reset();
  // Another order of pages changes nothing.
  const Scene plain(original, values, LaunchPlan{}, 1);
  std::vector<RowIndex> there;
  for (const RowIndex& row : rows)
    if (row.row < scene.rows_of(row.batch)) there.push_back(row);
  const ReferenceRows oracle = reference_attention(original, plain.tensors(), there);

  Accuracy accuracy;
  const auto columns = static_cast<std::size_t>(original.dim_v);
  std::vector<double> out(columns);
  double error_square = 0, ref_square = 0, out_square = 0, product = 0, error_sum = 0, ref_sum = 0;
  for (std::size_t i = 0; i < there.size(); ++i) {
    load_elements(original.dtype, after + scene.o().offset, scene.o_index(there[i]), columns, out.data());
    const double* const ref = oracle.out.data() + i * columns;
    double row_error = 0, row_ref = 0;
    for (std::size_t d = 0; d < columns; ++d) {
      const double error = out[d] - ref[d];
      row_error += error * error;
      row_ref += ref[d] * ref[d];
      out_square += out[d] * out[d];
      product += out[d] * ref[d];
      error_sum += std::abs(error);
      ref_sum += std::abs(ref[d]);
    }
    error_square += row_error;
    ref_square += row_ref;
    if (row_ref == 0) continue;
    const double of_row = std::sqrt(row_error / row_ref);
    if (of_row > accuracy.worst_row) accuracy.worst_row = of_row, accuracy.at = there[i];
  }
  if (ref_square == 0) return accuracy;
  accuracy.rel_rms = std::sqrt(error_square / ref_square);
  accuracy.rel_l1 = error_sum / ref_sum;
  if (out_square > 0) accuracy.cosine = product / std::sqrt(out_square * ref_square);
  return accuracy;
}

}  // namespace heed::verify
