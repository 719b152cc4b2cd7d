// Files of safetensors.
#include "fuzz.hpp"
#include "tensors/tensor_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const heed::fuzz::File file(data, size);
  heed::fuzz::refuses_or_reads([&] { (void)heed::read_qkv_safetensors(file.path(), heed::Layout::bhld); });
  return 0;
}
