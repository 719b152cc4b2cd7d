/// What a test lacks on this machine: it skips, unless HEED_REQUIRE says that the machine has it.
///
/// HEED_REQUIRE=gpu,nvrtc on a machine with a GPU makes a broken driver a failure: tests that skip there would pass
/// without having looked at anything.
#pragma once

#include <gtest/gtest.h>

#include <string_view>

namespace heed::testing_support {

/// Whether HEED_REQUIRE names `what`: gpu or nvrtc.
bool is_required(std::string_view what);

/// The names in HEED_REQUIRE that are none of those; empty when all are known.
std::string unknown_requirements();

}  // namespace heed::testing_support

/// Ends the test: skipped for want of `what`, or failed where HEED_REQUIRE names it.
#define HEED_LACKS(what, reason)                                                                \
  do {                                                                                          \
    if (::heed::testing_support::is_required(what))                                             \
      FAIL() << "HEED_REQUIRE names " << (what) << ", and this machine lacks it: " << (reason); \
    else                                                                                        \
      GTEST_SKIP() << "no " << (what) << ": " << (reason);                                      \
  } while (false)
