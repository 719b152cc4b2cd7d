// The pass that lists the blocks of keys a bias leaves, on the emulated GPU and on the host, beside a look at every
// score.
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.hpp"
#include "device.hpp"
#include "lib/listing/list_blocks.cuh"
#include "listing/listing.hpp"
#include "testing.hpp"
#include "workload/half.hpp"

namespace heed::listing {
namespace {

struct Case {
  BiasElement element = BiasElement::boolean;
  int batch = 1;
  int heads = 1;
  int len_q = 100;
  int len_k = 300;
  bool per_batch = true;  // else stride 0
  bool per_head = true;
  bool per_row = true;
  bool per_key = true;
  int key_stride = 1;
  int row_padding = 0;  // elements
  int begin = 0;        // bytes from a multiple of 16
  MaskKind mask = MaskKind::none;
  int left_offset = 0;
  int right_offset = 0;
  std::uint64_t seed = 1;
};

// Blocks of every kind: all hidden, all shown, drawn, and all but one score hidden, shown, or shown as it is.
class Listed {
 public:
  explicit Listed(const Case& c) : c_(c), random_(c.seed) {
    const int bytes = bytes_of(c.element);
    pass_.bias_key = c.per_key ? c.key_stride : 0;
    const long long row = (c.per_key ? static_cast<long long>(c.len_k) * c.key_stride : 1) + c.row_padding;
    pass_.bias_row = c.per_row ? row : 0;
    const long long head = row * (c.per_row ? c.len_q : 1);
    pass_.bias_head = c.per_head ? head : 0;
    pass_.bias_batch = c.per_batch ? head * (c.per_head ? c.heads : 1) : 0;
    pass_.batch = c.per_batch ? c.batch : 1;
    pass_.heads = c.per_head ? c.heads : 1;
    pass_.len_q = c.per_row ? c.len_q : 1;
    pass_.len_k = c.len_k;
    pass_.row_blocks = (pass_.len_q + kBlock - 1) / kBlock;
    pass_.most = (c.len_k + kBlock - 1) / kBlock;
    pass_.element = static_cast<int>(c.element);
    pass_.mask = static_cast<int>(c.mask);
    pass_.left_offset = c.left_offset;
    pass_.right_offset = c.right_offset;
    const long long all = head * pass_.heads * pass_.batch;
    memory_.resize(static_cast<std::size_t>(all * bytes) + 32);
    for (unsigned char& byte : memory_) byte = static_cast<unsigned char>(random_.below(256));
    bias_ = memory_.data() + (16 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 16) % 16 + c.begin;
    pass_.bias = bias_;
    for (int b = 0; b < pass_.batch; ++b)
      for (int h = 0; h < pass_.heads; ++h)
        for (int r = 0; r < pass_.row_blocks; ++r)
          for (int k = 0; k < pass_.most; ++k) fill(b, h, r, k);
  }

  void check() {
    const Pass wide = with_width(pass_);
    const std::size_t lists = static_cast<std::size_t>(lists_of(pass_));
    const std::size_t numbers = lists * static_cast<std::size_t>(pass_.most);
    std::vector<int> gpu_counts(lists, -7);
    std::vector<int> gpu_numbers(numbers, -7);
    std::vector<int> host_counts = gpu_counts;
    std::vector<int> host_numbers = gpu_numbers;
    Pass on_gpu = wide;
    on_gpu.counts = gpu_counts.data();
    on_gpu.indices = gpu_numbers.data();
    emulator::Launch launch;
    launch.grid.x = 2;  // fewer than lists, or more
    launch.threads = kListThreads;
    launch.shared_bytes = kAtOnce * sizeof(unsigned);
    launch.seed = c_.seed;
    emulator::run(launch, [&](char* shared) { list_blocks(on_gpu, reinterpret_cast<unsigned*>(shared)); });
    Pass on_host = wide;
    on_host.counts = host_counts.data();
    on_host.indices = host_numbers.data();
    for (long long i = 0; i < lists_of(on_host); ++i) list_on_host(on_host, i);
    std::vector<int> counts, all(numbers, -7);
    for (int b = 0; b < pass_.batch; ++b)
      for (int h = 0; h < pass_.heads; ++h)
        for (int r = 0; r < pass_.row_blocks; ++r) {
          const std::vector<int> list = expected(b, h, r);
          std::copy(list.begin(), list.end(), all.begin() + static_cast<long>(counts.size()) * pass_.most);
          counts.push_back(static_cast<int>(list.size()));
          listed_ += list.size();
        }
    EXPECT_EQ(host_counts, counts);
    EXPECT_EQ(host_numbers, all);
    EXPECT_EQ(gpu_counts, counts);
    EXPECT_EQ(gpu_numbers, all);
  }

