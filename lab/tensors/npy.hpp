/// The .npy format, versions 1 to 3 (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
#pragma once

#include <optional>
#include <string_view>

#include "tensors/ranged_file.hpp"
#include "tensors/tensor_file.hpp"

namespace heed {

/// A file of one tensor of which the header has been read, and the tensor has not.
class NpyFile {
 public:
  /// @param name of the tensor, for messages
  /// @throws Error(invalid_input) when the header is truncated or malformed, the dtype is neither '<f2' nor '<f4', the
  ///   order is Fortran's, or there is less data than the shape needs
  NpyFile(const std::filesystem::path& path, std::string_view name);

  /// Shape and dtype, no bytes.
  [[nodiscard]] const HostTensor& describe() const { return tensor_; }
  [[nodiscard]] std::string bytes() const { return file_.read(data_begin_, data_bytes_); }

 private:
  RangedFile file_;
  HostTensor tensor_;
  std::uint64_t data_begin_ = 0;
  std::uint64_t data_bytes_ = 0;
};

/// What a file that is written says of its elements' dtype; nothing for the dtypes of which none is written.
std::optional<std::string_view> npy_descr(Dtype dtype);

/// Writes one tensor of fp16 or fp32 in C order, replacing the file as a whole. @throws Error(invalid_input), also for
/// other dtypes
void write_npy(const std::filesystem::path& path, const HostTensor& tensor);

}  // namespace heed
