// The merge of partial results on the emulated GPU, beside the host's, and both beside attention over all keys.
#include <cstring>

#include "base/random.hpp"
#include "device.hpp"
#include "lib/merge/merge_partials.cuh"
#include "merge/merge.hpp"
#include "testing.hpp"
#include "workload/half.hpp"

namespace heed::merge {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Rows of attention in parts of the keys, as tensors (batch, heads, rows, dim) with rows `pitch` elements apart.
struct Case {
  Dtype part = Dtype::fp16;
  Dtype whole = Dtype::fp16;
  int batch = 1;
  int heads = 2;
  int rows = 5;
  int dim = 64;
  int pitch = 64;
  int parts = 3;
  bool sinks = false;
  std::uint64_t seed = 1;
};

void launch(const Merge& m, unsigned blocks, std::uint64_t seed) {
  emulator::Launch launch;
  launch.grid.x = blocks;
  launch.threads = kMergeThreads;
  launch.seed = seed;
  emulator::run(launch, [&](char*) { merge_partials(m); });
}

class Merged {
 public:
  explicit Merged(const Case& c) : c_(c) {
    Random random(c.seed);
    const std::size_t rows = rows_of_all();
    const auto parts = static_cast<std::size_t>(c.parts);
    lse_.assign(parts, std::vector<float>(rows));
    o_.assign(parts, room(c.part));
    for (std::size_t i = 0; i < parts; ++i)
      for (std::size_t r = 0; r < rows; ++r) {
        lse_[i][r] = static_cast<float>(20 * random.uniform() - 10);
        for (int d = 0; d < c.dim; ++d)
          store_element(c.part, o_[i].data(), at(r, d), static_cast<float>(2 * random.uniform() - 1));
      }
    for (int h = 0; h < c.heads; ++h) sinks_.push_back(static_cast<float>(random.uniform()));
  }

  [[nodiscard]] Merge merge(void* o, float* lse) {
    Merge m{};
    const TensorStrides strides = {static_cast<long long>(c_.heads) * c_.rows * c_.pitch,
                                   static_cast<long long>(c_.rows) * c_.pitch, c_.pitch};
    const TensorStrides numbers = {static_cast<long long>(c_.heads) * c_.rows, c_.rows, 1};
    for (int i = 0; i < c_.parts; ++i)
      m.partials[i] = {o_[static_cast<std::size_t>(i)].data(),
                       lse_[static_cast<std::size_t>(i)].data(),
                       strides,
                       numbers,
                       static_cast<int>(c_.part),
                       0,
                       c_.rows,
                       1};
    m.o = o;
    m.lse = lse;
    m.sinks = c_.sinks ? sinks_.data() : nullptr;
    m.o_strides = strides;
    m.lse_strides = numbers;
    m.batch = c_.batch;
    m.heads = c_.heads;
    m.rows = c_.rows;
    m.dim = c_.dim;
    m.element = static_cast<int>(c_.whole);
    m.count = c_.parts;
    return with_width(m);
  }

  /// On the emulated GPU and on the host, which must agree; O and the log-sum-exps are kept.
  void run(bool expect_wide) {
    on_gpu_ = room(c_.whole);
    on_host_ = room(c_.whole);
    gpu_lse_.assign(rows_of_all(), 77);
    host_lse_ = gpu_lse_;
    const Merge m = merge(on_gpu_.data(), gpu_lse_.data());
    EXPECT_EQ(m.is_wide != 0, expect_wide);
    launch(m, 3, c_.seed);
    merge_on_host(merge(on_host_.data(), host_lse_.data()));
    for (std::size_t r = 0; r < rows_of_all(); ++r) {
      same(gpu_lse_[r], host_lse_[r], 1e-5);
      for (int d = 0; d < c_.dim; ++d) same(o(on_gpu_, r, d), o(on_host_, r, d), tolerance());
    }
  }

