/// Tensor maps: how bulk copies see the tensors of a launch.
/// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html
#pragma once

#include <array>
#include <cstdint>

#include "kernels/attention/features.hpp"
#include "variant/family.hpp"

namespace heed {

/// What a map is encoded from: the arguments of cuTensorMapEncodeTiled that differ from tensor to tensor.
struct TensorMapShape {
  const void* address = nullptr;
  std::array<std::uint64_t, 4> extents{};        ///< elements: head dim, rows, heads, batch
  std::array<std::uint64_t, 3> strides_bytes{};  ///< from row to row, head to head, batch entry to batch entry
  std::array<std::uint32_t, 4> box{};            ///< elements of one copy: columns, rows, 1, 1
  int swizzle_bytes = 0;                         ///< 128, 64 or 32: the bytes of a box's row
  Element element = Element::fp16;
  bool operator==(const TensorMapShape&) const = default;
};

enum class MappedTensor { q, k, v, o };

/// The shape of one tensor's map. The rows of K and V end with the last key that any query attends to; where entries of
/// the batch have lengths of their own or prefixes, with the last key that one may have. Rows of all entries in one
/// tensor are those of a batch of 1, and of K and V in pages, each page counts as a batch entry. A dimension of size 1
/// is given a legal stride, for its own is never used.
/// @throws Error(unsupported) naming the tensor and what would be right: an address or stride that is no multiple of 16
/// bytes, elements of more than 16 bits, a box that no copy can move, pages that boxes do not divide
TensorMapShape tensor_map_shape(const FeatureParams& params, const TensorMapSpec& spec, MappedTensor tensor);

/// The maps of a launch; of a tensor without rows in `spec` all zero. Needs no GPU, but the driver.
/// @throws Error(unsupported) as tensor_map_shape, or when the driver has no tensor maps or refuses these
TensorMaps encode_tensor_maps(const FeatureParams& params, const TensorMapSpec& spec);

}  // namespace heed
