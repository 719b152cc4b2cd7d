#include "tensors/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/files.hpp"
#include "tensors/tensor_shape.hpp"
#include "workload/half.hpp"

namespace heed {
namespace fs = std::filesystem;
using tensor_files::fail;
using tensor_files::printable;

namespace {

// The format's own limit (safetensors: MAX_HEADER_SIZE).
constexpr std::uint64_t kMostSafetensorsHeaderBytes = 100'000'000;
constexpr std::size_t kMostNames = 12;  // in a message

// Takes a header apart while it is parsed: a document tree would take twenty times the header's bytes, and has lost
// which names came twice.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const fs::path& path) : path_(path) {}

  std::map<std::string, SafetensorsEntry> entries;

  bool start_object(std::size_t) override {
    if (depth_ == 1 && is_metadata_) {
      depth_ = 2;
      return true;
    }
    if (depth_ > 1 || in_array_) malformed();
    ++depth_;
    fields_.clear();
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      is_metadata_ = name == "__metadata__";
      tensor_ = name;
      if (is_metadata_ ? std::exchange(has_metadata_, true) : !entries.try_emplace(name).second)
        fail(path_, fmt::format("its header names \"{}\" twice", printable(name)));
      return true;
    }
    if (is_metadata_) return true;
    field_ = name;
    if (std::find(fields_.begin(), fields_.end(), name) != fields_.end() || fields_.size() == 3) malformed();
    fields_.push_back(name);
    return true;
  }

  bool end_object() override {
    if (depth_ == 2 && !is_metadata_) {
      if (fields_.size() != 3 || offsets_ != 2) malformed();
      offsets_ = 0;
    }
    --depth_;
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || is_metadata_ || in_array_ || (field_ != "shape" && field_ != "data_offsets")) malformed();
    in_array_ = true;
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && is_metadata_) return true;
    if (depth_ != 2 || in_array_ || field_ != "dtype") malformed();
    entries[tensor_].dtype = text;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) malformed();
    SafetensorsEntry& entry = entries[tensor_];
    if (field_ == "shape") {
      if (value > static_cast<std::uint64_t>(INT64_MAX)) no_whole_number(std::to_string(value));
      if (entry.shape.size() == tensor_files::kMostExtents)
        fail(path_,
             fmt::format("tensor \"{}\" has more than {} dimensions", printable(tensor_), tensor_files::kMostExtents));
      entry.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (offsets_ == 2) malformed();
    (offsets_++ == 0 ? entry.begin : entry.end) = value;
    return true;
  }

  bool number_integer(number_integer_t value) override { no_whole_number(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { no_whole_number(text); }
  bool null() override { malformed(); }
  bool boolean(bool) override { malformed(); }
  bool binary(binary_t&) override { malformed(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  [[noreturn]] void malformed() const {
    if (depth_ == 0) fail(path_, "it is no safetensors file: its header is no JSON object");
    fail(path_, fmt::format("the header entry of tensor \"{}\" is malformed; it must have a dtype, a shape and two "
                            "data_offsets",
                            printable(tensor_)));
  }
  [[noreturn]] void no_whole_number(const std::string& text) const {
    if (!in_array_) malformed();
    fail(path_, fmt::format("the {} of tensor \"{}\" hold {}; they must be whole numbers from 0 to 2^63 - 1",
                            field_ == "shape" ? "extents" : "data_offsets", printable(tensor_), printable(text)));
  }

  const fs::path& path_;
  int depth_ = 0;
  bool in_array_ = false;
  bool is_metadata_ = false;
  bool has_metadata_ = false;
  std::string tensor_;
  std::string field_;
  std::vector<std::string> fields_;
  int offsets_ = 0;
};

// Every tensor within the file, and no two in the same bytes.
void check_places(const fs::path& path, const std::map<std::string, SafetensorsEntry>& entries, std::uint64_t data) {
  std::vector<std::pair<const SafetensorsEntry*, const std::string*>> by_place;
  for (const auto& [name, entry] : entries) {
    if (entry.end < entry.begin)
      fail(path, fmt::format("tensor \"{}\" ends at byte {}, before it begins at byte {}", printable(name), entry.end,
                             entry.begin));
    if (entry.end > data)
      fail(path, fmt::format("it is truncated: tensor \"{}\" ends at byte {} of the data, which has {}",
                             printable(name), entry.end, data));
    if (entry.end > entry.begin) by_place.emplace_back(&entry, &name);
  }
  std::sort(by_place.begin(), by_place.end(),
            [](const auto& a, const auto& b) { return a.first->begin < b.first->begin; });
  for (std::size_t i = 1; i < by_place.size(); ++i)
    if (by_place[i].first->begin < by_place[i - 1].first->end)
      fail(path, fmt::format("tensors \"{}\" and \"{}\" overlap: they end at byte {} and begin at byte {}",
                             printable(*by_place[i - 1].second), printable(*by_place[i].second),
                             by_place[i - 1].first->end, by_place[i].first->begin));
}

std::string_view name_in_file(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp16:
      return "F16";
    case Dtype::bf16:
      return "BF16";
    case Dtype::fp32:
      return "F32";
    case Dtype::e4m3:
      return "F8_E4M3";
    case Dtype::e5m2:
      return "F8_E5M2";
    case Dtype::int8:
      return "I8";
  }
  throw Error(ErrorCode::internal, "a dtype without a name in safetensors");
}

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path, ErrorCode::invalid_input) {
  if (file_.size() < 8) fail(path, "it is truncated: a safetensors file starts with 8 bytes of header length");
  const std::uint64_t header_bytes = tensor_files::little_endian(file_.read(0, 8));
  if (header_bytes > kMostSafetensorsHeaderBytes)
    fail(path, "it is no safetensors file: its header would be over 100 MB");
  if (header_bytes > file_.size() - 8) fail(path, "it is truncated: the header is incomplete");
  data_begin_ = 8 + header_bytes;
  HeaderReader reader(file_.path());
  const std::string header = file_.read(8, header_bytes);
  if (!nlohmann::json::sax_parse(header, &reader))
    fail(path, "it is no safetensors file: its header is no JSON object");
  check_places(path, reader.entries, file_.size() - data_begin_);
  entries_ = std::move(reader.entries);
}

HostTensor SafetensorsFile::describe(const std::string& name) const {
  const fs::path& path = file_.path();
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    std::vector<std::string> names;
    for (const auto& [other, entry] : entries_) {
      if (names.size() == kMostNames) {
        names.push_back(fmt::format("{} more", entries_.size() - kMostNames));
        break;
      }
      names.push_back(printable(other));
    }
    fail(path, fmt::format("it has no tensor \"{}\" (it has: {}); the keys must be q, k and v", name,
                           fmt::join(names, ", ")));
  }
  const SafetensorsEntry& entry = found->second;
  HostTensor tensor;
  bool is_known = false;
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::fp32})
    if (entry.dtype == name_in_file(dtype)) tensor.dtype = dtype, is_known = true;
  if (!is_known)
    fail(path,
         fmt::format("tensor \"{}\" has dtype {}; F16, BF16 and F32 are supported", name, printable(entry.dtype)));
  tensor.shape = entry.shape;
  const std::uint64_t bytes = tensor_files::bytes_of(path, name, tensor.shape, tensor.dtype);
  if (entry.end - entry.begin != bytes)
    fail(path, fmt::format("tensor \"{}\" claims {} bytes for shape {}, which needs {}", name, entry.end - entry.begin,
                           tensor.shape, bytes));
  return tensor;
}

