/// Small CPU candidates for tests of workers.
#pragma once

#include <string>

#include "device/device.hpp"
#include "jit/build.hpp"
#include "testing.hpp"
#include "worker/worker.hpp"

namespace heed::worker {

// A binary whose entry does what `body` says.
inline std::string build_entry(const std::string& body) {
  jit::BuilderOptions options;
  options.cache_folder = testing_support::shared_cache();
  options.jobs = 1;
  jit::Builder builder(options);
  const std::string source =
      "#include \"kernels/attention/features.hpp\"\nextern \"C\" void heed_forward(const heed::ForwardParams* params, "
      "long long "
      "block, void* scratch) {\n" +
      body + "\n(void)params; (void)block; (void)scratch;\n}\n";
  const jit::BuildOutcome outcome =
      builder.build({.device = DeviceKind::cpu, .arch = cpu_facts().arch, .source = source, .entry = "heed_forward"});
  EXPECT_TRUE(outcome.artifact) << outcome.log;
  return outcome.artifact->path.string();
}

inline LaunchPlan small_plan(int threads = 2) {
  LaunchPlan plan;
  plan.entry = "heed_forward";
  plan.grid = {4, 1, 1};
  plan.threads = static_cast<std::uint32_t>(threads);
  plan.shared_bytes = 4096;
  return plan;
}

inline Launch small_launch() {
  Launch launch;
  launch.o = 0;
  launch.grid = {4, 1, 1};
  return launch;
}

}  // namespace heed::worker
