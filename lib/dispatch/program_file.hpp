/// Files of programs: binaries of variants, compressed, each with what it was built for, and a digest of everything.
///
///     "HEEDPROG" | version, 4 bytes | bytes of the index, 4 bytes | digest of the index, 32 characters | index |
///     images
///
/// Numbers are little-endian. The index is JSON, with what is known of the search that found a program where one did;
/// an image is a cubin or a shared object, deflated (RFC 1950, zlib). The file is read as a whole and checked when it
/// is opened, an image when it is taken out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/provenance.hpp"
#include "heed/heed.hpp"

namespace heed::dispatch {

/// One program of a file.
struct ProgramRecord {
  std::string arch;          ///< "sm_90a", "x86-64-v4"
  std::string workload;      ///< one that it was built for, in the canonical text
  std::string variant;       ///< "family:knob=value,...", every knob written out
  std::string origin;        ///< where the choice comes from: "rule", "champion"
  std::string machine_code;  ///< digest of its code, as heed build --json prints it
  std::string digest;        ///< of the image
  std::uint64_t bytes = 0;   ///< of the image
  std::uint64_t offset = 0;  ///< of the deflated image, from the first one
  std::uint64_t packed_bytes = 0;
  std::string packed_digest;  ///< of the deflated image: bits of it that inflate to nothing are altered bits too
  std::string contract;       ///< kernel_contract of its workload, of the library that built it
  std::string source_digest;  ///< of the kernel sources that it was built from
  std::optional<Provenance> provenance;  ///< of a champion
};

/// A workload whose base nothing beat: its program is the one that the rule names.
struct UnbeatenRecord {
  std::string arch;
  std::string workload;
  std::string device;  ///< name of the one that was searched on
};

class ProgramFile {
 public:
  /// @throws Error(programs) naming the path: missing, truncated, altered, of another version, or no such file
  static std::shared_ptr<const ProgramFile> open(const std::filesystem::path& path);
  /// @param name of the file, for messages
  static std::shared_ptr<const ProgramFile> parse(std::string bytes, const std::string& name);

  [[nodiscard]] const std::vector<ProgramRecord>& records() const { return records_; }
  [[nodiscard]] const std::vector<UnbeatenRecord>& unbeaten() const { return unbeaten_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::string& heed_version() const { return heed_version_; }
  [[nodiscard]] const std::string& source_digest() const { return source_digest_; }
  /// The binary itself. @throws Error(programs) where it is not what its digest says
  [[nodiscard]] std::string image(const ProgramRecord& record) const;
  /// The same, unpacked and checked once: plans of one program follow each other, one for each length of a decoder's
  /// cache.
  [[nodiscard]] std::shared_ptr<const std::string> kept_image(const ProgramRecord& record) const;

 private:
  std::string name_;
  std::string bytes_;
  std::size_t images_at_ = 0;
  std::string heed_version_;
  std::string source_digest_;
  std::vector<ProgramRecord> records_;
  std::vector<UnbeatenRecord> unbeaten_;
  mutable std::mutex mutex_;
  mutable std::map<std::size_t, std::shared_ptr<const std::string>> kept_;  ///< by offset
};

/// Makes such a file.
class ProgramFileWriter {
 public:
  explicit ProgramFileWriter(std::string source_digest) : source_digest_(std::move(source_digest)) {}
  /// Offsets, sizes and digests of the record are filled in, and contract and sources where they are empty: those of
  /// this library and of this file. Equal images are kept once.
  void add(ProgramRecord record, std::string_view image);
  void add_unbeaten(UnbeatenRecord record) { unbeaten_.push_back(std::move(record)); }
  [[nodiscard]] std::size_t count() const { return records_.size(); }
  /// The whole file.
  [[nodiscard]] std::string bytes() const;

 private:
  std::string source_digest_;
  std::vector<ProgramRecord> records_;
  std::vector<UnbeatenRecord> unbeaten_;
  std::string images_;
};

}  // namespace heed::dispatch
