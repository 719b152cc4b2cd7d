// New keys and values written into a cache on the emulated GPU: the host's bits, and where each row must go.
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "base/random.hpp"
#include "device.hpp"

namespace heed {

// What the header of the pass that quantises names besides.
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline unsigned atomicMax(unsigned* at, unsigned value) {
  const unsigned before = *at;
  *at = before > value ? before : value;
  return before;
}

}  // namespace heed

#include "append/append.hpp"
#include "lib/append/append_rows.cuh"
#include "testing.hpp"
#include "workload/half.hpp"

namespace heed::append {
namespace {

struct Case {
  Dtype dtype = Dtype::fp16;
  Dtype k = Dtype::fp16;
  Dtype v = Dtype::fp16;
  int heads = 2;
  int dim = 64;
  int dim_v = 64;
  int len_new = 3;
  int page_size = 8;  ///< 0: no pages
  bool nhd = true;    ///< (pages, page_size, heads, dim), else heads before rows
  std::vector<int> lengths = {0, 7, 13};
  std::vector<int> begins = {};  ///< of ragged rows; empty: each entry has len_new
  bool are_after = false;
  int scale_rows = 0;         ///< of K and V in 8 bits: rows that share a factor; 0: all of a head
  bool channel = false;       ///< of V
  long long step = 1;         ///< from one element of a new row to the next
  int wrong_page_entry = -1;  ///< whose first page is one that there is not
  std::uint64_t seed = 1;
};

constexpr unsigned char kUntouched = 0xa5;
constexpr float kUntouchedFactor = 77;

// Rows of entries that lie where `Case` says, written by the host and by the emulated GPU.
class Appended {
 public:
  explicit Appended(const Case& c) : c_(c), random_(c.seed) {
    batch_ = static_cast<int>(c.lengths.size());
    len_cache_ = 24;
    pages_each_ = c.page_size == 0 ? 0 : (len_cache_ + c.page_size - 1) / c.page_size;
    pages_ = c.page_size == 0 ? 0 : batch_ * pages_each_ + 1;
    // Pages of entries lie in a drawn order; the last page is nobody's.
    for (int page = 0; page + 1 < pages_; ++page) table_.push_back(page);
    for (std::size_t i = table_.size(); i > 1; --i) std::swap(table_[i - 1], table_[random_.below(i)]);
    if (c.wrong_page_entry >= 0)
      table_[static_cast<std::size_t>(c.wrong_page_entry * pages_each_)] = c.seed % 2 == 0 ? -1 : pages_;
    total_ = c.begins.empty() ? batch_ * c.len_new : c.begins.back();
    for (const bool is_v : {false, true}) {
      auto& from = is_v ? new_v_ : new_k_;
      const int dim = is_v ? c.dim_v : c.dim;
      const auto count = static_cast<std::size_t>(total_ * c.heads) * static_cast<std::size_t>(dim * c.step);
      from.resize(count * size_of(c.dtype));
      for (std::size_t i = 0; i < count; ++i)
        store_element(c.dtype, from.data(), i, static_cast<float>(8 * random_.uniform() - 3));
    }
  }

  struct Cache {
    std::vector<unsigned char> k, v;
    std::vector<float> k_factors, v_factors;
    std::vector<int> lengths_after;
    friend bool operator==(const Cache&, const Cache&) = default;
  };

