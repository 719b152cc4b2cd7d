/// Real tensors instead of random ones: `.safetensors` (https://huggingface.co/docs/safetensors) and `.npy`
/// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "heed/heed.hpp"
#include "workload/features.hpp"

namespace heed {

/// One dense row-major tensor.
struct HostTensor {
  Dtype dtype = Dtype::fp32;
  std::vector<std::int64_t> shape;
  std::string bytes;  ///< little-endian elements, product(shape) * size_of(dtype) bytes
};

/// A tensor of which the values matter, and the dtype does not.
struct NamedNumbers {
  std::vector<std::int64_t> shape;
  std::vector<float> values;  ///< row-major
};

/// Names under which a file may hold what features take, beside "q", "k" and "v" (verify::take_given_features).
inline constexpr std::string_view kFeatureTensors[] = {
    "bias", "alibi_slopes", "relative_bias", "sinks", "out_norm_weight", "out_gate", "key_lengths", "prefix_lengths",
};

/// Q, K and V of one problem, as the user's model produced them.
struct QkvTensors {
  Workload workload;  ///< shape, dtype and layout from the files; mask and scale are the caller's to set
  HostTensor q;
  HostTensor k;
  HostTensor v;
  std::map<std::string, NamedNumbers> features;  ///< those of kFeatureTensors that the file holds, and of batches that
                                                 ///< are not ragged cu_seqlens_q and cu_seqlens_k, which none uses
  std::vector<EntryLengths> lengths;  ///< of the entries of a ragged batch, (batch); empty where they have none
  std::string digest;                 ///< over shapes, dtype and bytes, so that a stored run can say what it ran on
};

/// Reads the tensors named "q", "k" and "v" of a safetensors file and those of kFeatureTensors, and no other byte of
/// its data: a file may hold a whole model.
///
/// Three dimensions (rows of all entries, head, dim) are a ragged batch, of Layout::blhd, whose entry b has the rows
/// cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1 of q and those of cu_seqlens_k of k and v. Both are tensors of the file
/// then, (batch + 1), whole numbers that begin with 0, end with the rows and never decrease.
/// @param layout order of four dimensions in the file: bhld (batch, head, length, dim) or blhd
/// @throws Error(invalid_input) when the file is unreadable, truncated or malformed, a key is missing, a shape is
///   neither 4-D nor 3-D or does not fit the others, the dtype is none of F16, BF16, F32, or a value is NaN or
///   infinite; Error(unsupported) when the memory does not suffice
QkvTensors read_qkv_safetensors(const std::filesystem::path& path, Layout layout);

/// The same from three `.npy` files of dtype '<f2' or '<f4' in C order.
QkvTensors read_qkv_npy(const std::filesystem::path& q, const std::filesystem::path& k, const std::filesystem::path& v,
                        Layout layout);

}  // namespace heed
