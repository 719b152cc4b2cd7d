#include "launch/tensor_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "heed/heed.hpp"
#include "kernels/attention/mask.hpp"
#ifdef HEED_WITH_CUDA
#include "device/cuda_driver.hpp"
#endif

namespace heed {
namespace {

constexpr std::uint64_t kAlignment = 16;  // of addresses and strides
constexpr std::uint64_t kMostStride = std::uint64_t{1} << 40;
constexpr int kMostBoxRows = 256;

struct Tensor {
  const char* name;
  Element element;
  const void* address;
  TensorStrides strides;
  int rows;
  int heads;
  int batch;  ///< batch entries, or pages
  int box_rows;
  int box_columns;
};

// Rows of a head, and how many times there are as many.
struct Rows {
  int rows;
  int batch;
};

Rows rows_of_queries(const FeatureParams& p) {
  return p.cu_seqlens_q != nullptr ? Rows{p.total_q, 1} : Rows{p.len_q, p.batch};
}

// What entries have of keys of one length each depends on numbers that the device has: all of them.
Rows rows_of_keys(const FeatureParams& p, MaskKind mask) {
  if (p.page_table != nullptr) return {p.page_size, p.pages};
  if (p.cu_seqlens_k != nullptr) return {p.total_k, 1};
  const bool differ = p.seqused_k != nullptr || p.cu_seqlens_q != nullptr || p.prefix_lengths != nullptr;
  return {differ ? p.len_k : visible_keys(mask, p.len_q - 1, p.right_offset, p.len_k), p.batch};
}

Tensor tensor_of(const FeatureParams& p, const TensorMapSpec& spec, MappedTensor tensor) {
  const Rows queries = rows_of_queries(p);
  const Rows keys = rows_of_keys(p, spec.problem.mask);
  switch (tensor) {
    case MappedTensor::q:
      return {"q",     q_element(spec.problem), p.q,         p.q_strides, queries.rows,
              p.heads, queries.batch,           spec.q_rows, spec.columns};
    case MappedTensor::k:
      return {"k",         k_element(spec.problem), p.k, p.k_strides, keys.rows, p.heads_kv, keys.batch, spec.k_rows,
              spec.columns};
    case MappedTensor::v:
      return {"v",         v_element(spec.problem), p.v, p.v_strides, keys.rows, p.heads_kv, keys.batch, spec.v_rows,
              spec.columns};
    case MappedTensor::o:
      break;
  }
  const int columns = spec.o_columns == 0 ? spec.columns : spec.o_columns;
  return {"o", spec.problem.element, p.o, p.o_strides, queries.rows, p.heads, queries.batch, spec.o_rows, columns};
}

// CUtensorMapDataType of elements that boxes hold; its numbers, as builds without CUDA have no name for them.
std::optional<int> driver_type_of(Element element) {
  switch (element) {
    case Element::fp16:
      return 6;
    case Element::bf16:
      return 9;
    case Element::e4m3:
    case Element::e5m2:
    case Element::int8:
      return 0;  // bytes
    case Element::fp32:
      return std::nullopt;  // no product takes boxes of these
  }
  return std::nullopt;
}

[[noreturn]] void refuse(const std::string& text, const std::string& value) {
  throw Error(ErrorCode::unsupported, text, value);
}

}  // namespace

TensorMapShape tensor_map_shape(const FeatureParams& params, const TensorMapSpec& spec, MappedTensor which) {
  const Tensor t = tensor_of(params, spec, which);
  const int head_dim = spec.problem.head_dim;
  const ElementFacts& element = facts_of(t.element);
  const auto element_bytes = static_cast<std::uint64_t>(element.bytes);
  if (!driver_type_of(element.element))
    refuse(fmt::format("a tensor map of {} cannot be made: boxes are of 16-bit or 8-bit elements, not {}", t.name,
                       element.name),
           std::string(element.name));
  const int box_bytes = t.box_columns * element.bytes;
  if (box_bytes != 128 && box_bytes != 64 && box_bytes != 32)
    refuse(fmt::format("a tensor map of {} cannot be made: a box has {}, {} or {} columns, not {}", t.name,
                       128 / element.bytes, 64 / element.bytes, 32 / element.bytes, t.box_columns),
           std::to_string(t.box_columns));
  if (spec.l2_bytes != 0 && spec.l2_bytes != 64 && spec.l2_bytes != 128 && spec.l2_bytes != 256)
    refuse(fmt::format("a tensor map of {} cannot be made: the L2 fetches 0, 64, 128 or 256 bytes at once, not {}",
                       t.name, spec.l2_bytes),
           std::to_string(spec.l2_bytes));
  // What a box holds beyond the head dim is read as zeros.
  if (head_dim <= 0 || static_cast<std::uint64_t>(head_dim) * element_bytes % kAlignment != 0)
    refuse(fmt::format("a tensor map of {} cannot be made: the head dim {} is no multiple of {} (16 bytes)", t.name,
                       head_dim, kAlignment / element_bytes),
           std::to_string(head_dim));
  if (t.box_rows < 1 || t.box_rows > kMostBoxRows)
    refuse(fmt::format("a tensor map of {} cannot be made: a box has 1 to {} rows, not {}", t.name, kMostBoxRows,
                       t.box_rows),
           std::to_string(t.box_rows));
  const bool has_pages = params.page_table != nullptr && (which == MappedTensor::k || which == MappedTensor::v);
  if (has_pages && t.rows % t.box_rows != 0)
    refuse(fmt::format("a tensor map of {} cannot be made: pages of {} keys are no multiple of a box's {} rows", t.name,
                       t.rows, t.box_rows),
           std::to_string(t.rows));
  const auto address = reinterpret_cast<std::uintptr_t>(t.address);
  if (address == 0 || address % kAlignment != 0)
    refuse(
        fmt::format("{} lies at address {:#x}; bulk copies need a multiple of {} bytes", t.name, address, kAlignment),
        fmt::format("{:#x}", address));

  TensorMapShape shape;
  shape.address = t.address;
  // Of a tensor without rows, as a batch of empty entries has, nothing is loaded, and strides may be zero.
  const bool has_rows = t.rows > 0;
  shape.extents = {static_cast<std::uint64_t>(head_dim), static_cast<std::uint64_t>(std::max(1, t.rows)),
                   static_cast<std::uint64_t>(t.heads), static_cast<std::uint64_t>(t.batch)};
  shape.box = {static_cast<std::uint32_t>(t.box_columns), static_cast<std::uint32_t>(t.box_rows), 1, 1};
  shape.swizzle_bytes = box_bytes;
  shape.element = t.element;
  const std::array<long long, 3> strides = {t.strides.row, t.strides.head, t.strides.batch};
  constexpr std::array<const char*, 3> kNames = {"row", "head", "batch"};
  for (std::size_t i = 0; i < strides.size(); ++i) {
    const bool legal = strides[i] > 0 && static_cast<std::uint64_t>(strides[i]) < kMostStride / element_bytes &&
                       static_cast<std::uint64_t>(strides[i]) * element_bytes % kAlignment == 0;
    if (!legal && has_rows && shape.extents[i + 1] > 1)
      refuse(fmt::format("the {} stride of {} is {} elements; bulk copies need a positive multiple of {} elements "
                         "({} bytes) below 2^39",
                         kNames[i], t.name, strides[i], kAlignment / element_bytes, kAlignment),
             std::to_string(strides[i]));
    shape.strides_bytes[i] = legal ? static_cast<std::uint64_t>(strides[i]) * element_bytes
                                   : static_cast<std::uint64_t>(head_dim) * element_bytes;
  }
  return shape;
}

#ifdef HEED_WITH_CUDA

TensorMaps encode_tensor_maps(const FeatureParams& params, const TensorMapSpec& spec) {
  static_assert(CU_TENSOR_MAP_DATA_TYPE_UINT8 == 0 && CU_TENSOR_MAP_DATA_TYPE_FLOAT16 == 6 &&
                CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 == 9);
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) <= alignof(CUtensorMap));
  const auto encode = cuda_driver().tensor_map_encode_tiled;
  if (encode == nullptr)
    refuse("the NVIDIA driver has no tensor maps (cuTensorMapEncodeTiled), which this variant's bulk copies need",
           "cuTensorMapEncodeTiled");
  TensorMaps maps{};
  const auto add = [&](TensorMap& map, MappedTensor tensor, int rows, const char* name) {
    if (rows == 0) return;
    const TensorMapShape shape = tensor_map_shape(params, spec, tensor);
    constexpr std::array<cuuint32_t, 4> kEveryElement = {1, 1, 1, 1};
    const CUtensorMapSwizzle swizzle = shape.swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : shape.swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                   : CU_TENSOR_MAP_SWIZZLE_32B;
    const CUtensorMapL2promotion promotion = spec.l2_bytes == 0     ? CU_TENSOR_MAP_L2_PROMOTION_NONE
                                             : spec.l2_bytes == 64  ? CU_TENSOR_MAP_L2_PROMOTION_L2_64B
                                             : spec.l2_bytes == 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
                                                                    : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    CUtensorMap encoded{};
    const CUresult result =
        encode(&encoded, static_cast<CUtensorMapDataType>(*driver_type_of(shape.element)),
               static_cast<cuuint32_t>(shape.extents.size()), const_cast<void*>(shape.address), shape.extents.data(),
               shape.strides_bytes.data(), shape.box.data(), kEveryElement.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
               swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
      refuse(fmt::format("the NVIDIA driver refuses the tensor map of {}: {}", name, cuda_error_text(result)), name);
    std::memcpy(&map, &encoded, sizeof map);
  };
  add(maps.q, MappedTensor::q, spec.q_rows, "q");
  add(maps.k, MappedTensor::k, spec.k_rows, "k");
  add(maps.v, MappedTensor::v, spec.v_rows, "v");
  add(maps.o, MappedTensor::o, spec.o_rows, "o");
  return maps;
}

#else

TensorMaps encode_tensor_maps(const FeatureParams&, const TensorMapSpec&) {
  refuse("this build has no CUDA support", "cuda");
}

#endif

}  // namespace heed