  [[nodiscard]] Pass& pass() { return pass_; }
  [[nodiscard]] std::size_t listed() const { return listed_; }

 private:
  enum Kind { kHidden, kShown, kDrawn, kOneShown, kOneHidden, kOneChanged, kKinds };

  [[nodiscard]] unsigned char* at(int b, int h, int row, int key) const {
    return bias_ + (b * pass_.bias_batch + h * pass_.bias_head + row * pass_.bias_row + key * pass_.bias_key) *
                       listing::bias_bytes(pass_);
  }
  void fill(int b, int h, int row_block, int key_block) {
    const auto kind = static_cast<Kind>(random_.below(kKinds));
    const int rows = std::min(kBlock, pass_.len_q - row_block * kBlock);
    const int keys = c_.per_key ? std::min(kBlock, c_.len_k - key_block * kBlock) : 1;
    const std::uint64_t one = random_.below(static_cast<std::uint64_t>(rows * keys));
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < keys; ++j) {
        const bool is_one = static_cast<std::uint64_t>(i * keys + j) == one;
        const bool hides = kind == kHidden || (kind == kDrawn && random_.chance(0.5)) ||
                           (kind == kOneShown && !is_one) || (kind == kOneHidden && is_one);
        set(at(b, h, row_block * kBlock + i, key_block * kBlock + j), hides,
            (kind == kOneChanged && is_one) || (kind == kDrawn && random_.chance(0.3)));
      }
  }
  void set(unsigned char* to, bool hides, bool changes) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const bool finite = random_.chance(0.5);
    const float x = changes ? (random_.chance(0.5) ? kNan : -3.5F) : random_.chance(0.5) ? 0.0F : -0.0F;
    const auto write_16 = [&](std::uint16_t lowest, std::uint16_t number) {
      const std::uint16_t bits = hides ? static_cast<std::uint16_t>(finite ? lowest : lowest + 1) : number;
      std::memcpy(to, &bits, 2);
    };
    switch (c_.element) {
      case BiasElement::boolean:
        *to = hides ? 0 : static_cast<unsigned char>(1 + random_.below(255));
        return;
      case BiasElement::fp16:
        return write_16(0xFBFF, float_to_fp16(x));
      case BiasElement::bf16:
        return write_16(0xFF7F, float_to_bf16(x));
      case BiasElement::fp32: {
        const float number =
            hides ? (finite ? -std::numeric_limits<float>::max() : -std::numeric_limits<float>::infinity()) : x;
        std::memcpy(to, &number, 4);
        return;
      }
    }
  }
  // As kernels read it: what is not above the most negative finite number hides.
  [[nodiscard]] float value(int b, int h, int row, int key) const {
    const unsigned char* const from = at(b, h, row, key);
    std::uint16_t half = 0;
    float number = 0;
    switch (c_.element) {
      case BiasElement::boolean:
        return *from != 0 ? 0.0F : -INFINITY;
      case BiasElement::fp16:
        std::memcpy(&half, from, 2);
        number = fp16_to_float(half);
        return number <= -65504.0F ? -INFINITY : number;
      case BiasElement::bf16:
        std::memcpy(&half, from, 2);
        number = bf16_to_float(half);
        return number <= -0x1.fep127F ? -INFINITY : number;
      case BiasElement::fp32:
        std::memcpy(&number, from, 4);
    }
    return number <= -std::numeric_limits<float>::max() ? -INFINITY : number;
  }
  [[nodiscard]] std::vector<int> expected(int b, int h, int row_block) const {
    std::vector<int> list;
    for (int k = 0; k < pass_.most; ++k) {
      bool shows = false;
      bool is_full = true;
      for (int row = row_block * kBlock; row < std::min((row_block + 1) * kBlock, pass_.len_q); ++row)
        for (int key = k * kBlock; key < std::min((k + 1) * kBlock, c_.len_k); ++key) {
          if (c_.mask != MaskKind::none && key > row + c_.right_offset) continue;
          if (c_.mask == MaskKind::window && key < row + c_.left_offset) continue;
          const float x = value(b, h, row, key);
          shows = shows || x != -INFINITY;
          is_full = is_full && x == 0;
        }
      if (shows) list.push_back(is_full ? k + kFullBlock : k);
    }
    return list;
  }

