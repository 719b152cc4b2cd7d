#include "listing/listing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "compile/embedded.hpp"

namespace heed::listing {

std::span<const compile::EmbeddedFile> device_sources();

namespace {

// Eight booleans at a time. A byte of 0 sets the highest bit of the lowest such byte at least: Hacker's Delight 6-1.
unsigned effects_of_booleans(const char* from, int count) {
  std::uint64_t any = 0;
  std::uint64_t zeros = 0;
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + i, 8);
    any |= word;
    zeros |= (word - 0x0101010101010101U) & ~word & 0x8080808080808080U;
  }
  unsigned effects = (any != 0 ? kShows : 0) | (zeros != 0 ? kHides : 0);
  for (; i < count; ++i) effects |= from[i] == 0 ? kHides : kShows;
  return effects;
}

template <BiasElement kElement, typename Number>
unsigned effects_of_numbers(const char* from, int count, long long step) {
  unsigned effects = 0;
  for (int i = 0; i < count; ++i) {
    Number number = 0;
    std::memcpy(&number, from + i * step * static_cast<long long>(sizeof number), sizeof number);
    effects |= effect_of<kElement>(number);
  }
  return effects;
}

unsigned effects_of_row(BiasElement element, const char* from, int count, long long step) {
  switch (element) {
    case BiasElement::boolean:
      return step == 1 ? effects_of_booleans(from, count)
                       : effects_of_numbers<BiasElement::boolean, std::uint8_t>(from, count, step);
    case BiasElement::fp16:
      return effects_of_numbers<BiasElement::fp16, std::uint16_t>(from, count, step);
    case BiasElement::bf16:
      return effects_of_numbers<BiasElement::bf16, std::uint16_t>(from, count, step);
    case BiasElement::fp32:
      break;
  }
  return effects_of_numbers<BiasElement::fp32, std::uint32_t>(from, count, step);
}

}  // namespace

const std::string& list_source() {
  static const std::string source = [] {
    compile::add_device_files(device_sources());
    return fmt::format(
        "#include \"lib/listing/list_blocks.cuh\"\n\n"
        "extern \"C\" __global__ void __launch_bounds__({}) {}(const __grid_constant__ heed::listing::Pass pass) {{\n"
        "  __shared__ unsigned found[heed::listing::kAtOnce];\n"
        "  heed::listing::list_blocks(pass, found);\n"
        "}}\n",
        kListThreads, kListEntry);
  }();
  return source;
}

Pass with_width(Pass p) {
  const int bytes = bias_bytes(p);
  const auto fits = [&](int count, long long stride) { return count == 1 || stride * bytes % 16 == 0; };
  p.is_wide = reinterpret_cast<std::uintptr_t>(p.bias) % 16 == 0 && p.bias_key == 1 && fits(p.batch, p.bias_batch) &&
                      fits(p.heads, p.bias_head) && fits(p.len_q, p.bias_row)
                  ? 1
                  : 0;
  return p;
}

void list_on_host(const Pass& p, long long index) {
  const ListPlace at = place_of(p, index);
  const char* const bias = bias_of_head(p, at);
  const long long bytes = bias_bytes(p);
  const int first_row = at.block * kBlock;
  const int end_row = std::min(first_row + kBlock, p.len_q);
  int* const numbers = p.indices + index * p.most;
  int listed = 0;
  for (int block = 0; block < p.most; ++block) {
    unsigned effects = 0;
    for (int row = first_row; row < end_row; ++row) {
      const KeysOfRow keys = keys_of_row(p, row, block);
      if (keys.begin >= keys.end) continue;
      effects |= effects_of_row(static_cast<BiasElement>(p.element),
                                bias + (row * p.bias_row + keys.begin * p.bias_key) * bytes, keys.end - keys.begin,
                                p.bias_key);
      if ((effects & kPartial) == kPartial || (effects & kChanges) != 0) break;
    }
    if (is_listed(effects)) numbers[listed++] = number_of(block, effects);
  }
  p.counts[index] = listed;
}

}  // namespace heed::listing
