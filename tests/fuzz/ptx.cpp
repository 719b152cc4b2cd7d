// The audit of PTX, and what ptxas says of a kernel.
#include "fuzz.hpp"
#include "jit/toolchain.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  heed::fuzz::refuses_or_reads([&] { (void)heed::jit::contract_violation_in_ptx(text); });
  heed::fuzz::refuses_or_reads([&] { (void)heed::jit::contract_violation_in_ptx(text, {.supports_pdl = true}); });
  heed::fuzz::refuses_or_reads([&] { (void)heed::jit::parse_ptxas_report(text); });
  return 0;
}
