// Elements of 16 bits as emulated tensor cores and conversions read and round them.
#include <cstring>
#include <vector>

#include "emulator/device/simt.hpp"
#include "workload/half.hpp"

namespace heed::emulator {

namespace {

// Every product of an emulated tensor core reads its operands here: a table takes a third of the time of the steps.
const std::vector<float>& of_fp16() {
  static const std::vector<float> table = [] {
    std::vector<float> values(1U << 16);
    for (unsigned bits = 0; bits < values.size(); ++bits)
      values[bits] = fp16_to_float(static_cast<std::uint16_t>(bits));
    return values;
  }();
  return table;
}

}  // namespace

float load_16(bool bf16, const std::byte* from) {
  float x = 0;
  load_16(bf16, from, 1, &x, 1);
  return x;
}

void load_16(bool bf16, const std::byte* from, int count, float* to, int stride) {
  const float* const table = of_fp16().data();
  for (int i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i * stride] = bf16 ? bf16_to_float(bits) : table[bits];
  }
}

std::uint16_t round_16(bool bf16, float x) {
  return bf16 ? float_to_bf16(x) : float_to_fp16(x);
}

}  // namespace heed::emulator
