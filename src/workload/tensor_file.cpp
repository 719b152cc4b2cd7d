#include "workload/tensor_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/digest.hpp"
#include "base/files.hpp"
#include "workload/half.hpp"

namespace heed {
namespace fs = std::filesystem;
namespace {

// The format's own limit (safetensors: MAX_HEADER_SIZE).
constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

[[noreturn]] void fail(const fs::path& path, const std::string& why) {
  throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", path.string(), why), path.string());
}

template <typename Integer>
Integer load_little_endian(std::string_view bytes) {
  Integer value = 0;
  for (std::size_t i = sizeof(Integer); i-- > 0;)
    value = static_cast<Integer>((value << 8) | static_cast<unsigned char>(bytes[i]));
  return value;
}

// Bytes of a shape; refuses zero, negative and overflowing shapes.
std::uint64_t checked_bytes(const fs::path& path, std::string_view name, const std::vector<std::int64_t>& shape,
                            Dtype dtype) {
  std::uint64_t bytes = size_of(dtype);
  for (const std::int64_t extent : shape) {
    if (extent < 1) fail(path, fmt::format("tensor \"{}\" has shape {}; every extent must be at least 1", name, shape));
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes) || bytes > (std::uint64_t{1} << 42))
      fail(path, fmt::format("tensor \"{}\" has shape {}, which is too large", name, shape));
  }
  return bytes;
}

void check_finite(const fs::path& path, std::string_view name, const HostTensor& tensor) {
  const std::size_t count = tensor.bytes.size() / size_of(tensor.dtype);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load_element(tensor.dtype, tensor.bytes.data(), i);
    if (!std::isfinite(value))
      fail(path, fmt::format("tensor \"{}\" holds {} at element {}; Heed proves kernels on finite inputs", name,
                             std::isnan(value) ? "NaN" : "infinity", i));
  }
}

HostTensor tensor_of(const fs::path& path, const nlohmann::json& header, std::string_view data, const char* name) {
  const auto entry = header.find(name);
  if (entry == header.end()) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : header.items())
      if (key != "__metadata__") keys.push_back(key);
    fail(path,
         fmt::format("it has no tensor \"{}\" (it has: {}); the keys must be q, k and v", name, fmt::join(keys, ", ")));
  }
  HostTensor tensor;
  try {
    const auto dtype = entry->at("dtype").get<std::string>();
    if (dtype == "F16") {
      tensor.dtype = Dtype::fp16;
    } else if (dtype == "BF16") {
      tensor.dtype = Dtype::bf16;
    } else if (dtype == "F32") {
      tensor.dtype = Dtype::fp32;
    } else {
      fail(path, fmt::format("tensor \"{}\" has dtype {}; F16, BF16 and F32 are supported", name, dtype));
    }
    tensor.shape = entry->at("shape").get<std::vector<std::int64_t>>();
    const auto begin = entry->at("data_offsets").at(0).get<std::uint64_t>();
    const auto end = entry->at("data_offsets").at(1).get<std::uint64_t>();
    const std::uint64_t bytes = checked_bytes(path, name, tensor.shape, tensor.dtype);
    if (end < begin || end - begin != bytes)
      fail(path, fmt::format("tensor \"{}\" claims {} bytes for shape {}, which needs {}", name, end - begin,
                             tensor.shape, bytes));
    if (end > data.size())
      fail(path, fmt::format("it is truncated: tensor \"{}\" ends at byte {} of the data, which has {}", name, end,
                             data.size()));
    tensor.bytes.assign(data.substr(begin, bytes));
  } catch (const nlohmann::json::exception&) {
    fail(path, fmt::format("the header entry of tensor \"{}\" is malformed", name));
  }
  return tensor;
}

// The dictionary of a .npy header is a Python literal with three known keys; this reads exactly that.
class NpyHeader {
 public:
  NpyHeader(const fs::path& path, std::string_view text) : path_(path), text_(text) {}

  [[nodiscard]] std::string_view value_of(std::string_view key) const {
    const std::string quoted = fmt::format("'{}':", key);
    const std::size_t at = text_.find(quoted);
    if (at == std::string_view::npos) fail(path_, fmt::format("its .npy header has no {}", quoted));
    std::string_view rest = text_.substr(at + quoted.size());
    while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
    return rest;
  }

  [[nodiscard]] Dtype dtype() const {
    const std::string_view descr = value_of("descr");
    if (descr.substr(0, 5) == "'<f2'") return Dtype::fp16;
    if (descr.substr(0, 5) == "'<f4'") return Dtype::fp32;
    fail(path_, fmt::format("its dtype is {}; '<f2' and '<f4' are supported (bf16 comes in safetensors)",
                            descr.substr(0, descr.find(','))));
  }

  void require_c_order() const {
    if (value_of("fortran_order").substr(0, 5) != "False") fail(path_, "it is in Fortran order; save it in C order");
  }

