/// What tests of whole trials share: a builder with the cache of all tests, and options that finish quickly.
#pragma once

#include "testing.hpp"
#include "trial/trial_runner.hpp"

namespace heed::testing_support {

inline jit::Builder& builder() {
  static jit::Builder shared([] {
    jit::BuilderOptions options;
    options.cache_folder = shared_cache();
    return options;
  }());
  return shared;
}

inline trial::Options quick() {
  trial::Options options;
  options.launch_limit_s = 10;
  options.pair = {.least_quads = 3, .most_quads = 4, .target_uncertainty = 0.05, .hopeless_below = 0, .limit_s = 0.2};
  options.final_pair = options.pair;
  return options;
}

}  // namespace heed::testing_support
