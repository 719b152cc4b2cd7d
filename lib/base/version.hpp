#pragma once

namespace heed {

inline constexpr const char* kVersion = HEED_VERSION;  // from CMakeLists.txt

/// How readings are taken and judged: counted up whenever that changes what a number says, for numbers of different
/// referees do not mix. Runs and evidence name theirs; what names none is of the first.
inline constexpr int kReferee = 6;

}  // namespace heed
