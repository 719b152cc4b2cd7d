// Pools of keys in host memory: any config. There are no programs, so that a pool that could be made is refused at
// last; calls are tried by the test Offload.AnyFieldIsAnswered.
#include "offload/any_call.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  heed::testing_support::Choices choices(data, size);
  heed_offload_config config;
  heed_offload_config_init(&config);
  config.host_pages = 8;
  config.device_pages = 2;
  config.link_rate = config.host_rate = config.device_rate = config.device_flops = 1e9;
  config.programs = "/dev/null";
  (void)heed::testing_support::try_any_pool(config, choices);
  return 0;
}