  /// In double precision.
  void check() const {
    for (std::size_t r = 0; r < rows_of_all(); ++r) {
      const auto head = r / static_cast<std::size_t>(c_.rows) % static_cast<std::size_t>(c_.heads);
      double sum = c_.sinks ? std::exp(static_cast<double>(sinks_[head])) : 0;
      for (const auto& lse : lse_) sum += std::exp(static_cast<double>(lse[r]));
      same(gpu_lse_[r], static_cast<float>(std::log(sum)), 1e-5);
      for (int d = 0; d < c_.dim; ++d) {
        double expected = 0;
        for (std::size_t i = 0; i < lse_.size(); ++i)
          expected += lse_[i][r] == kNone ? 0
                                          : std::exp(static_cast<double>(lse_[i][r])) / sum *
                                                static_cast<double>(load_element(c_.part, o_[i].data(), at(r, d)));
        same(o(on_gpu_, r, d), static_cast<float>(expected), tolerance());
      }
    }
  }

  [[nodiscard]] std::size_t rows_of_all() const { return static_cast<std::size_t>(c_.batch * c_.heads * c_.rows); }
  [[nodiscard]] float& lse(std::size_t part, std::size_t row) { return lse_[part][row]; }
  void set_output(std::size_t part, std::size_t row, float value) {
    for (int d = 0; d < c_.dim; ++d) store_element(c_.part, o_[part].data(), at(row, d), value);
  }
  [[nodiscard]] float merged(std::size_t row, int d) const { return o(on_gpu_, row, d); }
  [[nodiscard]] float merged_lse(std::size_t row) const { return gpu_lse_[row]; }
  [[nodiscard]] std::vector<std::byte>& part(std::size_t i) { return o_[i]; }
  [[nodiscard]] std::vector<float>& part_lse(std::size_t i) { return lse_[i]; }

 private:
  [[nodiscard]] std::size_t at(std::size_t row, int d) const {
    return row * static_cast<std::size_t>(c_.pitch) + static_cast<std::size_t>(d);
  }
  [[nodiscard]] std::vector<std::byte> room(Dtype dtype) const {
    return std::vector<std::byte>(rows_of_all() * static_cast<std::size_t>(c_.pitch) * (dtype == Dtype::fp32 ? 4 : 2));
  }
  [[nodiscard]] float o(const std::vector<std::byte>& from, std::size_t row, int d) const {
    return load_element(c_.whole, from.data(), at(row, d));
  }
  [[nodiscard]] double tolerance() const {
    return c_.whole == Dtype::fp32 ? 3e-6 : c_.whole == Dtype::fp16 ? 6e-4 : 5e-3;
  }
  static void same(float a, float b, double tolerance) {
    if (std::isnan(a) || std::isnan(b) || std::isinf(a) || std::isinf(b))
      ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << a << " and " << b;
    else
      ASSERT_NEAR(a, b, tolerance);
  }