  Case c_;
  Random random_;
  Pass pass_{};
  std::vector<unsigned char> memory_;
  unsigned char* bias_ = nullptr;
  std::size_t listed_ = 0;
};

constexpr BiasElement kElements[] = {BiasElement::boolean, BiasElement::fp16, BiasElement::bf16, BiasElement::fp32};

void check(const Case& c) {
  SCOPED_TRACE(
      fmt::format("element {} lengths {} x {} seed {}", static_cast<int>(c.element), c.len_q, c.len_k, c.seed));
  Listed(c).check();
}

TEST(EmulatedListBlocks, AreWhatEveryScoreSays) {
  std::uint64_t seed = 0;
  for (const BiasElement element : kElements) {
    check({.element = element, .batch = 2, .heads = 2, .len_q = 130, .len_k = 512, .seed = ++seed});
    check({.element = element, .heads = 3, .len_q = 70, .len_k = 333, .seed = ++seed});
    check({.element = element, .len_q = 65, .len_k = 320, .begin = 4, .seed = ++seed});
    check({.element = element, .len_q = 64, .len_k = 129, .key_stride = 3, .row_padding = 5, .seed = ++seed});
    check({.element = element, .len_q = 1, .len_k = 1, .seed = ++seed});
  }
}

TEST(EmulatedListBlocks, WhatIsSharedIsLookedAtOnce) {
  std::uint64_t seed = 20;
  for (const BiasElement element : kElements) {
    Case c{.element = element, .batch = 2, .heads = 3, .len_k = 256, .seed = ++seed};
    c.per_batch = c.per_head = false;
    check(c);
    c.per_batch = true;
    c.per_row = false;
    check(c);
    c.per_row = true;
    c.per_key = false;
    check(c);
  }
}

TEST(EmulatedListBlocks, EveryNumberOfKeysAndRows) {
  for (int rest = 0; rest < kBlock; ++rest)
    check({.len_q = 1 + rest, .len_k = 65 + rest * 37 % 64, .seed = static_cast<std::uint64_t>(100 + rest)});
}

TEST(EmulatedListBlocks, ScoresThatTheMaskHidesDoNotCount) {
  std::uint64_t seed = 200;
  for (const BiasElement element : kElements)
    for (const int offset : {-150, -64, 0, 1, 100}) {
      Case c{.element = element, .len_q = 200, .len_k = 256, .seed = ++seed};
      c.mask = MaskKind::causal;
      c.right_offset = offset;
      check(c);
      c.mask = MaskKind::window;
      c.left_offset = offset - 70;
      c.seed = ++seed;
      check(c);
    }
}

// More blocks of keys than a thread block keeps at once.
TEST(EmulatedListBlocks, LongListsAreMadeInParts) {
  check({.len_q = 2, .len_k = 64 * kAtOnce + 100, .seed = 300});
}

TEST(EmulatedListBlocks, AMaskThatHidesAllListsNothing) {
  Case c{.len_q = 130, .len_k = 200};
  c.mask = MaskKind::causal;
  c.right_offset = -500;
  Listed listed(c);
  listed.check();
  EXPECT_EQ(listed.listed(), 0U);
}

TEST(EmulatedListBlocks, RowsAreReadAtOnceWhereTheyLieAtMultiplesOf16Bytes) {
  const auto is_wide = [](const Case& c) { return with_width(Listed(c).pass()).is_wide != 0; };
  EXPECT_TRUE(is_wide({.heads = 2, .len_k = 304}));
  EXPECT_TRUE(is_wide({.len_q = 1, .len_k = 301}));
  EXPECT_FALSE(is_wide({.len_k = 301}));
  EXPECT_FALSE(is_wide({.len_k = 304, .begin = 8}));
  EXPECT_FALSE(is_wide({.len_k = 304, .key_stride = 2}));
  EXPECT_TRUE(is_wide({.element = BiasElement::fp32, .len_k = 300}));
}

}  // namespace
}  // namespace heed::listing
