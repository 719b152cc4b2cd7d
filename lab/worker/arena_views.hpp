/// Which pages of an image a runner may see, and which it may write.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/runner_process.hpp"

namespace heed::worker {

/// Pages [begin, end) of an image, in bytes.
struct PageRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool writable = false;
};

/// Every tensor reaches up to where the next one begins, guard included; outputs, log-sum-exp, workspace and semaphores
/// may be written, what is both read and written too. Guards are at least a page long, so that no page holds both an
/// input and an output. Pages before the first tensor are not in reach.
/// @param launches their pointers lie in [image, image + bytes); `image` is page-aligned
std::vector<PageRange> pages_in_reach(std::span<const CpuLaunch> launches, const std::byte* image, std::uint64_t bytes,
                                      std::uint64_t page);

}  // namespace heed::worker
