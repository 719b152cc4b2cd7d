#include "verify/quantisation_modes.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>

#include "base/parallel.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "verify/scene.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

constexpr std::array<QuantisationMode, 9> kModes = {{
    {"int8", "q/int8/block32+k/int8/block64", false, false, "Q and K in int8 by blocks of 32 and 64 rows"},
    {"int8_smooth", "q/int8/block32+k/int8/block64", true, false, "the same without the mean of K (SageAttention)"},
    {"int8_token_smooth", "qk/int8/token", true, false, "Q and K in int8 by rows, without the mean of K"},
    {"int8_fp8_smooth", "q/int8/block32+k/int8/block64+v/e4m3/channel", true, false,
     "int8_smooth, and V in e4m3 by channels (SageAttention2)"},
    {"fp8", "qkv/e4m3/head", false, false, "all in e4m3 by heads"},
    {"fp8_smooth", "qkv/e4m3/head", true, false, "the same without the mean of K"},
    {"fp8_rotated", "qkv/e4m3/head", false, true, "all in e4m3 by heads, Q and K rotated (FlashAttention-3)"},
    {"fp8_smooth_rotated", "qkv/e4m3/head", true, true, "fp8_rotated without the mean of K"},
    {"fp8_block_smooth_rotated", "q/e4m3/block64+k/e4m3/block128+v/e4m3/channel", true, true,
     "the same by blocks of 64 and 128 rows, V by channels"},
}};

// row *= H / sqrt(n) with H the Hadamard matrix of n rows, n a power of two, after the signs.
void rotate(float* row, const std::vector<float>& signs) {
  const std::size_t n = signs.size();
  for (std::size_t i = 0; i < n; ++i) row[i] *= signs[i];
  for (std::size_t half = 1; half < n; half *= 2)
    for (std::size_t begin = 0; begin < n; begin += 2 * half)
      for (std::size_t i = begin; i < begin + half; ++i) {
        const float sum = row[i] + row[i + half];
        row[i + half] = row[i] - row[i + half];
        row[i] = sum;
      }
  const float norm = 1 / std::sqrt(static_cast<float>(n));
  for (std::size_t i = 0; i < n; ++i) row[i] *= norm;
}

void rotate_all(Values& tensor, const std::vector<float>& signs) {
  const std::size_t dim = signs.size();
  parallel_for(static_cast<std::int64_t>(tensor.size() / dim), 0,
               [&](std::int64_t row) { rotate(tensor.data() + static_cast<std::size_t>(row) * dim, signs); });
}

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

}  // namespace

std::span<const QuantisationMode> quantisation_modes() {
  return kModes;
}

const QuantisationMode& find_quantisation_mode(std::string_view name) {
  std::vector<std::string_view> names;
  for (const QuantisationMode& mode : kModes) {
    if (mode.name == name) return mode;
    names.push_back(mode.name);
  }
  throw Error(ErrorCode::usage, fmt::format("unknown mode \"{}\"; {}", name, one_of(name, names)), std::string(name));
}

Workload quantised_by(const Workload& workload, const QuantisationMode& mode) {
  const std::string text = to_string(workload);
  if (workload.quantised)
    throw Error(ErrorCode::invalid_workload,
                fmt::format("{} is quantised already; a mode says how the inputs of one that is not are", text), text);
  if (mode.smooths && (workload.softcap != 0 || workload.sinks))
    throw Error(ErrorCode::unsupported,
                fmt::format("{} takes the mean of K out, which moves all scores of a row: with {} that is another "
                            "result; take a mode without smoothing",
                            mode.name, workload.sinks ? "attention sinks" : "a softcap"),
                std::string(mode.name));
  if (mode.rotates && !std::has_single_bit(static_cast<std::uint64_t>(workload.dim)))
    throw Error(ErrorCode::unsupported,
                fmt::format("{} rotates rows by a Hadamard matrix, whose size is a power of two; the head dim is {}",
                            mode.name, workload.dim),
                std::to_string(workload.dim));
  return parse_workload(fmt::format("{}:quantised={}", text, mode.tensors));
}

InputValues prepared_by(const Workload& workload, const QuantisationMode& mode, InputValues values,
                        std::uint64_t seed) {
  for (Values* tensor : {&values.q, &values.k, &values.v})
    parallel_for(static_cast<std::int64_t>(tensor->size()), 0, [&](std::int64_t i) {
      float& x = (*tensor)[static_cast<std::size_t>(i)];
      x = round_to(workload.dtype, x);
    });
  if (mode.smooths) take_mean_out(workload, values);
  if (!mode.rotates) return values;
  std::vector<float> signs(static_cast<std::size_t>(workload.dim));
  Random random(seed);
  for (float& sign : signs) sign = random.chance(0.5) ? -1.0F : 1.0F;
  rotate_all(values.q, signs);
  rotate_all(values.k, signs);
  return values;
}

Accuracy cost_of(const Workload& workload, const QuantisationMode& mode, const InputValues& values,
                 const std::vector<RowIndex>& rows, std::uint64_t seed) {
  const Workload quantised = quantised_by(workload, mode);
  const Scene plain(workload, values, LaunchPlan{}, 1);
  const std::vector<RowIndex> there = rows_that_are_there(plain, rows);
  const ReferenceRows exact = reference_attention(workload, plain.tensors(), there);
  const Scene given(quantised, prepared_by(workload, mode, values, seed), LaunchPlan{}, 1);
  const ReferenceRows out = reference_attention(quantised, given.tensors(), there);
  return accuracy_of(there, out.out, exact.out);
}

}  // namespace heed::verify
