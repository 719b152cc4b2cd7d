/// Builders of tests.
#pragma once

#include "heed/heed.hpp"
#include "jit/build.hpp"

namespace heed::jit {

inline BuilderOptions options_in(const std::filesystem::path& folder) {
  BuilderOptions options;
  options.cache_folder = folder;
  options.jobs = 2;
  return options;
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
