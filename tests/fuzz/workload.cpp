// The grammar of workloads: what is read is written back as the same workload.
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  heed::fuzz::refuses_or_reads([&] {
    const heed::Workload workload = heed::parse_workload(text);
    const std::string written = heed::to_string(workload);
    heed::fuzz::require(heed::parse_workload(written) == workload, "a workload is read as it was written");
    heed::fuzz::require(heed::to_string(heed::parse_workload(written)) == written, "a workload has one name");
  });
  return 0;
}
