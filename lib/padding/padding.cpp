#include "padding/padding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "compile/embedded.hpp"

namespace heed::padding {

std::span<const compile::EmbeddedFile> device_sources();

const std::string& copy_source() {
  static const std::string source = [] {
    compile::add_device_files(device_sources());
    return fmt::format(
        "#include \"lib/padding/copy_rows.cuh\"\n\n"
        "extern \"C\" __global__ void __launch_bounds__({}) {}(const heed::padding::RowCopies copies) {{\n"
        "  heed::padding::copy_rows(copies.tensors[blockIdx.y]);\n"
        "}}\n",
        kCopyThreads, kCopyEntry);
  }();
  return source;
}

std::vector<std::int64_t> padded_dims(const Workload& workload) {
  const std::int64_t least = std::max(workload.dim, workload.dim_v);
  std::vector<std::int64_t> dims;
  for (const std::int64_t dim : {32, 64, 96, 128, 192, 256, 384, 512})
    if (dim >= least) dims.push_back(dim);
  return dims;
}

Workload padded(const Workload& workload, std::int64_t dim, std::int64_t dim_v) {
  Workload w = workload;
  w.scale = workload.softmax_scale();  // by default it follows from the head dim
  w.dim = dim;
  w.dim_v = dim_v;
  w.layout = Layout::bhld;
  return w;
}

bool is_wide(const RowCopy& t) {
  const auto fits = [&](long long count) { return count * t.element_bytes % kPieceBytes == 0; };
  const auto lies = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; };
  const auto fit = [&](const TensorStrides& s) {
    return (t.batch == 1 || fits(s.batch)) && (t.heads == 1 || fits(s.head)) && (t.rows == 1 || fits(s.row));
  };
  return t.from_step == 1 && t.to_step == 1 && lies(t.from) && lies(t.to) && fit(t.from_strides) && fit(t.to_strides);
}

void copy_on_host(const RowCopy& t) {
  const int element_bytes = t.element_bytes;
  const auto bytes = static_cast<std::size_t>(element_bytes);
  const auto common = static_cast<std::size_t>(std::min(t.from_dim, t.to_dim));
  for (long long b = 0; b < t.batch; ++b)
    for (int h = 0; h < t.heads; ++h)
      for (int r = 0; r < t.rows; ++r) {
        const char* const read =
            static_cast<const char*>(t.from) +
            (b * t.from_strides.batch + h * t.from_strides.head + r * t.from_strides.row) * element_bytes;
        char* const written = static_cast<char*>(t.to) +
                              (b * t.to_strides.batch + h * t.to_strides.head + r * t.to_strides.row) * element_bytes;
        if (t.from_step == 1 && t.to_step == 1)
          std::memcpy(written, read, common * bytes);
        else
          for (std::size_t i = 0; i < common; ++i)
            std::memcpy(written + static_cast<long long>(i) * t.to_step * element_bytes,
                        read + static_cast<long long>(i) * t.from_step * element_bytes, bytes);
        for (auto i = static_cast<long long>(common); i < t.to_dim; ++i)
          std::memset(written + i * t.to_step * element_bytes, 0, bytes);
      }
}

}  // namespace heed::padding
