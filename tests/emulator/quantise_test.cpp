// Inputs quantised on the emulated GPU: the host's bits.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.hpp"
#include "device.hpp"

namespace heed {

inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
// Threads of the emulator run one at a time.
inline unsigned atomicMax(unsigned* at, unsigned value) {
  const unsigned before = *at;
  *at = before > value ? before : value;
  return before;
}
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  *at += value;
  return *at - value;
}
inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
  const unsigned long long before = *at;
  *at = before < value ? before : value;
  return before;
}

}  // namespace heed

#include "lib/quantise/lost_rows.cuh"
#include "lib/quantise/quantise_pass.cuh"
#include "quantise/quantise.hpp"
#include "testing.hpp"
#include "workload/half.hpp"

namespace heed::quantise {
namespace {

struct Case {
  Dtype dtype = Dtype::fp16;
  int batch = 2;
  int heads = 4;
  int heads_kv = 2;
  int len_q = 70;
  int len_k = 150;
  int dim = 64;
  int to_dim = 64;
  Element to = Element::e4m3;
  int q_rows = 0;  ///< that share a factor; 0: all of a head
  int k_rows = 0;
  bool channel = false;  ///< of V
  bool smooth = true;
  bool rotate = true;
  long long step = 1;  ///< from one element of a row to the next
  MaskKind mask = MaskKind::none;
  bool ragged = false;
  bool lengths = false;
  bool count_lost = false;
  std::uint64_t seed = 1;
};

// Q, K and V of a case, and the results of one pass over them.
class Tensors {
 public:
  explicit Tensors(const Case& c) : c_(c) {
    Random random(c.seed);
    const auto bytes = c.dtype == Dtype::fp32 ? 4U : 2U;
    for (auto* x : {&q_, &k_, &v_}) {
      const auto count = static_cast<std::size_t>(rows(x == &q_)) * static_cast<std::size_t>(c.dim * c.step);
      x->assign(count * bytes, std::byte{});
      for (std::size_t i = 0; i < count; ++i)
        store_element(c.dtype, x->data(), i, static_cast<float>(i % 97 == 5 ? 90.0 : 6 * random.uniform() - 2));
    }
    if (c.lengths) lengths_ = {c.len_k, 17};
    if (c.ragged) {
      starts_q_ = {0, c.len_q};
      starts_k_ = {0, c.len_k};
      for (int b = 1; b < c.batch; ++b) {
        starts_q_.push_back(starts_q_.back() + 13 * b);
        starts_k_.push_back(starts_k_.back() + 31 * b);
      }
    }
  }

  [[nodiscard]] std::vector<std::byte>& q() { return q_; }
  [[nodiscard]] std::vector<std::byte>& k() { return k_; }

  struct Results {
    std::vector<unsigned char> elements[3];
    std::vector<float> factors[3];
    std::vector<unsigned> largest[3];
    std::vector<double> sums;
    std::vector<float> mean;
    std::vector<float> shift;
    std::vector<float> lse;
    std::vector<Lost> lost;
  };

