/// Builders of tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "compile/embedded.hpp"
#include "heed/heed.hpp"
#include "jit/build.hpp"

namespace heed::jit {

inline BuilderOptions options_in(const std::filesystem::path& folder) {
  BuilderOptions options;
  options.cache_folder = folder;
  options.jobs = 2;
  return options;
}

inline BuildRequest cpu_request(const std::string& source) {
  return {.device = DeviceKind::cpu, .arch = "test", .source = source, .entry = "heed_forward"};
}

inline constexpr const char* kTiny = "extern \"C\" int heed_forward(int x) { return 2 * x; }\n";

/// A third of the programs, another one for every state of the kernels' sources; with HEED_ALL_BUILDS all. Of sources
/// that did not change the ledger knows what each program is.
class ShareOfBuilds {
 public:
  bool takes_next() {
    constexpr unsigned kShare = 3;
    return is_all_ || ++seen_ % kShare == 0;
  }

 private:
  bool is_all_ = std::getenv("HEED_ALL_BUILDS") != nullptr;
  std::size_t seen_ = std::hash<std::string>{}(compile::source_digest());
};

/// It built, keeps the contract and spills no register.
/// @param limit registers that a thread may have; 0: any
inline void expect_no_spills(const BuildOutcome& outcome, int limit = 0) {
  ASSERT_TRUE(outcome.artifact) << outcome.log;
  const Resources& r = outcome.artifact->resources;
  EXPECT_EQ(outcome.artifact->violation, "");
  EXPECT_EQ(r.spill_store_bytes, 0);
  EXPECT_EQ(r.spill_load_bytes, 0);
  if (limit > 0) {
    EXPECT_LE(r.registers, limit);
  }
}

inline bool has_nvrtc() {
  try {
    (void)describe_nvrtc();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace heed::jit
