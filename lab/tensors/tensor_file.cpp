#include "tensors/tensor_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/digest.hpp"
#include "base/limits.hpp"
#include "tensors/npy.hpp"
#include "tensors/safetensors.hpp"
#include "tensors/tensor_shape.hpp"
#include "workload/half.hpp"

namespace heed {
namespace fs = std::filesystem;
using tensor_files::fail;

namespace {

void check_finite(const fs::path& path, std::string_view name, const HostTensor& tensor) {
  const std::size_t count = tensor.bytes.size() / size_of(tensor.dtype);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load_element(tensor.dtype, tensor.bytes.data(), i);
    if (!std::isfinite(value))
      fail(path, fmt::format("tensor \"{}\" holds {} at element {}; Heed proves kernels on finite inputs", name,
                             std::isnan(value) ? "NaN" : "infinity", i));
  }
}

constexpr const char* kOffsets[] = {"cu_seqlens_q", "cu_seqlens_k"};  // where entries of a ragged batch begin
constexpr std::int64_t kMostRaggedRows = std::int64_t{1} << 24;       // NamedNumbers are exact up to here

// The workload of three tensors whose shapes and dtypes are known; of three dimensions one entry of all rows.
Workload workload_of(const fs::path& q_path, const fs::path& k_path, const fs::path& v_path, const HostTensor& q,
                     const HostTensor& k, const HostTensor& v, Layout layout) {
  const std::size_t rank = q.shape.size() == 3 ? 3 : 4;
  const auto require_rank = [&](const fs::path& path, const char* name, const HostTensor& tensor) {
    if (tensor.shape.size() != rank)
      fail(path, fmt::format("tensor \"{}\" has shape {}; {} dimensions are needed{}", name, tensor.shape,
                             rank == 3 ? "three" : "four", rank == 3 ? ", as q has them" : ""));
  };
  require_rank(q_path, "q", q);
  require_rank(k_path, "k", k);
  require_rank(v_path, "v", v);
  if (k.dtype != q.dtype || v.dtype != q.dtype)
    fail(k_path, fmt::format("the dtypes differ: q is {}, k is {}, v is {}", to_string(q.dtype), to_string(k.dtype),
                             to_string(v.dtype)));
  const int head_axis = layout == Layout::bhld ? 1 : 2;
  const int row_axis = layout == Layout::bhld ? 2 : 1;
  const auto axis = [&](const HostTensor& tensor, int index) {
    const std::size_t at = static_cast<std::size_t>(index) + rank;
    return at < 4 ? 1 : tensor.shape[at - 4];
  };
  const auto mismatch = [&](const fs::path& path, const char* what) {
    fail(path,
         fmt::format("{}: q is {}, k is {}, v is {} (layout {})", what, q.shape, k.shape, v.shape, to_string(layout)));
  };
  if (axis(k, 0) != axis(q, 0) || axis(v, 0) != axis(q, 0)) mismatch(k_path, "the batch sizes differ");
  if (axis(k, 3) != axis(q, 3)) mismatch(k_path, "the head dims of q and k differ");
  if (axis(v, head_axis) != axis(k, head_axis)) mismatch(v_path, "the head counts of k and v differ");
  if (axis(v, row_axis) != axis(k, row_axis)) mismatch(v_path, "the lengths of k and v differ");

  const Workload workload = {.batch = axis(q, 0),
                             .heads = axis(q, head_axis),
                             .heads_kv = axis(k, head_axis),
                             .len_q = axis(q, row_axis),
                             .len_k = axis(k, row_axis),
                             .dim = axis(q, 3),
                             .dim_v = axis(v, 3),
                             .dtype = q.dtype,
                             .mask = Mask::none,
                             .window = {},
                             .layout = layout,
                             .scale = std::nullopt};
  validate(workload);
  const auto bytes = [](const HostTensor& tensor) {
    double count = static_cast<double>(size_of(tensor.dtype));
    for (const std::int64_t extent : tensor.shape) count *= static_cast<double>(extent);
    return count;
  };
  require_memory(bytes(q) + bytes(k) + bytes(v), fmt::format("reading q, k and v of {}", q_path.string()));
  return workload;
}

// What a file says of where the entries of a ragged batch begin: `rows` of q, or of k.
std::vector<std::int64_t> offsets_of(const fs::path& path, const SafetensorsFile& file, const char* name,
                                     std::int64_t rows) {
  const std::optional<NamedNumbers> numbers = file.numbers(name);
  if (!numbers)
    fail(path, fmt::format("its q has three dimensions, as a ragged batch, and it has no tensor {} of numbers; four "
                           "dimensions are needed, or {} and {} of where each entry begins",
                           name, kOffsets[0], kOffsets[1]));
  if (rows > kMostRaggedRows)
    fail(path, fmt::format("a ragged batch of {} rows; it has at most {}", rows, kMostRaggedRows));
  const std::vector<float>& values = numbers->values;
  if (numbers->shape.size() != 1 || values.size() < 2)
    fail(path, fmt::format("tensor \"{}\" has shape {}; it is (batch + 1)", name, numbers->shape));
  std::vector<std::int64_t> offsets;
  for (const float value : values) {
    const bool fits = value == std::floor(value) && value >= 0 && value <= static_cast<float>(rows);
    offsets.push_back(fits ? static_cast<std::int64_t>(value) : -1);
    if (!fits || offsets.back() < offsets[offsets.size() - (offsets.size() > 1 ? 2 : 1)])
      fail(path, fmt::format("tensor \"{}\" holds {} at element {}; its numbers are whole, from 0 to {}, and never "
                             "decrease",
                             name, value, offsets.size() - 1, rows));
  }
  if (offsets.front() != 0 || offsets.back() != rows)
    fail(path, fmt::format("tensor \"{}\" goes from {} to {}; the first entry begins at 0, and the last ends with the "
                           "{} rows",
                           name, offsets.front(), offsets.back(), rows));
  return offsets;
}

// Of the workload of all rows, and of its lengths, those of the entries.
void divide(const fs::path& path, const SafetensorsFile& file, QkvTensors& tensors) {
  Workload& w = tensors.workload;
  const std::vector<std::int64_t> q = offsets_of(path, file, kOffsets[0], w.len_q);
  const std::vector<std::int64_t> k = offsets_of(path, file, kOffsets[1], w.len_k);
  if (q.size() != k.size())
    fail(path, fmt::format("{} has {} numbers and {} has {}; both have one more than the batch has entries",
                           kOffsets[0], q.size(), kOffsets[1], k.size()));
  w.ragged = true;
  w.batch = static_cast<std::int64_t>(q.size()) - 1;
  w.len_q = w.len_k = 0;
  for (std::size_t b = 0; b + 1 < q.size(); ++b) {
    const EntryLengths entry{q[b + 1] - q[b], k[b + 1] - k[b]};
    w.len_q = std::max(w.len_q, entry.len_q);
    w.len_k = std::max(w.len_k, entry.len_k);
    tensors.lengths.push_back(entry);
  }
  validate(w);
}

// Once the bytes are there.
void finish(QkvTensors& tensors, const fs::path& q_path, const fs::path& k_path, const fs::path& v_path) {
  check_finite(q_path, "q", tensors.q);
  check_finite(k_path, "k", tensors.k);
  check_finite(v_path, "v", tensors.v);
  Digester digester;
  digester.add(to_string(tensors.workload)).add(tensors.q.bytes).add(tensors.k.bytes).add(tensors.v.bytes);
  for (const auto& [name, numbers] : tensors.features)
    digester.add(name).add(
        {reinterpret_cast<const char*>(numbers.values.data()), numbers.values.size() * sizeof(float)});
  for (const EntryLengths& entry : tensors.lengths) digester.add(fmt::format("{} {}", entry.len_q, entry.len_k));
  tensors.digest = digester.hex();
}

}  // namespace

