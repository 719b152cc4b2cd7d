#include "verify/quantisation_modes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.hpp"
#include "quantise/quantise.hpp"
#include "verify/scene.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

// Of each batch entry and head the mean over the keys that the entry has.
void take_mean_out(const Workload& w, InputValues& values) {
  const std::vector<EntryLengths> lengths = values.lengths.empty() ? lengths_of(w) : values.lengths;
  parallel_for(w.batch * w.heads_kv, 0, [&](std::int64_t head) {
    float* const keys = values.k.data() + head * w.len_k * w.dim;
    const std::int64_t count = lengths[static_cast<std::size_t>(head / w.heads_kv)].len_k;
    if (count == 0) return;
    for (std::int64_t d = 0; d < w.dim; ++d) {
      double sum = 0;
      for (std::int64_t j = 0; j < count; ++j) sum += keys[j * w.dim + d];
      const auto mean = static_cast<float>(sum / static_cast<double>(count));
      for (std::int64_t j = 0; j < count; ++j) keys[j * w.dim + d] -= mean;
    }
  });
}

bool has_lost(const InputValues& prepared) {
  const auto lost = [](const Values& tensor) {
    return std::any_of(tensor.begin(), tensor.end(), [](float x) { return std::isinf(x); });
  };
  return lost(prepared.q) || lost(prepared.k) || lost(prepared.v);
}

}  // namespace

InputValues prepared_by(const Workload& workload, const quantise::Mode& mode, InputValues values, std::uint64_t seed) {
  for (Values* tensor : {&values.q, &values.k, &values.v})
    parallel_for(static_cast<std::int64_t>(tensor->size()), 0, [&](std::int64_t i) {
      float& x = (*tensor)[static_cast<std::size_t>(i)];
      x = round_to(workload.dtype, x);
    });
  if (mode.smooths) take_mean_out(workload, values);
  if (!mode.rotates) return values;
  unsigned signs[quantise::kSignWords];
  quantise::draw_signs(seed, static_cast<int>(workload.dim), signs);
  for (Values* tensor : {&values.q, &values.k})
    parallel_for(static_cast<std::int64_t>(tensor->size()) / workload.dim, 0, [&](std::int64_t row) {
      quantise::rotate({tensor->data() + row * workload.dim, static_cast<std::size_t>(workload.dim)}, signs);
    });
  return values;
}

Accuracy cost_of(const Workload& workload, const quantise::Mode& mode, const InputValues& values,
                 const std::vector<RowIndex>& rows, std::uint64_t seed) {
  const Workload quantised = quantise::quantised_by(workload, mode);
  const InputValues prepared = prepared_by(workload, mode, values, seed);
  if (has_lost(prepared)) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return {kInfinity, kInfinity, 0, kInfinity, {}};
  }
  const Scene plain(workload, values, LaunchPlan{}, 1);
  const std::vector<RowIndex> there = rows_that_are_there(plain, rows);
  const ReferenceRows exact = reference_attention(workload, plain.tensors(), there);
  const Scene given(quantised, prepared, LaunchPlan{}, 1);
  const ReferenceRows out = reference_attention(quantised, given.tensors(), there);
  return accuracy_of(there, out.out, exact.out);
}

std::string lost_values(const Workload& workload, const quantise::Mode& mode, const InputValues& values,
                        std::uint64_t seed) {
  const InputValues prepared = prepared_by(workload, mode, values, seed);
  std::string words;
  const auto add = [&](const char* name, const Values& tensor, std::int64_t heads, std::int64_t rows,
                       std::int64_t dim) {
    const auto is_lost = [](float x) { return std::isinf(x); };
    const auto count = std::count_if(tensor.begin(), tensor.end(), is_lost);
    if (count == 0) return;
    const std::int64_t first = std::find_if(tensor.begin(), tensor.end(), is_lost) - tensor.begin();
    const std::int64_t row = first / dim, head = row / rows;
    words += fmt::format("{}{} value{} of {}, the first in batch entry {}, head {}, row {}, column {}",
                         words.empty() ? "" : ", and ", count, count == 1 ? "" : "s", name, head / heads, head % heads,
                         row % rows, first % dim);
  };
  add("Q", prepared.q, workload.heads, workload.len_q, workload.dim);
  add("K", prepared.k, workload.heads_kv, workload.len_k, workload.dim);
  add("V", prepared.v, workload.heads_kv, workload.len_k, workload.dim_v);
  return words;
}

}  // namespace heed::verify