  Case c_;
  std::vector<std::vector<float>> lse_;
  std::vector<std::vector<std::byte>> o_;
  std::vector<float> sinks_;
  std::vector<std::byte> on_gpu_;
  std::vector<std::byte> on_host_;
  std::vector<float> gpu_lse_;
  std::vector<float> host_lse_;
};

TEST(MergePartials, IsAttentionOverAllKeys) {
  for (const Dtype part : {Dtype::fp16, Dtype::bf16, Dtype::fp32})
    for (const Dtype whole : {Dtype::fp16, Dtype::bf16, Dtype::fp32})
      for (const bool sinks : {false, true}) {
        Merged m({.part = part, .whole = whole, .batch = 2, .sinks = sinks, .seed = 7});
        m.run(true);
        m.check();
      }
  for (const int parts : {1, 2, kMostPartials}) {
    Merged m({.heads = 3, .rows = 9, .parts = parts, .seed = 11});
    m.run(true);
    m.check();
  }
}

// Head dims and pitches that no 16 bytes divide, and rows that take all threads of a block.
TEST(MergePartials, OfAnyRows) {
  for (const auto& [dim, pitch, wide] : {std::tuple{1, 1, false},
                                         {7, 9, false},
                                         {72, 72, true},
                                         {64, 68, false},
                                         {129, 129, false},
                                         {512, 512, true},
                                         {8, 8, true}}) {
    Merged m({.whole = Dtype::fp16, .rows = 13, .dim = dim, .pitch = pitch, .seed = 3});
    m.run(wide);
    m.check();
  }
}

TEST(MergePartials, PartsWithoutAKeyAreNotRead) {
  Merged m({.rows = 4});
  m.lse(0, 0) = kNone;  // a part of a row
  m.set_output(0, 0, kNan);
  for (std::size_t i = 0; i < 3; ++i) {
    m.lse(i, 1) = kNone;  // all of a row
    m.set_output(i, 1, kNan);
  }
  m.lse(2, 2) = -200;  // far below: its weight is 0
  m.run(true);
  EXPECT_FALSE(std::isnan(m.merged(0, 3)));
  EXPECT_EQ(m.merged(1, 0), 0);
  EXPECT_EQ(m.merged_lse(1), kNone);
}

TEST(MergePartials, NanIsNotLost) {
  Merged m({.rows = 4});
  m.lse(1, 0) = kNan;
  m.lse(2, 1) = std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < 3; ++i) m.lse(i, 2) = i == 1 ? kNan : kNone;
  m.set_output(0, 3, kNan);  // of a value
  m.run(true);
  for (const std::size_t row : {0, 1, 2}) {
    EXPECT_TRUE(std::isnan(m.merged(row, 5))) << row;
    EXPECT_TRUE(std::isnan(m.merged_lse(row))) << row;
  }
  EXPECT_TRUE(std::isnan(m.merged(3, 5)));
  EXPECT_FALSE(std::isnan(m.merged_lse(3)));
}

// The running result of a stream of parts: the output is the first part's memory.
TEST(MergePartials, InPlace) {
  const Case c{.part = Dtype::fp32, .whole = Dtype::fp32, .rows = 9, .dim = 128, .pitch = 128};
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    Case seeded = c;
    seeded.seed = seed;
    Merged apart(seeded);
    apart.run(true);
    Merged within(seeded);
    const Merge m = within.merge(within.part(0).data(), within.part_lse(0).data());
    launch(m, 2, seed);
    for (std::size_t r = 0; r < apart.rows_of_all(); ++r) {
      ASSERT_FLOAT_EQ(within.lse(0, r), apart.merged_lse(r));
      for (int d = 0; d < 128; ++d)
        ASSERT_FLOAT_EQ(load_element(Dtype::fp32, within.part(0).data(), r * 128 + static_cast<std::size_t>(d)),
                        apart.merged(r, d));
    }
  }
}

// A part that has the rows 2 to 4 of the merged 6.
TEST(MergePartials, OfSomeRows) {
  Merged m({.heads = 1, .rows = 6, .parts = 2});
  std::vector<std::byte> o(6 * 64 * 2);
  std::vector<float> lse(6);
  Merge merge = m.merge(o.data(), lse.data());
  merge.partials[1].first_row = 2;
  merge.partials[1].rows = 3;
  launch(merge, 1, 1);
  for (const std::size_t row : {0, 1, 5}) EXPECT_FLOAT_EQ(lse[row], m.lse(0, row));
  for (const std::size_t row : {2, 3, 4})
    EXPECT_NEAR(lse[row], std::log(std::exp(m.lse(0, row)) + std::exp(m.lse(1, row - 2))), 1e-5);
  std::vector<float> again(6);
  merge.lse = again.data();
  merge_on_host(merge);
  for (std::size_t row = 0; row < 6; ++row) EXPECT_NEAR(lse[row], again[row], 1e-5);
}

TEST(MergePartials, OnTheHostRefusesWhatCannotBe) {
  Merged m({});
  std::vector<std::byte> o(1 << 16);
  std::vector<float> lse(64);
  Merge merge = m.merge(o.data(), lse.data());
  merge.count = kMostPartials + 1;
  EXPECT_THROW(merge_on_host(merge), Error);
  merge.count = 1;
  merge.dim = kMostDim + 1;
  EXPECT_THROW(merge_on_host(merge), Error);
}

}  // namespace
}  // namespace heed::merge
