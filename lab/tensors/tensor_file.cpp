#include "tensors/tensor_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

// The workload of three tensors whose shapes and dtypes are known.
Workload workload_of(const fs::path& q_path, const fs::path& k_path, const fs::path& v_path, const HostTensor& q,
                     const HostTensor& k, const HostTensor& v, Layout layout) {
  const auto require_4d = [](const fs::path& path, const char* name, const HostTensor& tensor) {
    if (tensor.shape.size() != 4)
      fail(path, fmt::format("tensor \"{}\" has shape {}; four dimensions are needed", name, tensor.shape));
  };
  require_4d(q_path, "q", q);
  require_4d(k_path, "k", k);
  require_4d(v_path, "v", v);
  if (k.dtype != q.dtype || v.dtype != q.dtype)
    fail(k_path, fmt::format("the dtypes differ: q is {}, k is {}, v is {}", to_string(q.dtype), to_string(k.dtype),
                             to_string(v.dtype)));
  const int head_axis = layout == Layout::bhld ? 1 : 2;
  const int row_axis = layout == Layout::bhld ? 2 : 1;
  const auto axis = [](const HostTensor& tensor, int index) { return tensor.shape[static_cast<std::size_t>(index)]; };
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
  tensors.digest = digester.hex();
}

}  // namespace

QkvTensors read_qkv_safetensors(const fs::path& path, Layout layout) {
  const SafetensorsFile file(path);
  QkvTensors tensors;
  tensors.q = file.describe("q");
  tensors.k = file.describe("k");
  tensors.v = file.describe("v");
  tensors.workload = workload_of(path, path, path, tensors.q, tensors.k, tensors.v, layout);
  tensors.q.bytes = file.bytes_of("q");
  tensors.k.bytes = file.bytes_of("k");
  tensors.v.bytes = file.bytes_of("v");
  for (const std::string_view name : kFeatureTensors)
    if (auto numbers = file.numbers(std::string(name)))
      tensors.features.emplace(std::string(name), std::move(*numbers));
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
  tensors.workload = workload_of(q, k, v, tensors.q, tensors.k, tensors.v, layout);
  tensors.q.bytes = q_file.bytes();
  tensors.k.bytes = k_file.bytes();
  tensors.v.bytes = v_file.bytes();
  finish(tensors, q, k, v);
  return tensors;
}

}  // namespace heed
