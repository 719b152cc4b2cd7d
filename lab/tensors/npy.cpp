#include "tensors/npy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/files.hpp"
#include "tensors/tensor_shape.hpp"

namespace heed {
namespace fs = std::filesystem;
using tensor_files::fail;
using tensor_files::printable;

namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::uint64_t kMostNpyHeaderBytes = 1 << 20;  // NumPy itself reads 10,000 bytes unless told otherwise

// The header is a Python dictionary with three keys: 'descr' (a string), 'fortran_order' (a truth value), 'shape' (a
// tuple of numbers). Strings have either kind of quotes.
class NpyHeader {
 public:
  NpyHeader(const fs::path& path, std::string_view text) : path_(path), rest_(text) {
    expect('{');
    while (!take('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !descr) {
        skip_spaces();
        descr = !rest_.empty() && (rest_.front() == '\'' || rest_.front() == '"') ? quoted() : other_type();
      } else if (key == "fortran_order" && !fortran_order) {
        fortran_order = truth();
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        fail(path_,
             fmt::format("its .npy header has {} \"{}\"",
                         key == "descr" || key == "fortran_order" || key == "shape" ? "two keys" : "an unknown key",
                         printable(key)));
      }
      if (take('}')) break;
      expect(',');
    }
    skip_spaces();
    if (!rest_.empty()) fail(path_, "its .npy header is malformed: text follows its dictionary");
    if (!descr) fail(path_, "its .npy header has no 'descr'");
    if (!fortran_order) fail(path_, "its .npy header has no 'fortran_order'");
    if (!shape) fail(path_, "its .npy header has no 'shape'");
  }

  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;

 private:
  void skip_spaces() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n' || rest_.front() == '\t'))
      rest_.remove_prefix(1);
  }

  bool take(char c) {
    skip_spaces();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char c) {
    if (!take(c)) fail(path_, fmt::format("its .npy header is malformed: '{}' is missing", c));
  }

  std::string quoted() {
    skip_spaces();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"'))
      fail(path_, "its .npy header is malformed: a string is missing");
    const std::size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) fail(path_, "its .npy header is malformed: a string does not end");
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }

  // A list of fields, which is the type of records.
  [[noreturn]] std::string other_type() {
    fail(path_, fmt::format("its dtype is {}; '<f2' and '<f4' are supported", printable(rest_.substr(0, 40))));
  }

  bool truth() {
    skip_spaces();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}})
      if (rest_.substr(0, word.size()) == word) {
        rest_.remove_prefix(word.size());
        return value;
      }
    fail(path_, "its .npy header is malformed: fortran_order is neither True nor False");
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> extents;
    if (!take('(')) fail(path_, "the shape in its .npy header is malformed");
    while (!take(')')) {
      std::int64_t value = 0;
      std::size_t digits = 0;
      skip_spaces();
      while (digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9') {
        if (value > (std::int64_t{1} << 40)) fail(path_, "the shape in its .npy header is too large");
        value = value * 10 + (rest_[digits] - '0');
        ++digits;
      }
      if (digits == 0 || extents.size() == tensor_files::kMostExtents)
        fail(path_, "the shape in its .npy header is malformed");
      extents.push_back(value);
      rest_.remove_prefix(digits);
      (void)take('L');  // Python 2 wrote long numbers so
      if (take(')')) break;
      if (!take(',')) fail(path_, "the shape in its .npy header is malformed");
    }
    return extents;
  }

  const fs::path& path_;
  std::string_view rest_;
};

}  // namespace

NpyFile::NpyFile(const fs::path& path, std::string_view name) : file_(path, ErrorCode::invalid_input) {
  constexpr std::uint64_t kFixedBytes = 8;  // the magic bytes and the version
  if (file_.read(0, std::min<std::uint64_t>(file_.size(), kMagic.size())) != kMagic)
    fail(path, "it is no .npy file (the magic bytes are missing)");
  if (file_.size() < kFixedBytes) fail(path, "it is truncated: the .npy header is incomplete");
  const int major = static_cast<unsigned char>(file_.read(6, 1)[0]);
  if (major < 1 || major > 3) fail(path, fmt::format("its .npy version is {}; versions 1 to 3 are known", major));
  const std::uint64_t length_bytes = major == 1 ? 2 : 4;
  if (file_.size() < kFixedBytes + length_bytes) fail(path, "it is truncated: the .npy header is incomplete");
  const std::uint64_t header_bytes = tensor_files::little_endian(file_.read(kFixedBytes, length_bytes));
  data_begin_ = kFixedBytes + length_bytes + header_bytes;
  if (header_bytes > kMostNpyHeaderBytes) fail(path, "its .npy header would be over 1 MiB");
  if (file_.size() < data_begin_) fail(path, "it is truncated: the .npy header is incomplete");
  const std::string text = file_.read(kFixedBytes + length_bytes, header_bytes);
  const NpyHeader header(file_.path(), text);
  if (*header.descr == "<f2") {
    tensor_.dtype = Dtype::fp16;
  } else if (*header.descr == "<f4") {
    tensor_.dtype = Dtype::fp32;
  } else {
    fail(path, fmt::format("its dtype is '{}'; '<f2' and '<f4' are supported (bf16 comes in safetensors)",
                           printable(*header.descr)));
  }
  if (*header.fortran_order) fail(path, "it is in Fortran order; save it in C order (numpy.ascontiguousarray)");
  tensor_.shape = *header.shape;
  data_bytes_ = tensor_files::bytes_of(path, name, tensor_.shape, tensor_.dtype);
  if (file_.size() - data_begin_ < data_bytes_)
    fail(path, fmt::format("it is truncated: shape {} needs {} bytes of data, it has {}", tensor_.shape, data_bytes_,
                           file_.size() - data_begin_));
}

std::optional<std::string_view> npy_descr(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp16:
      return "<f2";
    case Dtype::fp32:
      return "<f4";
    case Dtype::bf16:
    case Dtype::e4m3:
    case Dtype::e5m2:
    case Dtype::int8:
      break;
  }
  return std::nullopt;
}

void write_npy(const fs::path& path, const HostTensor& tensor) {
  const std::optional<std::string_view> descr = npy_descr(tensor.dtype);
  if (!descr)
    fail(path, fmt::format("a .npy file holds fp16 or fp32, not {}; name a .safetensors file instead",
                           to_string(tensor.dtype)));
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}", *descr, fmt::join(tensor.shape, ", "));
  // The format has the data begin at a multiple of 64 bytes, and the header end with a line feed.
  constexpr std::size_t kFixedBytes = 10;
  header.resize((kFixedBytes + header.size() + 1 + 63) / 64 * 64 - kFixedBytes - 1, ' ');
  header += '\n';
  std::string content(kMagic);
  content += '\x01';
  content += '\x00';
  content += static_cast<char>(header.size() & 0xff);
  content += static_cast<char>(header.size() >> 8);
  content += header;
  content += tensor.bytes;
  write_file_atomically(path, content, ErrorCode::invalid_input);
}

}  // namespace heed