  Append append(Cache& cache) {
    Append a{};
    for (const bool is_v : {false, true}) {
      Tensor& t = is_v ? a.v : a.k;
      const int dim = is_v ? c_.dim_v : c_.dim;
      const Dtype to = is_v ? c_.v : c_.k;
      const int parts = c_.page_size == 0 ? batch_ : pages_;
      const int rows = c_.page_size == 0 ? len_cache_ : c_.page_size;
      auto& bytes = is_v ? cache.v : cache.k;
      bytes.assign(static_cast<std::size_t>(parts * rows * c_.heads * dim) * size_of(to), kUntouched);
      t.rows.from = (is_v ? new_v_ : new_k_).data();
      t.rows.to = bytes.data();
      const long long wide = dim * c_.step;
      t.rows.from_strides = {c_.begins.empty() ? c_.len_new * c_.heads * wide : 0, wide, c_.heads * wide};
      t.rows.from_step = c_.step;
      t.to_step = 1;
      const long long part = static_cast<long long>(rows) * c_.heads * dim;
      t.rows.to_strides = c_.nhd ? TensorStrides{part, dim, static_cast<long long>(c_.heads) * dim}
                                 : TensorStrides{part, static_cast<long long>(rows) * dim, dim};
      t.rows.heads = c_.heads;
      t.rows.dim = t.rows.to_dim = dim;
      t.rows.element = static_cast<int>(c_.dtype);
      t.rows.to_element = static_cast<int>(to);
      if (to == c_.dtype) continue;
      auto& factors = is_v ? cache.v_factors : cache.k_factors;
      const bool channel = is_v && c_.channel;
      const int blocks = c_.scale_rows == 0 ? 1 : (rows + c_.scale_rows - 1) / c_.scale_rows;
      const int columns = channel ? dim : 1;
      t.rows.scales.strides = {static_cast<long long>(c_.heads) * blocks * columns,
                               static_cast<long long>(blocks) * columns, c_.scale_rows == 0 ? 0 : 1};
      t.rows.scales.rows = std::max(c_.scale_rows, 1);
      t.rows.scales.channel = channel ? 1 : 0;
      t.finds_factor = c_.scale_rows == 1 ? 1 : 0;
      factors.assign(static_cast<std::size_t>(std::max(parts, batch_) * c_.heads * blocks * columns), kUntouchedFactor);
      Random random(9);
      if (t.finds_factor == 0)
        for (float& factor : factors) factor = static_cast<float>(0.005 + 0.02 * random.uniform());
      t.rows.factors = factors.data();
    }
    cache.lengths_after.assign(c_.lengths.size(), -5);
    a.lengths = c_.lengths.data();
    a.lengths_after = cache.lengths_after.data();
    a.cu_seqlens = c_.begins.empty() ? nullptr : c_.begins.data();
    a.page_table = c_.page_size == 0 ? nullptr : table_.data();
    a.table_stride = pages_each_;
    a.batch = batch_;
    a.heads = c_.heads;
    a.len_new = c_.len_new;
    a.total_new = total_;
    a.len_cache = len_cache_;
    a.page_size = c_.page_size;
    a.pages = pages_;
    a.are_after = c_.are_after ? 1 : 0;
    return with_width(a);
  }

  /// The cache as the emulated GPU leaves it, which is as the host does and as `expected` says.
  const Cache& run(unsigned blocks = 3) {
    Cache on_host;
    append_on_host(append(on_host));
    const Append a = append(cache_);
    emulator::Launch launch;
    launch.grid.x = blocks;
    launch.threads = kAppendThreads;
    launch.seed = c_.seed;
    std::vector<std::vector<int>> shared(blocks, std::vector<int>(kStaged + 1));
    emulator::run(launch, [&](char*) { append_rows(a, shared[blockIdx.x].data()); });
    EXPECT_EQ(cache_, on_host);
    check(a);
    return cache_;
  }

  [[nodiscard]] int pages() const { return pages_; }
  [[nodiscard]] int page_bytes() const { return c_.page_size * c_.heads * c_.dim * static_cast<int>(size_of(c_.k)); }