  Pass pass(Results& r) {
    Pass p{};
    p.rows = {.cu_seqlens_q = c_.ragged ? starts_q_.data() : nullptr,
              .cu_seqlens_k = c_.ragged ? starts_k_.data() : nullptr,
              .seqused_k = c_.lengths ? lengths_.data() : nullptr,
              .prefix_lengths = nullptr,
              .batch = c_.batch,
              .len_q = c_.len_q,
              .len_k = c_.len_k,
              .total_q = static_cast<int>(total(true)),
              .total_k = static_cast<int>(total(false)),
              .mask = static_cast<int>(c_.mask),
              .left_offset = -9,
              .right_offset = 3,
              .aligned_to_the_end = 0};
    const auto set = [&](TensorPass& t, int i, std::vector<std::byte>& from, int heads, int rows_of_factor, bool keys) {
      t.from = from.data();
      const long long length = c_.ragged ? total(!keys) : keys ? c_.len_k : c_.len_q;
      t.from_step = c_.step;
      t.from_strides = {c_.ragged ? 0 : heads * length * c_.dim * c_.step, length * c_.dim * c_.step, c_.dim * c_.step};
      t.to_strides = {c_.ragged ? 0 : heads * length * c_.to_dim, length * c_.to_dim, c_.to_dim};
      r.elements[i].assign(static_cast<std::size_t>((c_.ragged ? 1 : c_.batch) * heads * length * c_.to_dim), 0xee);
      t.to = r.elements[i].data();
      const bool by_rows = rows_of_factor > 0;
      const long long blocks = by_rows ? (length + rows_of_factor - 1) / rows_of_factor : 1;
      const bool by_channel = i == 2 && c_.channel;
      const long long of_head = by_channel ? c_.to_dim : blocks;
      t.scales.strides = {by_rows && c_.ragged ? 0 : heads * of_head, of_head, by_rows ? 1 : 0};
      t.scales.rows = by_rows ? rows_of_factor : 1;
      t.scales.channel = by_channel ? 1 : 0;
      t.count = (by_rows && c_.ragged ? 1 : c_.batch) * heads * of_head;
      r.factors[i].assign(static_cast<std::size_t>(t.count), -1);
      r.largest[i].assign(static_cast<std::size_t>(t.count), 0);
      t.factors = r.factors[i].data();
      t.largest = r.largest[i].data();
      t.element = static_cast<int>(c_.dtype);
      t.to_element = static_cast<int>(c_.to);
      t.heads = heads;
      t.dim = c_.dim;
      t.to_dim = c_.to_dim;
      t.are_keys = keys ? 1 : 0;
      t.is_rotated = c_.rotate && i < 2 ? 1 : 0;
      t = with_width(t, p.rows);
    };
    set(p.q, 0, q_, c_.heads, c_.q_rows, false);
    set(p.k, 1, k_, c_.heads_kv, c_.k_rows, true);
    set(p.v, 2, v_, c_.heads_kv, c_.channel ? 0 : c_.k_rows, true);
    r.lost.assign(3, {0, kNoneLost});
    p.lost = c_.count_lost ? r.lost.data() : nullptr;
    draw_signs(7, c_.dim, p.signs);
    p.norm = rotation_norm(c_.dim);
    p.scale = 0.125F;
    if (c_.smooth) {
      r.sums.assign(static_cast<std::size_t>(c_.batch * c_.heads_kv * chunks_of(c_.len_k) * c_.dim), -1);
      r.mean.assign(static_cast<std::size_t>(c_.batch * c_.heads_kv * c_.dim), -1);
      r.shift.assign(static_cast<std::size_t>(rows(true)), 0);
      r.lse.assign(r.shift.size(), 5);
      r.lse[1] = -std::numeric_limits<float>::infinity();
      p.sums = r.sums.data();
      p.mean = r.mean.data();
      p.shift = r.shift.data();
      p.lse = r.lse.data();
      p.shift_count = static_cast<long long>(r.shift.size());
    }
    return p;
  }

 private:
  [[nodiscard]] long long total(bool queries) const {
    return c_.ragged ? (queries ? c_.len_q : c_.len_k) + 13LL * 6 : 0;
  }
  [[nodiscard]] long long rows(bool queries) const {
    const int heads = queries ? c_.heads : c_.heads_kv;
    return c_.ragged ? heads * total(queries)
                     : static_cast<long long>(c_.batch) * heads * (queries ? c_.len_q : c_.len_k);
  }

  Case c_;
  std::vector<std::byte> q_, k_, v_;
  std::vector<int> lengths_, starts_q_, starts_k_;
};

void run_on_gpu(Pass p, std::uint64_t seed) {
  const auto launch = [&](Stage stage, unsigned tensors) {
    p.stage = static_cast<int>(stage);
    emulator::Launch one;
    one.grid = {3, tensors, 1};
    one.threads = kQuantiseThreads;
    one.seed = seed;
    emulator::run(one, [&](char*) { stage == Stage::lost ? count_lost_values(p) : quantise(p); });
  };
  if (p.sums != nullptr) launch(Stage::sums, 1), launch(Stage::means, 1);
  launch(Stage::largest, 3);
  launch(Stage::elements, 3);
  if (p.lost != nullptr) launch(Stage::lost, 3);
  if (p.shift != nullptr) launch(Stage::lse, 1);
}

template <typename T>
void expect_bits(const std::vector<T>& a, const std::vector<T>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) == 0) continue;
    if constexpr (std::is_floating_point_v<T>)
      if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    FAIL() << what << " " << i << " of " << a.size() << ": " << +a[i] << " and " << +b[i];
  }
}

