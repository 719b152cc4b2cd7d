/// The families' own headers stay private to their files; the registry needs only these.
#pragma once

#include <cstdint>

namespace heed {

class Family;
struct DeviceFacts;
struct Workload;
const Family& cpu_family();              ///< fwd_cpu, lib/variant/family_cpu.cpp
const Family& sm80_family();             ///< fwd_sm80, lib/variant/family_sm80.cpp
const Family& sm90_split_family();       ///< fwd_sm90_split, lib/variant/family_sm90_split.cpp
const Family& sm90_persistent_family();  ///< fwd_sm90_persistent, lib/variant/family_sm90_persistent.cpp
const Family& sm90_fp8_family();         ///< fwd_sm90_fp8, lib/variant/family_sm90_fp8.cpp
const Family& sm80_decode_family();      ///< fwd_sm80_decode, lib/variant/family_sm80_decode.cpp
const Family& sm90_decode_family();      ///< fwd_sm90_decode, lib/variant/family_sm90_decode.cpp

/// Time of fwd_sm90_decode's default by its estimates, in us; infinite where only whole tiles are legal.
double sm90_decode_default_us(const Workload& workload, const DeviceFacts& device);

/// Whether fwd_sm90_split is ahead of fwd_sm90_persistent though its row tiles take more than one wave: under a causal
/// mask, at head dims up to 64 and few keys, where two of its blocks share a multiprocessor, long row tiles beside
/// short ones.
/// @param processors of the device
bool prefers_split_kernel(const Workload& workload, std::int64_t processors);

/// The same of more keys, where fwd_sm90_persistent splits row tiles that way.
bool splits_q_tiles(const Workload& workload, std::int64_t processors);

}  // namespace heed
