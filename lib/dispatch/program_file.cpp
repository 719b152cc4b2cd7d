#include "dispatch/program_file.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/digest.hpp"
#include "base/files.hpp"
#include "base/version.hpp"
#include "dispatch/contract.hpp"
#include "dispatch/provenance_json.hpp"

namespace heed::dispatch {
namespace {

using nlohmann::json;

constexpr std::string_view kMagic = "HEEDPROG";
constexpr std::uint32_t kFileVersion = 1;
constexpr std::size_t kDigestBytes = 32;
constexpr std::size_t kHeaderBytes = kMagic.size() + 4 + 4 + kDigestBytes;
constexpr std::uint64_t kMostImageBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 30;  // the library's own takes 40 MiB at most
// Deflate makes at most 258 bytes of two bits: a longer image is no image, and no memory is taken for it.
// https://zlib.net/zlib_tech.html
constexpr std::uint64_t kMostInflation = 1032;

[[noreturn]] void refuse(const std::string& name, std::string_view what) {
  throw Error(ErrorCode::programs,
              fmt::format("{} {}; make it anew with heed programs build or heed book add, or take another copy of it",
                          name, what),
              name);
}

std::uint32_t number_at(std::string_view bytes, std::size_t offset) {
  std::uint32_t value = 0;
  for (int i = 3; i >= 0; --i)
    value = value << 8 | static_cast<unsigned char>(bytes[offset + static_cast<std::size_t>(i)]);
  return value;
}
void append_number(std::string& bytes, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> 8 * i & 0xff);
}

std::uint64_t count_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number_unsigned() ? at->get<std::uint64_t>() : kMostImageBytes + 1;
}

}  // namespace

std::shared_ptr<const ProgramFile> ProgramFile::open(const std::filesystem::path& path) {
  return parse(read_stored_file(path, ErrorCode::programs, kMostFileBytes), path.string());
}

std::shared_ptr<const ProgramFile> ProgramFile::parse(std::string bytes, const std::string& name) {
  auto file = std::make_shared<ProgramFile>();
  file->name_ = name;
  if (bytes.size() < kHeaderBytes || std::string_view(bytes).substr(0, kMagic.size()) != kMagic)
    refuse(name, "holds no programs");
  const std::uint32_t version = number_at(bytes, kMagic.size());
  if (version != kFileVersion)
    refuse(name, fmt::format("has version {} of the format, this library reads version {}", version, kFileVersion));
  const std::size_t index_bytes = number_at(bytes, kMagic.size() + 4);
  if (bytes.size() - kHeaderBytes < index_bytes) refuse(name, "is truncated");
  const std::string_view index = std::string_view(bytes).substr(kHeaderBytes, index_bytes);
  if (digest(index) != std::string_view(bytes).substr(kHeaderBytes - kDigestBytes, kDigestBytes))
    refuse(name, "was altered: the digest of its index does not fit");
  const json document = json::parse(index, nullptr, /*allow_exceptions=*/false);
  const json programs = document.is_object() ? document.value("programs", json()) : json();
  if (!programs.is_array()) refuse(name, "has no index of programs");
  file->heed_version_ = text_of(document, "heed");
  file->source_digest_ = text_of(document, "source_digest");
  file->images_at_ = kHeaderBytes + index_bytes;
  const std::uint64_t room = bytes.size() - file->images_at_;
  std::uint64_t end = 0;
  for (const json& entry : programs) {
    ProgramRecord r{.arch = text_of(entry, "arch"),
                    .workload = text_of(entry, "workload"),
                    .variant = text_of(entry, "variant"),
                    .origin = text_of(entry, "origin"),
                    .machine_code = text_of(entry, "machine_code"),
                    .digest = text_of(entry, "digest"),
                    .bytes = count_of(entry, "bytes"),
                    .offset = count_of(entry, "offset"),
                    .packed_bytes = count_of(entry, "packed_bytes"),
                    .packed_digest = text_of(entry, "packed_digest"),
                    .contract = text_of(entry, "contract"),
                    .source_digest = text_of(entry, "source_digest"),
                    .provenance = std::nullopt};
    if (entry.is_object() && entry.contains("provenance")) r.provenance = provenance_of(entry["provenance"]);
    if (r.bytes > kMostImageBytes || r.offset > room || r.packed_bytes > room - r.offset ||
        r.bytes > r.packed_bytes * kMostInflation)
      refuse(name, fmt::format("is truncated: the program {} lies beyond its end", r.variant));
    end = std::max(end, r.offset + r.packed_bytes);
    file->records_.push_back(std::move(r));
  }
  if (room > end) refuse(name, fmt::format("was altered: {} bytes lie behind its last program", room - end));
  if (const json unbeaten = document.value("unbeaten", json()); unbeaten.is_array())
    for (const json& entry : unbeaten)
      file->unbeaten_.push_back({text_of(entry, "arch"), text_of(entry, "workload"), text_of(entry, "device")});
  file->bytes_ = std::move(bytes);
  return file;
}

