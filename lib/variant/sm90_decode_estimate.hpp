/// How long launches of fwd_sm90_decode take, by which its defaults are chosen.
///
/// Constants of one H200, from 36 workloads of 1 to 512 packed rows and 258 to 131,072 keys; the estimate of the config
/// that it chooses is within 30% of its time.
#pragma once

#include <cstdint>

#include "device/device_facts.hpp"
#include "heed/heed.hpp"
#include "kernels/sm90/decode/config.hpp"

namespace heed::sm90_decode_estimate {

/// Tiles of packed rows, each with all its keys, over all key heads and batch entries.
std::int64_t all_jobs(const sm90_decode::Config& c, const Workload& w);
/// Tiles of keys of each, of the launch as the kernel sees it, keys in front of the first visible one cut off: a grid
/// of more blocks than there are tiles never ends.
std::int64_t job_tiles(const sm90_decode::Config& c, const Workload& w);
std::int64_t all_tiles(const sm90_decode::Config& c, const Workload& w);

/// Keys of a tile by columns: 16 to 32 KiB of K and V, so that a tile's barrier is paid once for as many bytes where
/// elements have 8 bits.
int block_n_of(const Workload& w);

/// Bytes of keys and values that some query sees.
std::int64_t key_bytes(const Workload& w);
/// Of the device's L2; that of an H100 where it is not known.
std::int64_t l2_bytes_of(const DeviceFacts& device);

/// us of a launch by columns: reading at the rate that its blocks take tiles at or the memory gives, and the merge.
double decode_us(const sm90_decode::Config& c, const Workload& w, const DeviceFacts& device);
/// us of fwd_sm90_persistent where a tile has all of a head's queries.
/// @param places multiprocessors
double persistent_us(const Workload& w, std::int64_t places);

}  // namespace heed::sm90_decode_estimate
