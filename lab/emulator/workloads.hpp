/// Workloads small enough for an emulated GPU, which takes seconds for a tile.
#pragma once

#include <vector>

#include "variant/family.hpp"

namespace heed::emulator {

/// One emulated run: a program and the workload that it is launched for.
struct SmallCase {
  Variant variant;
  Workload workload;
};

/// The GPU that is emulated: that of a trial with 3 multiprocessors, so that persistent thread blocks have several
/// tiles each.
DeviceFacts emulated_device(const DeviceFacts& device);

/// What a variant is emulated on: its own workload with few heads and short lengths, whole tiles and ragged ones, with
/// its dtype, head dim, mask and features. A program for fixed sizes becomes one for those of a small workload, and is
/// followed by the same config for any sizes, as edits of sources serve both. Cases of one program follow each other.
/// None where no small workload is legal.
/// @param device emulated_device()
std::vector<SmallCase> small_cases(const Variant& variant, const Workload& workload, const DeviceFacts& device);

}  // namespace heed::emulator
