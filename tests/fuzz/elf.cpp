// Shared objects and cubins, as the audit reads them before anything is loaded.
#include "jit/elf.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  heed::fuzz::refuses_or_reads([&] {
    const heed::jit::ElfFile file = heed::jit::parse_elf(bytes);
    (void)heed::jit::machine_code_digest(file);
    (void)heed::jit::code_bytes(file);
    (void)heed::jit::contract_breach_of_shared_object(file, "heed_forward");
    (void)heed::jit::contract_breach_of_cubin(file, "heed_forward");
  });
  return 0;
}
