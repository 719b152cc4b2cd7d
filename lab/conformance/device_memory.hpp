/// Memory and streams of a plan's device, for what runs libheed's C interface to check it: the first GPU's through the
/// driver, or the host's.
#pragma once

#include <cstddef>
#include <vector>

#include "device/device_facts.hpp"

namespace heed::conformance {

/// Makes the first GPU's primary context current on the calling thread, as every thread needs that launches there.
/// Nothing on a CPU. @throws Error(no_device), Error(driver)
void enter_device(DeviceKind device);

/// A CUstream of its own that waits for no other; null on a CPU, where a run is done when it returns.
class Stream {
 public:
  explicit Stream(DeviceKind device);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] void* get() const { return stream_; }
  /// Until everything that was queued is done. @throws Error(driver) for what went wrong in it
  void wait() const;

 private:
  void* stream_ = nullptr;
};

/// Bytes at a multiple of 4096.
class Memory {
 public:
  Memory(DeviceKind device, std::size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] std::byte* address() const { return address_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Copies to its beginning, behind what the stream holds. @param from must stay as it is until the stream is waited
  /// for
  void put(const std::vector<std::byte>& from, const Stream& stream);
  /// Waits for the stream and copies all of it.
  void get(std::vector<std::byte>& to, const Stream& stream) const;

 private:
  DeviceKind device_;
  std::size_t bytes_;
  std::byte* address_;
};

}  // namespace heed::conformance
