/// What an emulated program is told by the process that started it: one launch, and an image of its memory. Both sides
/// include this file.
#pragma once

#include <cstdint>

#include "kernels/attention/features.hpp"
#include "kernels/contract.hpp"

namespace heed::emulator {

/// Where the image lies in the program's memory, so that a request can hold addresses. Below 2^39, the least that a
/// 64-bit Linux gives a process; neither executables nor libraries are placed there.
inline constexpr std::uint64_t kImageAddress = std::uint64_t{1} << 37;

/// Exit codes of an emulated program.
inline constexpr int kDone = 0;       ///< the image as the launch left it is on stdout
inline constexpr int kObjection = 3;  ///< the emulated GPU objects to what the kernel did; a sentence is on stderr
inline constexpr int kNoLaunch = 4;   ///< the request is none, or there is no memory for it; a sentence is on stderr

/// Bytes of the image that copies may read.
struct ReadablePart {
  std::uint64_t offset;
  std::uint64_t bytes;
};
inline constexpr int kMostReadable = 24;  ///< Q, K, V, workspace, and the tensors of features

/// The head of a program's stdin; the image follows.
struct Request {
  std::uint64_t magic;
  std::uint64_t image_bytes;
  std::uint64_t shared_bytes;
  std::uint64_t seed;
  std::uint32_t grid[3];
  std::uint32_t threads;
  std::uint32_t cluster;
  std::uint32_t resident;  ///< blocks that run at a time, where they are no clusters
  std::uint32_t early;     ///< copies are done at once instead of as late as may be
  std::uint32_t readable_parts;
  ReadablePart readable[kMostReadable];
  TensorMaps maps;       ///< EmulatedMap in each; zero where the entry takes none
  FeatureParams params;  ///< of which entries without features take the first part
};
inline constexpr std::uint64_t kRequest = 0x48454544454d5531;  // "HEEDEMU1"

}  // namespace heed::emulator
