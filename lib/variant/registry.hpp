/// The families' own headers stay private to their files; the registry needs only these.
#pragma once

#include <cstdint>

namespace heed {

class Family;
struct Workload;
const Family& cpu_family();          ///< fwd_cpu, lib/variant/family_cpu.cpp
const Family& sm80_family();         ///< fwd_sm80, lib/variant/family_sm80.cpp
const Family& sm90_family();         ///< fwd_sm90, lib/variant/family_sm90.cpp
const Family& stream_family();       ///< fwd_sm90_stream, lib/variant/family_stream.cpp
const Family& decode_family();       ///< fwd_decode, lib/variant/family_decode.cpp
const Family& decode_sm90_family();  ///< fwd_decode_sm90, lib/variant/family_decode_sm90.cpp

/// Whether fwd_sm90 is ahead of fwd_sm90_stream though its row tiles take more than one wave: under a causal mask, at
/// head dims up to 64 and few keys, where two of its blocks share a multiprocessor, long row tiles beside short ones.
/// @param processors of the device
bool sm90_leads(const Workload& workload, std::int64_t processors);

/// The same of more keys, where fwd_sm90_stream splits row tiles that way.
bool splits_rows(const Workload& workload, std::int64_t processors);

}  // namespace heed
