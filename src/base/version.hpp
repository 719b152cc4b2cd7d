#pragma once

namespace heed {

inline constexpr const char* kVersion = HEED_VERSION;  // from CMakeLists.txt

}  // namespace heed
