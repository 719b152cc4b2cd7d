/// Memory of the host that pages of keys and values lie in.
#pragma once

#include <cstddef>
#include <string>

#include "heed/heed.hpp"

namespace heed::offload {

/// There is no room: in memory, in a pool, or for locked pages.
class OutOfRoom final : public Error {
 public:
  using Error::Error;
};

/// Whole pages of the system, zeros, written once so that they are there.
class HostMemory {
 public:
  HostMemory() = default;
  /// @param near_node the NUMA node that it should lie on; -1: any
  /// @throws OutOfRoom where the machine, or a control group of this process, has less
  HostMemory(std::size_t bytes, int near_node);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
  HostMemory& operator=(HostMemory&& other) noexcept;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// The NUMA node that its first page lies on; -1 where the system does not say.
  [[nodiscard]] int node() const;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Bytes that a person reads: "3.5 GB".
std::string readable(double bytes);

/// What to do about pinned memory that the driver refused, as the end of a sentence: names the limits of locked memory
/// of this process.
std::string advice_on_pinning();

}  // namespace heed::offload