 private:
  // Element by element, by the words of heed/append.h alone.
  void check(const Append& a) const {
    bool is_wrong = false;
    for (std::size_t i = 1; i < c_.begins.size(); ++i) is_wrong = is_wrong || c_.begins[i] < c_.begins[i - 1];
    std::map<std::size_t, double> k, v;  // what is written where
    for (int b = 0; b < batch_ && !is_wrong; ++b) {
      const auto entry = static_cast<std::size_t>(b);
      const int begin = c_.begins.empty() ? b * c_.len_new : c_.begins[entry];
      const int rows = c_.begins.empty() ? c_.len_new : std::min(c_.len_new, c_.begins[entry + 1] - begin);
      const long long given = std::max(c_.lengths[entry], 0);
      const long long before = c_.are_after ? given - rows : given;
      EXPECT_EQ(cache_.lengths_after[entry], std::min<long long>(len_cache_, c_.are_after ? given : given + rows));
      for (int i = 0; i < rows; ++i) {
        if (before + i < 0 || before + i >= len_cache_) continue;
        const int key = static_cast<int>(before + i);
        int part = b, row = key;
        if (c_.page_size > 0) {
          part = table_[static_cast<std::size_t>(b * pages_each_ + key / c_.page_size)];
          row = key % c_.page_size;
          if (part < 0 || part >= pages_) continue;
        }
        for (int h = 0; h < c_.heads; ++h)
          for (const bool is_v : {false, true})
            for (int d = 0; d < (is_v ? c_.dim_v : c_.dim); ++d) {
              const int dim = is_v ? c_.dim_v : c_.dim;
              const auto from =
                  static_cast<std::size_t>(((begin + i) * c_.heads + h) * dim + d) * static_cast<std::size_t>(c_.step);
              const TensorStrides& s = (is_v ? a.v : a.k).rows.to_strides;
              const auto to = static_cast<std::size_t>(part * s.batch + h * s.head + row * s.row + d);
              (is_v ? v : k)[to] = static_cast<double>(load_element(c_.dtype, (is_v ? new_v_ : new_k_).data(), from));
            }
      }
    }
    const auto compare = [&](const std::vector<unsigned char>& bytes, Dtype dtype,
                             const std::map<std::size_t, double>& wanted) {
      for (std::size_t i = 0; i < bytes.size() / size_of(dtype); ++i) {
        const auto at = wanted.find(i);
        if (at == wanted.end()) {
          for (std::size_t byte = 0; byte < size_of(dtype); ++byte)
            ASSERT_EQ(bytes[i * size_of(dtype) + byte], kUntouched) << i;
        } else if (dtype == c_.dtype) {
          ASSERT_EQ(static_cast<double>(load_element(dtype, bytes.data(), i)), at->second) << i;
        }
      }
    };
    compare(cache_.k, c_.k, k);
    compare(cache_.v, c_.v, v);
  }

