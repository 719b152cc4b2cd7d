/// HEED_CHECK: an invariant of Heed itself. A user's mistake is an Error with its own code, never a failed check.
#pragma once

#include <fmt/format.h>

#include "heed/heed.hpp"

#define HEED_CHECK(condition)                                                                                  \
  do {                                                                                                         \
    if (!(condition))                                                                                          \
      throw ::heed::Error(::heed::ErrorCode::internal,                                                         \
                          ::fmt::format("internal check failed: {} ({}:{})", #condition, __FILE__, __LINE__)); \
  } while (false)
