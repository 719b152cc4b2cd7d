// Elements of 16 bits as emulated tensor cores and conversions read and round them.
#include <cstring>
#include <vector>

#include "emulator/device/simt.hpp"
#include "workload/half.hpp"

namespace heed::emulator {

float load_16(bool bf16, const std::byte* from) {
  // Every product of an emulated tensor core reads its operands here: a table takes a third of the time of the steps.
  static const std::vector<float> of_fp16 = [] {
    std::vector<float> values(1U << 16);
    for (unsigned bits = 0; bits < values.size(); ++bits)
      values[bits] = fp16_to_float(static_cast<std::uint16_t>(bits));
    return values;
  }();
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, 2);
  return bf16 ? bf16_to_float(bits) : of_fp16[bits];
}

std::uint16_t round_16(bool bf16, float x) {
  return bf16 ? float_to_bf16(x) : float_to_fp16(x);
}

}  // namespace heed::emulator
