/// The families' own headers stay private to their files; the registry needs only these.
#pragma once

namespace heed {

class Family;
const Family& cpu_family();          ///< fwd_cpu, src/variant/family_cpu.cpp
const Family& sm80_family();         ///< fwd_sm80, src/variant/family_sm80.cpp
const Family& sm90_family();         ///< fwd_sm90, src/variant/family_sm90.cpp
const Family& stream_family();       ///< fwd_sm90_stream, src/variant/family_stream.cpp
const Family& decode_family();       ///< fwd_decode, src/variant/family_decode.cpp
const Family& decode_sm90_family();  ///< fwd_decode_sm90, src/variant/family_decode_sm90.cpp
const Family& ladder_family();       ///< ladder, src/variant/family_ladder.cpp

}  // namespace heed
