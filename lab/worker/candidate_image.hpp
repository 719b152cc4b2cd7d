/// A CPU candidate in memory: its audited segments, and no way to change them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace heed::worker {

/// Maps a shared object without a loader: the contract lets it have nothing that one would have to do. No byte of it is
/// writable, and constants cannot be executed.
class CandidateImage {
 public:
  /// @throws DeviceFailure(launch) for a file that cannot be read, is no shared object, or breaks the contract
  CandidateImage(const std::string& path, const std::string& entry);
  ~CandidateImage();
  CandidateImage(const CandidateImage&) = delete;
  CandidateImage& operator=(const CandidateImage&) = delete;

  [[nodiscard]] std::uintptr_t entry() const { return entry_; }
  [[nodiscard]] std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(memory_); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::uintptr_t entry_ = 0;
};

}  // namespace heed::worker