// @return what was lost of Q, K and V, the same on both
std::vector<Lost> expect_the_hosts_bits(const Case& c, Tensors& tensors) {
  Tensors::Results gpu, host;
  run_on_gpu(tensors.pass(gpu), c.seed);
  const Pass p = tensors.pass(host);
  quantise_on_host(p);
  for (const Stage stage : {Stage::lse, Stage::lost})
    for (long long piece = 0; piece < pieces_of(p, stage); ++piece) run_piece(p, stage, piece);
  for (int i = 0; i < 3; ++i) {
    expect_bits(gpu.elements[i], host.elements[i], "elements");
    expect_bits(gpu.factors[i], host.factors[i], "factors");
  }
  expect_bits(gpu.sums, host.sums, "sums");
  expect_bits(gpu.mean, host.mean, "means");
  expect_bits(gpu.shift, host.shift, "shifts");
  expect_bits(gpu.lse, host.lse, "log-sum-exps");
  for (std::size_t i = 0; i < host.lost.size(); ++i) {
    EXPECT_EQ(gpu.lost[i].count, host.lost[i].count) << i;
    EXPECT_EQ(gpu.lost[i].first, host.lost[i].first) << i;
  }
  return gpu.lost;
}
void expect_the_hosts_bits(const Case& c) {
  Tensors tensors(c);
  for (const Lost& lost : expect_the_hosts_bits(c, tensors)) EXPECT_EQ(lost.count, 0U);
}

TEST(QuantiseOnGpu, ElementTypesAndGranularities) {
  for (const Element to : {Element::e4m3, Element::e5m2, Element::int8})
    for (const int rows : {0, 1, 32, 64}) {
      SCOPED_TRACE(fmt::format("to {} rows {}", static_cast<int>(to), rows));
      expect_the_hosts_bits({.to = to, .q_rows = rows, .k_rows = rows == 32 ? 64 : rows, .channel = rows == 64});
    }
}

TEST(QuantiseOnGpu, InputsAndHeadDims) {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::fp32})
    for (const auto& [dim, to_dim] : {std::pair{32, 32}, {64, 64}, {64, 128}, {128, 128}, {256, 256}, {16, 64}}) {
      SCOPED_TRACE(fmt::format("{} {} to {}", to_string(dtype), dim, to_dim));
      expect_the_hosts_bits({.dtype = dtype, .len_q = 9, .len_k = 40, .dim = dim, .to_dim = to_dim});
    }
  for (const int dim : {40, 96, 33}) {
    SCOPED_TRACE(dim);
    expect_the_hosts_bits({.len_q = 9, .len_k = 40, .dim = dim, .to_dim = 128, .rotate = false});
  }
}

TEST(QuantiseOnGpu, StridesMasksAndLengths) {
  expect_the_hosts_bits({.step = 3});
  expect_the_hosts_bits({.len_q = 70, .len_k = 150, .k_rows = 64, .mask = MaskKind::causal});
  expect_the_hosts_bits({.len_q = 70, .len_k = 150, .mask = MaskKind::window});
  expect_the_hosts_bits({.k_rows = 1, .lengths = true});
  expect_the_hosts_bits({.batch = 4, .q_rows = 1, .k_rows = 1, .ragged = true});
  expect_the_hosts_bits({.batch = 4, .ragged = true});
  expect_the_hosts_bits({.smooth = false, .rotate = false});
}

