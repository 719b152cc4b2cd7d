// Shared objects and cubins, as the audits read them before anything is loaded.
#include "jit/elf.hpp"

#include "dispatch/object_arch.hpp"
#include "fuzz.hpp"
#include "jit/shared_object.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  heed::fuzz::refuses_or_reads([&] {
    const heed::jit::ElfFile file = heed::jit::parse_elf(bytes);
    (void)heed::jit::machine_code_digest(file);
    (void)heed::jit::code_bytes(file);
    (void)heed::jit::contract_violation_in_cubin(file, "heed_forward");
  });
  heed::fuzz::refuses_or_reads([&] {
    const heed::jit::SharedObject object = heed::jit::parse_shared_object(bytes);
    (void)heed::jit::machine_code_digest(object);
    (void)heed::jit::code_bytes(object);
    (void)heed::jit::contract_violation_in_shared_object(object, "heed_forward");
    (void)object.find("heed_forward");
  });
  (void)heed::dispatch::arch_of_object(bytes);
  return 0;
}
