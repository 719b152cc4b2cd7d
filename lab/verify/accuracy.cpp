#include "verify/accuracy.hpp"

#include <algorithm>
#include <cmath>

#include "workload/elements.hpp"

namespace heed::verify {

Accuracy accuracy_of(const std::vector<RowIndex>& rows, const std::vector<double>& out,
                     const std::vector<double>& ref) {
  Accuracy accuracy;
  if (rows.empty()) return accuracy;
  const std::size_t columns = ref.size() / rows.size();
  double error_square = 0, ref_square = 0, out_square = 0, product = 0, error_sum = 0, ref_sum = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    double row_error = 0, row_ref = 0;
    for (std::size_t at = i * columns; at < (i + 1) * columns; ++at) {
      const double error = out[at] - ref[at];
      row_error += error * error;
      row_ref += ref[at] * ref[at];
      out_square += out[at] * out[at];
      product += out[at] * ref[at];
      error_sum += std::abs(error);
      ref_sum += std::abs(ref[at]);
    }
    error_square += row_error;
    ref_square += row_ref;
    if (row_ref == 0) continue;
    const double of_row = std::sqrt(row_error / row_ref);
    // A negated comparison, so that an error that is NaN is the worst.
    if (!(of_row <= accuracy.worst_row)) accuracy.worst_row = of_row, accuracy.at = rows[i];
  }
  if (ref_square == 0) return accuracy;
  accuracy.rel_rms = std::sqrt(error_square / ref_square);
  accuracy.rel_l1 = error_sum / ref_sum;
  accuracy.cosine = out_square > 0 ? product / std::sqrt(out_square * ref_square) : 0;
  return accuracy;
}

std::vector<RowIndex> rows_that_are_there(const Scene& scene, const std::vector<RowIndex>& rows) {
  std::vector<RowIndex> there;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(there),
               [&](const RowIndex& row) { return row.row < scene.rows_of(row.batch); });
  return there;
}

Accuracy total_error(const Scene& scene, const InputValues& values, const std::byte* after,
                     const std::vector<RowIndex>& rows) {
  Workload original = scene.workload();
  original.quantised.reset();
  // Another order of pages changes nothing.
  const Scene plain(original, values, LaunchPlan{}, 1);
  const std::vector<RowIndex> there = rows_that_are_there(scene, rows);
  const ReferenceRows oracle = reference_attention(original, plain.tensors(), there);
  const auto columns = static_cast<std::size_t>(original.dim_v);
  std::vector<double> out(there.size() * columns);
  for (std::size_t i = 0; i < there.size(); ++i)
    load_elements(original.dtype, after + scene.o().offset, scene.o_index(there[i]), columns, out.data() + i * columns);
  return accuracy_of(there, out, oracle.out);
}

}  // namespace heed::verify