// Of pages of a pool: the elements alone, by factors of heads that are as they were given, bit for bit.
TEST(QuantiseOnGpu, FactorsThatAreGiven) {
  for (const Element to : {Element::e4m3, Element::e5m2, Element::int8})
    for (const int dim : {40, 64, 128}) {
      SCOPED_TRACE(fmt::format("to {} dim {}", static_cast<int>(to), dim));
      const Case c{.len_q = 1, .len_k = 40, .dim = dim, .to_dim = dim, .to = to, .smooth = false, .rotate = false};
      Tensors tensors(c);
      store_element(c.dtype, tensors.k().data(), 777, std::numeric_limits<float>::quiet_NaN());
      store_element(c.dtype, tensors.k().data(), 778, std::numeric_limits<float>::infinity());
      Tensors::Results gpu, host;
      const auto given = [&](Tensors::Results& r) {
        Pass p = tensors.pass(r);
        p.q = {};
        for (TensorPass* t : {&p.k, &p.v}) {
          t->scales.strides = {0, 1, 0};
          t->factors[0] = 0.1F;
          t->factors[1] = 0.7F;
          t->count = 0;
          t->largest = nullptr;
        }
        return p;
      };
      Pass on_gpu = given(gpu);
      on_gpu.stage = static_cast<int>(Stage::elements);
      emulator::Launch one;
      one.grid = {3, 3, 1};
      one.threads = kQuantiseThreads;
      one.seed = 5;
      emulator::run(one, [&](char*) { quantise(on_gpu); });
      const Pass on_host = given(host);
      quantise_by_given_factors(on_host);
      for (const int i : {1, 2}) {
        expect_bits(gpu.elements[i], host.elements[i], "elements");
        expect_bits(gpu.factors[i], host.factors[i], "factors");
      }
      EXPECT_EQ(gpu.factors[1][0], 0.1F);
      EXPECT_EQ(gpu.factors[1][1], 0.7F);
      const std::size_t of_head = std::size_t{40} * static_cast<std::size_t>(dim);
      for (std::size_t i = 0; i < 2 * of_head; ++i)
        ASSERT_EQ(gpu.elements[2][i], element_of(load_element(c.dtype, on_host.v.from, i), i < of_head ? 0.1F : 0.7F,
                                                 static_cast<int>(to)));
    }
}

TEST(QuantiseOnGpu, WhatIsNoNumber) {
  for (const Element to : {Element::e4m3, Element::int8})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const Case c{.to = to, .q_rows = 32, .k_rows = 64, .rotate = to == Element::e4m3};
      Tensors tensors(c);
      store_element(c.dtype, tensors.q().data(), 777, bad);
      store_element(c.dtype, tensors.k().data(), 1234, -bad);
      (void)expect_the_hosts_bits(c, tensors);
    }
}

TEST(QuantiseOnGpu, LostValuesAreCountedAsOnAHost) {
  const float infinity = std::numeric_limits<float>::infinity();
  Case c{.batch = 1, .heads = 2, .heads_kv = 1, .rotate = false, .count_lost = true};
  Tensors infinite(c);
  for (const std::size_t at : {5555U, 777U, 778U}) store_element(c.dtype, infinite.q().data(), at, infinity);
  store_element(c.dtype, infinite.k().data(), 1234, -infinity);
  const std::vector<Lost> lost = expect_the_hosts_bits(c, infinite);
  EXPECT_EQ(lost[0].count, 3U);
  EXPECT_EQ(lost[0].first, 777U);
  EXPECT_EQ(lost[1].count, 1U);
  EXPECT_EQ(lost[1].first, 1234U);
  EXPECT_EQ(lost[2].count, 0U);
  // What leaves fp32 where a row is rotated, and where the mean is taken out.
  c = {.dtype = Dtype::bf16, .batch = 1, .heads = 2, .heads_kv = 1, .k_rows = 64, .count_lost = true};
  Tensors large(c);
  for (std::size_t d = 0; d < 64; ++d) store_element(c.dtype, large.q().data(), 640 + d, 3e38F);
  for (std::size_t row = 0; row < 150; ++row)
    store_element(c.dtype, large.k().data(), row * 64 + 9, row == 60 ? 3e38F : -3e38F);
  const std::vector<Lost> of_large = expect_the_hosts_bits(c, large);
  EXPECT_GT(of_large[0].count, 0U);
  EXPECT_EQ(of_large[0].first / 64, 10U);
  EXPECT_GT(of_large[1].count, 0U);
  EXPECT_EQ(of_large[1].first / 64, 60U);
  // Of ragged rows, which count from their entry's own.
  c = {.len_q = 9, .len_k = 20, .q_rows = 1, .k_rows = 1, .rotate = false, .ragged = true, .count_lost = true};
  Tensors ragged(c);
  store_element(c.dtype, ragged.q().data(), 14 * 64 + 2, infinity);  // row 5 of entry 1, head 0
  EXPECT_EQ(expect_the_hosts_bits(c, ragged)[0].first, ((1 * 4 + 0) * 9 + 5) * 64 + 2U);
  // Counts of a pass that loses nothing.
  expect_the_hosts_bits({.batch = 1, .len_q = 9, .len_k = 20, .channel = true, .count_lost = true});
}

}  // namespace
}  // namespace heed::quantise
