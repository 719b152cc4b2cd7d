#include "offload/host_memory.hpp"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "base/limits.hpp"
#include "base/parallel.hpp"

namespace heed::offload {
namespace {

constexpr std::size_t kSystemPage = 4096;
constexpr std::int64_t kStretch = std::int64_t{64} << 20;  // that one task of many threads writes

// Where a container forbids it, pages lie where the system puts them; explain tells.
void prefer_node(void* memory, std::size_t bytes, int node) {
  constexpr int kMostNodes = 1024;
  if (node < 0 || node >= kMostNodes) return;
  unsigned long mask[kMostNodes / (8 * sizeof(unsigned long))] = {};
  constexpr auto kBits = static_cast<int>(8 * sizeof(unsigned long));
  mask[node / kBits] = 1UL << (node % kBits);
  (void)::syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, mask, kMostNodes, 0);
}

}  // namespace

HostMemory::HostMemory(std::size_t bytes, int near_node) {
  if (bytes == 0) return;
  try {
    require_memory(static_cast<double>(bytes), "the host's part of a page pool");
  } catch (const Error& error) {
    throw OutOfRoom(error.code(), error.what(), error.value());
  }
  bytes_ = (bytes + kSystemPage - 1) / kSystemPage * kSystemPage;
  void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw OutOfRoom(ErrorCode::unsupported,
                    fmt::format("the system gives no {} of memory for the host's part of a page pool; give it fewer "
                                "host_pages",
                                readable(static_cast<double>(bytes_))),
                    std::to_string(bytes_));
  data_ = static_cast<std::byte*>(memory);
  prefer_node(data_, bytes_, near_node);
  const auto all = static_cast<std::int64_t>(bytes_);
  parallel_for((all + kStretch - 1) / kStretch, 0, [&](std::int64_t stretch) {
    const std::int64_t end = std::min(all, (stretch + 1) * kStretch);
    for (std::int64_t at = stretch * kStretch; at < end; at += kSystemPage) data_[at] = std::byte{0};
  });
}

HostMemory::~HostMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

int HostMemory::node() const {
  int node = -1;
  if (data_ == nullptr || ::syscall(SYS_get_mempolicy, &node, nullptr, 0UL, data_, MPOL_F_NODE | MPOL_F_ADDR) != 0)
    return -1;
  return node;
}

std::string readable(double bytes) {
  constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

std::string advice_on_pinning() {
  rlimit locked{};
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) != 0 || locked.rlim_cur == RLIM_INFINITY)
    return "give the pool fewer host_pages, or the container more memory";
  return fmt::format("this process may lock {} (ulimit -l); raise that limit, or give the pool fewer host_pages",
                     readable(static_cast<double>(locked.rlim_cur)));
}

}  // namespace heed::offload
