/// What tests on a GPU begin with: the device and a builder; where one is missing they say that they were skipped, or
/// fail where HEED_REQUIRE names it.
#pragma once

#include <memory>

#include "device/device.hpp"
#include "jit/build.hpp"
#include "requirements.hpp"
#include "testing.hpp"

namespace heed::testing_support {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaProbe probe = probe_cuda();
    if (!probe.facts) HEED_LACKS("gpu", probe.reason);
    device_ = *probe.facts;
    try {
      (void)jit::describe_nvrtc();
    } catch (const Error& error) {
      HEED_LACKS("nvrtc", error.what());
    }
    jit::BuilderOptions options;
    options.cache_folder = shared_cache();
    builder_ = std::make_unique<jit::Builder>(options);
  }
  DeviceFacts device_;
  std::unique_ptr<jit::Builder> builder_;
};

}  // namespace heed::testing_support