std::string SafetensorsFile::bytes_of(const std::string& name) const {
  const SafetensorsEntry& entry = entries_.at(name);
  return file_.read(data_begin_ + entry.begin, entry.end - entry.begin);
}

std::optional<NamedNumbers> SafetensorsFile::numbers(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return std::nullopt;
  const SafetensorsEntry& entry = found->second;
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::fp32}) {
    if (entry.dtype != name_in_file(dtype)) continue;
    NamedNumbers result{describe(name).shape, {}};
    const std::string bytes = bytes_of(name);
    result.values.resize(bytes.size() / size_of(dtype));
    for (std::size_t i = 0; i < result.values.size(); ++i) result.values[i] = load_element(dtype, bytes.data(), i);
    return result;
  }
  const std::size_t size = entry.dtype == "I32"                           ? 4
                           : entry.dtype == "I64"                         ? 8
                           : entry.dtype == "U8" || entry.dtype == "BOOL" ? 1
                                                                          : 0;
  if (size == 0) return std::nullopt;
  const std::uint64_t count = tensor_files::bytes_of(file_.path(), name, entry.shape, Dtype::int8);
  if (count > (entry.end - entry.begin) / size || entry.end - entry.begin != count * size)
    fail(file_.path(), fmt::format("tensor \"{}\" claims {} bytes for shape {} of {}", name, entry.end - entry.begin,
                                   entry.shape, entry.dtype));
  NamedNumbers result{entry.shape, {}};
  const std::string bytes = bytes_of(name);
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    std::uint64_t word = 0;
    for (std::size_t i = size; i-- > 0;) word = word << 8 | static_cast<unsigned char>(bytes[at + i]);
    const std::int64_t value = size == 4 ? static_cast<std::int32_t>(word) : static_cast<std::int64_t>(word);
    result.values.push_back(static_cast<float>(value));
  }
  return result;
}

void write_safetensors(const fs::path& path, const std::map<std::string, HostTensor>& tensors) {
  nlohmann::ordered_json header;
  std::uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", name_in_file(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned to eight bytes
  std::string content;
  content.reserve(8 + text.size() + at);
  for (int i = 0; i < 8; ++i) content += static_cast<char>(text.size() >> (8 * i) & 0xff);
  content += text;
  for (const auto& [name, tensor] : tensors) content += tensor.bytes;
  write_file_atomically(path, content, ErrorCode::invalid_input);
}

}  // namespace heed