std::string ProgramFile::image(const ProgramRecord& record) const {
  std::string image(record.bytes, '\0');
  uLongf bytes = record.bytes;
  const auto* const packed = reinterpret_cast<const Bytef*>(bytes_.data() + images_at_ + record.offset);
  const bool is_whole = digest(packed, record.packed_bytes) == record.packed_digest;
  const int result = !is_whole
                         ? Z_DATA_ERROR
                         : ::uncompress(reinterpret_cast<Bytef*>(image.data()), &bytes, packed, record.packed_bytes);
  if (result != Z_OK || bytes != record.bytes || digest(image) != record.digest)
    refuse(name_, fmt::format("was altered: the program {} is not what its digest says", record.variant));
  return image;
}

std::shared_ptr<const std::string> ProgramFile::kept_image(const ProgramRecord& record) const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const std::string>& kept = kept_[record.offset];
  if (kept == nullptr) kept = std::make_shared<const std::string>(image(record));
  return kept;
}

void ProgramFileWriter::add(ProgramRecord record, std::string_view image) {
  record.digest = digest(image);
  record.bytes = image.size();
  if (record.contract.empty()) record.contract = kernel_contract(record.workload);
  if (record.source_digest.empty()) record.source_digest = source_digest_;
  for (const ProgramRecord& other : records_)
    if (other.digest == record.digest) {
      record.offset = other.offset;
      record.packed_bytes = other.packed_bytes;
      record.packed_digest = other.packed_digest;
      records_.push_back(std::move(record));
      return;
    }
  uLongf packed = ::compressBound(image.size());
  record.offset = images_.size();
  images_.resize(images_.size() + packed);
  const int result = ::compress2(reinterpret_cast<Bytef*>(images_.data() + record.offset), &packed,
                                 reinterpret_cast<const Bytef*>(image.data()), image.size(), Z_BEST_COMPRESSION);
  if (result != Z_OK)
    throw Error(ErrorCode::internal, fmt::format("the program {} cannot be compressed", record.variant));
  images_.resize(record.offset + packed);
  record.packed_bytes = packed;
  record.packed_digest = digest(images_.data() + record.offset, packed);
  records_.push_back(std::move(record));
}

std::string ProgramFileWriter::bytes() const {
  json programs = json::array();
  for (const ProgramRecord& r : records_) {
    programs.push_back({{"arch", r.arch},
                        {"workload", r.workload},
                        {"variant", r.variant},
                        {"origin", r.origin},
                        {"machine_code", r.machine_code},
                        {"digest", r.digest},
                        {"bytes", r.bytes},
                        {"offset", r.offset},
                        {"packed_bytes", r.packed_bytes},
                        {"packed_digest", r.packed_digest},
                        {"contract", r.contract},
                        {"source_digest", r.source_digest}});
    if (r.provenance) programs.back()["provenance"] = to_json(*r.provenance);
  }
  json document = {
      {"what", "programs"}, {"heed", kVersion}, {"source_digest", source_digest_}, {"programs", std::move(programs)}};
  for (const UnbeatenRecord& r : unbeaten_)
    document["unbeaten"].push_back({{"arch", r.arch}, {"workload", r.workload}, {"device", r.device}});
  // Names of devices and versions come from elsewhere: they may be no UTF-8.
  const std::string index = document.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string all(kMagic);
  append_number(all, kFileVersion);
  append_number(all, static_cast<std::uint32_t>(index.size()));
  return all + digest(index) + index + images_;
}

}  // namespace heed::dispatch