QkvTensors read_qkv_safetensors(const fs::path& path, Layout layout) {
  const SafetensorsFile file(path);
  QkvTensors tensors;
  tensors.q = file.describe("q");
  tensors.k = file.describe("k");
  tensors.v = file.describe("v");
  const bool is_ragged = tensors.q.shape.size() == 3;
  tensors.workload = workload_of(path, path, path, tensors.q, tensors.k, tensors.v, is_ragged ? Layout::blhd : layout);
  if (is_ragged) divide(path, file, tensors);
  tensors.q.bytes = file.bytes_of("q");
  tensors.k.bytes = file.bytes_of("k");
  tensors.v.bytes = file.bytes_of("v");
  for (const std::string_view name : kFeatureTensors)
    if (auto numbers = file.numbers(std::string(name)))
      tensors.features.emplace(std::string(name), std::move(*numbers));
  if (!is_ragged)
    for (const char* const name : kOffsets)
      if (auto numbers = file.numbers(name)) tensors.features.emplace(name, std::move(*numbers));
  finish(tensors, path, path, path);
  return tensors;
}

QkvTensors read_qkv_npy(const fs::path& q, const fs::path& k, const fs::path& v, Layout layout) {
  const NpyFile q_file(q, "q");
  const NpyFile k_file(k, "k");
  const NpyFile v_file(v, "v");
  QkvTensors tensors;
  tensors.q = q_file.describe();
  tensors.k = k_file.describe();
  tensors.v = v_file.describe();
  if (tensors.q.shape.size() == 3)
    fail(q,
         fmt::format("tensor \"q\" has shape {}; four dimensions are needed, or a .safetensors file of a ragged batch",
                     tensors.q.shape));
  tensors.workload = workload_of(q, k, v, tensors.q, tensors.k, tensors.v, layout);
  tensors.q.bytes = q_file.bytes();
  tensors.k.bytes = k_file.bytes();
  tensors.v.bytes = v_file.bytes();
  finish(tensors, q, k, v);
  return tensors;
}

}  // namespace heed
