// Names of variants, for a workload and a device that the first two bytes choose.
#include <array>

#include "device/device.hpp"
#include "fuzz.hpp"
#include "variant/family.hpp"

namespace {

const std::array<heed::Workload, 4>& workloads() {
  static const std::array<heed::Workload, 4> all = {
      heed::parse_workload("b1h8l512d64"), heed::parse_workload("b1h2l40d16:fp32"),
      heed::parse_workload("b2h8hkv2l1k4096d128:bf16"), heed::parse_workload("b1h4l300d64:fp16:causal_top_left:blhd")};
  return all;
}

const std::array<heed::DeviceFacts, 3>& devices() {
  static const std::array<heed::DeviceFacts, 3> all = {heed::cpu_facts(), heed::gpu_limits("sm_80"),
                                                       heed::gpu_limits("sm_90a")};
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const heed::Workload& workload = workloads()[data[0] % workloads().size()];
  const heed::DeviceFacts& device = devices()[data[1] % devices().size()];
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  heed::fuzz::refuses_or_reads([&] {
    const heed::Variant variant = heed::parse_variant(text, workload, device);
    const heed::Variant again = heed::parse_variant(heed::describe(variant), workload, device);
    heed::fuzz::require(again.id() == variant.id(), "a variant is read as it was written");
    // Legal or not, its config has a place in the space: rules look at it without harm.
    (void)variant.is_illegal(workload, device);
    (void)heed::canonical(variant, workload);
  });
  return 0;
}