  [[nodiscard]] std::vector<std::int64_t> shape() const {
    std::string_view rest = value_of("shape");
    std::vector<std::int64_t> shape;
    if (rest.empty() || rest.front() != '(') fail(path_, "the shape in its .npy header is malformed");
    rest.remove_prefix(1);
    while (!rest.empty() && rest.front() != ')') {
      std::int64_t value = 0;
      std::size_t digits = 0;
      while (digits < rest.size() && rest[digits] >= '0' && rest[digits] <= '9') {
        if (value > (std::int64_t{1} << 40)) fail(path_, "the shape in its .npy header is too large");
        value = value * 10 + (rest[digits] - '0');
        ++digits;
      }
      if (digits == 0) fail(path_, "the shape in its .npy header is malformed");
      shape.push_back(value);
      rest.remove_prefix(digits);
      while (!rest.empty() && (rest.front() == ',' || rest.front() == ' ')) rest.remove_prefix(1);
    }
    return shape;
  }

 private:
  const fs::path& path_;
  std::string_view text_;
};

HostTensor read_npy(const fs::path& path, const char* name) {
  const std::string content = read_file(path, ErrorCode::invalid_input);
  const std::string_view view = content;
  if (view.substr(0, 6) != std::string_view("\x93NUMPY", 6))
    fail(path, "it is no .npy file (the magic bytes are missing)");
  if (view.size() < 10) fail(path, "it is truncated: the .npy header is incomplete");
  const int major = view[6];
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  if (major < 1 || major > 3) fail(path, fmt::format("its .npy version is {}; versions 1 to 3 are known", major));
  if (view.size() < 8 + length_bytes) fail(path, "it is truncated: the .npy header is incomplete");
  const std::uint64_t header_bytes = major == 1 ? load_little_endian<std::uint16_t>(view.substr(8, 2))
                                                : load_little_endian<std::uint32_t>(view.substr(8, 4));
  if (view.size() < 8 + length_bytes + header_bytes) fail(path, "it is truncated: the .npy header is incomplete");
  const NpyHeader header(path, view.substr(8 + length_bytes, header_bytes));
  HostTensor tensor;
  tensor.dtype = header.dtype();
  header.require_c_order();
  tensor.shape = header.shape();
  const std::uint64_t bytes = checked_bytes(path, name, tensor.shape, tensor.dtype);
  const std::string_view data = view.substr(8 + length_bytes + header_bytes);
  if (data.size() < bytes)
    fail(path,
         fmt::format("it is truncated: shape {} needs {} bytes of data, it has {}", tensor.shape, bytes, data.size()));
  tensor.bytes.assign(data.substr(0, bytes));
  return tensor;
}

QkvTensors assemble(const fs::path& q_path, const fs::path& k_path, const fs::path& v_path, HostTensor q, HostTensor k,
                    HostTensor v, Layout layout) {
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

  QkvTensors tensors;
  tensors.workload = {.batch = axis(q, 0),
                      .heads = axis(q, head_axis),
                      .heads_kv = axis(k, head_axis),
                      .len_q = axis(q, row_axis),
                      .len_k = axis(k, row_axis),
                      .dim = axis(q, 3),
                      .dim_v = axis(v, 3),
                      .dtype = q.dtype,
                      .mask = Mask::none,
                      .layout = layout,
                      .scale = std::nullopt};
  validate(tensors.workload);
  check_finite(q_path, "q", q);
  check_finite(k_path, "k", k);
  check_finite(v_path, "v", v);
  tensors.digest = Digester().add(to_string(tensors.workload)).add(q.bytes).add(k.bytes).add(v.bytes).hex();
  tensors.q = std::move(q);
  tensors.k = std::move(k);
  tensors.v = std::move(v);
  return tensors;
}

}  // namespace

QkvTensors read_qkv_safetensors(const fs::path& path, Layout layout) {
  const std::string content = read_file(path, ErrorCode::invalid_input);
  const std::string_view view = content;
  if (view.size() < 8) fail(path, "it is truncated: a safetensors file starts with 8 bytes of header length");
  const auto header_bytes = load_little_endian<std::uint64_t>(view.substr(0, 8));
  if (header_bytes > kMaxSafetensorsHeader) fail(path, "it is no safetensors file: its header would be over 100 MB");
  if (header_bytes > view.size() - 8) fail(path, "it is truncated: the header is incomplete");
  const auto header = nlohmann::json::parse(view.substr(8, header_bytes), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) fail(path, "it is no safetensors file: its header is no JSON object");
  const std::string_view data = view.substr(8 + header_bytes);
  HostTensor q = tensor_of(path, header, data, "q");
  HostTensor k = tensor_of(path, header, data, "k");
  HostTensor v = tensor_of(path, header, data, "v");
  return assemble(path, path, path, std::move(q), std::move(k), std::move(v), layout);
}

QkvTensors read_qkv_npy(const fs::path& q, const fs::path& k, const fs::path& v, Layout layout) {
  HostTensor q_tensor = read_npy(q, "q");
  HostTensor k_tensor = read_npy(k, "k");
  HostTensor v_tensor = read_npy(v, "v");
  return assemble(q, k, v, std::move(q_tensor), std::move(k_tensor), std::move(v_tensor), layout);
}

}  // namespace heed