  Case c_;
  Random random_;
  int batch_ = 0;
  int len_cache_ = 0;
  int pages_each_ = 0;
  int pages_ = 0;
  int total_ = 0;
  std::vector<int> table_;
  std::vector<unsigned char> new_k_, new_v_;
  Cache cache_;
};

TEST(AppendRows, GoBehindTheKeysOfTheirEntries) {
  for (const int page_size : {0, 1, 8, 16})
    for (const bool nhd : {true, false})
      for (const Dtype dtype : {Dtype::fp16, Dtype::bf16, Dtype::fp32})
        Appended({.dtype = dtype, .k = dtype, .v = dtype, .page_size = page_size, .nhd = nhd}).run();
}

// Rows that no 16 bytes divide, elements that do not follow each other, head dims of V unlike that of K.
TEST(AppendRows, OfAnyRows) {
  for (const auto& [dim, dim_v, step] :
       {std::tuple{1, 3, 1LL}, {72, 64, 1LL}, {64, 64, 2LL}, {256, 8, 1LL}, {33, 33, 1LL}})
    Appended({.dim = dim, .dim_v = dim_v, .step = step}).run(2);
}

TEST(AppendRows, OfEntriesWithNumbersOfTheirOwn) {
  Appended({.len_new = 9, .lengths = {3, 0, 5, 1}, .begins = {0, 4, 4, 13, 14}}).run();
  Appended({.len_new = 9, .page_size = 0, .lengths = {3, 0, 5, 1}, .begins = {2, 4, 4, 13, 14}}).run(1);
  // More entries than a thread block keeps the begins of.
  Case many{.heads = 1, .dim = 8, .dim_v = 8, .len_new = 1, .page_size = 0};
  many.lengths.assign(kStaged + 200, 2);
  for (int b = 0; b <= kStaged + 200; ++b) many.begins.push_back(b / 2);
  Appended(many).run(1);
}

TEST(AppendRows, LengthsMayBeThoseAfterTheAppend) {
  Appended({.lengths = {3, 10, 24}, .are_after = true}).run();
  Appended({.len_new = 9, .lengths = {4, 0, 14, 2}, .begins = {0, 4, 4, 13, 14}, .are_after = true}).run();
}

// What does not fit is left out: beyond the cache, before key 0, in pages that there are not, and of cu_seqlens that
// decrease or reach past the rows.
TEST(AppendRows, NothingIsWrittenBesideTheCache) {
  Appended({.lengths = {23, 24, 1 << 30}}).run();
  Appended({.page_size = 0, .lengths = {23, 24, 2147483647}}).run();
  Appended({.lengths = {-4, std::numeric_limits<int>::min(), 2}}).run();
  Appended({.lengths = {1, 0, -7}, .are_after = true}).run();
  for (const std::uint64_t seed : {1U, 2U}) {
    Appended wrong({.lengths = {0, 0, 0}, .wrong_page_entry = 1, .seed = seed});
    const auto& cache = wrong.run();
    // The last page is nobody's, and the nearest to one past the end.
    for (int byte = 0; byte < wrong.page_bytes(); ++byte)
      ASSERT_EQ(cache.k[cache.k.size() - 1 - static_cast<std::size_t>(byte)], kUntouched);
  }
  for (const std::vector<int>& begins : {std::vector{0, 5, 3, 8}, {-2, 1, 3, 8}}) {
    Appended decreasing({.len_new = 9, .lengths = {1, 2, 3}, .begins = begins});
    Appended::Cache cache;
    const Append a = decreasing.append(cache);
    const Appended::Cache before = cache;
    emulator::Launch launch;
    launch.threads = kAppendThreads;
    std::vector<int> shared(kStaged + 1);
    emulator::run(launch, [&](char*) { append_rows(a, shared.data()); });
    EXPECT_EQ(cache.k, before.k);
    EXPECT_EQ(cache.v, before.v);
    EXPECT_EQ(cache.lengths_after, (std::vector{1, 2, 3}));
    append_on_host(a);
    EXPECT_EQ(cache.k, before.k);
  }
}

TEST(AppendRows, CachesOf8BitsByGivenFactors) {
  for (const int page_size : {0, 8})
    for (const auto& [k, v] :
         {std::pair{Dtype::e4m3, Dtype::int8}, {Dtype::int8, Dtype::fp16}, {Dtype::fp16, Dtype::e5m2}})
      for (const int dim : {32, 128, 72}) {
        Case c{.k = k, .v = v, .dim = dim, .dim_v = dim, .page_size = page_size};
        Appended(c).run();
        c.scale_rows = 4;
        Appended(c).run();
        c.scale_rows = 0;
        c.channel = true;
        Appended(c).run();
      }
  // Elements are the nearest: of K, by the factor of its head.
  Appended one({.k = Dtype::int8, .heads = 1, .len_new = 1, .page_size = 0, .lengths = {5}});
  const auto& cache = one.run();
  Appended wide({.heads = 1, .len_new = 1, .page_size = 0, .lengths = {5}});
  const auto& as_it_is = wide.run();
  for (int d = 0; d < 64; ++d) {
    const auto at = static_cast<std::size_t>(5 * 64 + d);
    const float x = load_element(Dtype::fp16, as_it_is.k.data(), at);
    const float q = load_element(Dtype::int8, cache.k.data(), at) * cache.k_factors[0];
    const float most = 127 * cache.k_factors[0];
    ASSERT_NEAR(q, std::clamp(x, -128 * cache.k_factors[0], most), 0.51F * cache.k_factors[0]);
  }
}

TEST(AppendRows, RowsThatHaveFactorsFindThem) {
  for (const int page_size : {0, 8}) {
    Case c{.k = Dtype::e4m3, .v = Dtype::int8, .page_size = page_size, .scale_rows = 1};
    const auto cache = Appended(c).run();
    int found = 0;
    for (const float factor : cache.k_factors) {
      if (factor == kUntouchedFactor) continue;
      ++found;
      EXPECT_GT(factor, 1.0F / 448);  // of values up to 5
      EXPECT_LT(factor, 5.1F / 448);
    }
    EXPECT_EQ(found, 3 * 3 * 2);  // entries, rows and heads
  }
}

}  // namespace
}  // namespace heed::append
