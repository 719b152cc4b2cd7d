/// The safetensors format (https://huggingface.co/docs/safetensors): eight bytes of header length, a JSON header that
/// says where each tensor lies, the tensors.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tensors/ranged_file.hpp"
#include "tensors/tensor_file.hpp"

namespace heed {

/// One entry of a header. Offsets count from the end of the header.
struct SafetensorsEntry {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A file of tensors of which the header has been read, and the tensors have not.
class SafetensorsFile {
 public:
  /// @throws Error(invalid_input) when the header is truncated, over the format's 100 MB, no JSON, names a tensor
  /// twice,
  ///   has a shape or an offset that is no whole number, or tensors that overlap or reach past the end of the file
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// Shape and dtype of a tensor, no bytes. @throws Error(invalid_input) when there is none of that name, its dtype is
  ///   none of F16, BF16 and F32, or its bytes are not those of its shape
  [[nodiscard]] HostTensor describe(const std::string& name) const;
  /// The bytes of a tensor that `describe` accepts.
  [[nodiscard]] std::string bytes_of(const std::string& name) const;
  /// Shape and values of a tensor in F16, BF16, F32, I32, I64, U8 or BOOL. Nothing where there is none of that name and
  /// of these dtypes. @throws Error(invalid_input) where its bytes are not those of its shape
  [[nodiscard]] std::optional<NamedNumbers> numbers(const std::string& name) const;

 private:
  RangedFile file_;
  std::uint64_t data_begin_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
};

/// Writes tensors in the order of their names, replacing the file as a whole. @throws Error(invalid_input)
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, HostTensor>& tensors);

}  // namespace heed
