// Pages of 8 bits: what pages hold of a key, what the link carries, what is refused.
#include <array>

#include "offload/offload_case.hpp"

namespace heed {
namespace {

using testing_support::eight_bit_config;
using testing_support::Pool;
using testing_support::pool_config;
using testing_support::PoolCase;

void expect_said(heed_status status, heed_status expected, const std::string& words) {
  EXPECT_STREQ(heed_status_name(status), heed_status_name(expected)) << heed_last_error();
  EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr(words));
}

TEST(EightBitPages, ConfigsThatCannotBe) {
  const auto refused = [](auto&& change, heed_status status, const std::string& words, int dtype_kv = HEED_FP8_E4M3) {
    heed_offload_config c = eight_bit_config(8, 2, dtype_kv, 2);
    std::array<float, 4> factors = {0.1F, 0.1F, 0.1F, 0.1F};
    c.k_scales = factors.data();
    change(c, factors);
    heed_offload* pool = nullptr;
    expect_said(heed_offload_create(&c, &pool), status, words);
    EXPECT_EQ(pool, nullptr);
  };
  using Factors = std::array<float, 4>;
  for (const int dtype : {int{HEED_BF16}, int{HEED_FP32}, int{HEED_BOOL}, -1, 77})
    refused([&](heed_offload_config& c, Factors&) { c.dtype_kv = dtype; }, HEED_UNSUPPORTED,
            fmt::format("dtype_kv is {}; pages are of HEED_FP8_E4M3", dtype));
  for (const auto& [factor, text] :
       {std::pair{0.0F, "0"}, {-1.0F, "-1"}, {NAN, "nan"}, {INFINITY, "inf"}, {-INFINITY, "-inf"}})
    refused([&, factor = factor](heed_offload_config&, Factors& factors) { factors[1] = factor; },
            HEED_INVALID_ARGUMENT, fmt::format("k_scales[1] is {}; a scale factor must be positive and finite", text));
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{3}, std::int64_t{-1}, INT64_MAX})
    refused([&](heed_offload_config& c, Factors&) { c.k_scale_count = count; }, HEED_INVALID_ARGUMENT,
            fmt::format("there are {} k_scales; give 1, heads_kv (2) or layers * heads_kv (2) factors", count));
  refused([](heed_offload_config& c, Factors&) { c.v_scales = nullptr; }, HEED_INVALID_ARGUMENT,
          "v_scales is null, and its count is 2");
  refused(
      [](heed_offload_config& c, Factors&) {
        c.v_scales = nullptr;
        c.v_scale_count = 0;
      },
      HEED_INVALID_ARGUMENT, "v_scales is null, and elements of HEED_INT8 are whole numbers", HEED_INT8);
  refused([](heed_offload_config& c, Factors&) { c.dtype_kv = 0; }, HEED_INVALID_ARGUMENT,
          "k_scales is given, and pages are not of 8 bits");
  // The file has programs for pages of fp8 beside fp16 alone.
  refused([](heed_offload_config& c, Factors&) { c.dtype = HEED_FP32; }, HEED_UNSUPPORTED,
          "heed programs build --page-dtypes e4m3 --dims 16 makes a file that does");
}

TEST(EightBitPages, CallsThatCannotBe) {
  const Pool eight(eight_bit_config(8, 2, HEED_FP8_E4M3, 1));
  const Pool plain(pool_config(8, 2));
  std::vector<float> room(4096);
  const auto refused = [&](const Pool& pool, int dtype_kv, const std::string& words) {
    const std::int64_t id = pool.add();
    heed_offload_call c;
    heed_offload_call_init(&c);
    c.batch = 1;
    c.sequences = &id;
    c.len_k = 1;
    c.k = c.v = room.data();
    c.dtype_kv = dtype_kv;
    expect_said(heed_offload_append(pool.pool, &c, nullptr), HEED_UNSUPPORTED, words);
    std::int64_t keys = -1;
    EXPECT_EQ(heed_offload_length(pool.pool, id, 0, &keys), HEED_OK);
    EXPECT_EQ(keys, 0);
  };
  refused(eight, HEED_INT8,
          "new keys are of heed_dtype 5; pages are of 3: give dtype_kv 0 and keys of heed_dtype 0, or");
  refused(eight, HEED_BF16, "new keys are of heed_dtype 1");
  refused(plain, HEED_FP8_E4M3, "pages are of 2: give dtype_kv 0 and keys of heed_dtype 2");
}

// Keys of one sequence, given as these numbers in the config's dtype, as pages have them: (heads_kv, page_size, dim).
std::vector<unsigned char> written(const heed_offload_config& c, const std::vector<float>& numbers) {
  const Pool pool(c);
  const std::int64_t id = pool.add();
  const auto dtype = static_cast<Dtype>(c.dtype);
  std::vector<std::byte> given(numbers.size() * 4);
  for (std::size_t i = 0; i < numbers.size(); ++i) store_element(dtype, given.data(), i, numbers[i]);
  heed_offload_call call;
  heed_offload_call_init(&call);
  call.batch = 1;
  call.sequences = &id;
  call.len_k = c.page_size;
  call.k = call.v = given.data();
  EXPECT_EQ(heed_offload_append(pool.pool, &call, nullptr), HEED_OK) << heed_last_error();
  const void* k = nullptr;
  const void* v = nullptr;
  EXPECT_EQ(heed_offload_pages(pool.pool, 0, &k, &v), HEED_OK);
  std::int32_t page = -1;
  EXPECT_EQ(heed_offload_table(pool.pool, &id, 1, &page, 1), HEED_OK);
  const auto* const at = static_cast<const unsigned char*>(k) + page * static_cast<std::ptrdiff_t>(numbers.size());
  return {at, at + numbers.size()};
}

TEST(EightBitPages, NumbersAreRoundedAndSaturateAndNaNStays) {
  const std::size_t of_head = std::size_t{8} * 16;
  std::vector<float> numbers(2 * of_head, 1.0F);
  numbers[0] = 600;  // beyond 448 * 0.5
  numbers[1] = -1000;
  numbers[2] = INFINITY;
  numbers[3] = NAN;
  numbers[4] = -0.0F;
  numbers[5] = 8.5F * 0.5F;  // half way between 8 and 9 of e4m3's and int8's numbers
  numbers[6] = 9.5F * 0.5F;
  const float factors[] = {0.5F, 0.25F};
  heed_offload_config c = eight_bit_config(4, 1, HEED_FP8_E4M3, 2);
  c.k_scales = factors;
  const std::vector<unsigned char> fp8 = written(c, numbers);
  EXPECT_EQ(fp8[0], 0x7e);
  EXPECT_EQ(fp8[1], 0xfe);
  EXPECT_EQ(fp8[2] & 0x7f, 0x7f) << "e4m3 has no infinity: NaN, so that it shows";
  EXPECT_EQ(fp8[3] & 0x7f, 0x7f);
  EXPECT_EQ(fp8[4], 0x80);
  EXPECT_EQ(fp8[5], 0x50) << "8, the even one";
  EXPECT_EQ(fp8[6], 0x52) << "10";
  EXPECT_EQ(fp8[7], 0x40) << "1 / 0.5";
  EXPECT_EQ(fp8[of_head], 0x48) << "1 / 0.25, the other head's factor";
  c = eight_bit_config(4, 1, HEED_INT8, 2);
  c.k_scales = factors;
  const std::vector<unsigned char> int8 = written(c, numbers);
  EXPECT_EQ(int8[0], 127);
  EXPECT_EQ(int8[1], 0x80) << "-128";
  EXPECT_EQ(int8[2], 127);
  EXPECT_EQ(int8[3], 0) << "int8 has no NaN";
  EXPECT_EQ(int8[5], 8);
  EXPECT_EQ(int8[6], 10);
  EXPECT_EQ(int8[of_head], 4);
}

// A row that sees a key of NaN is NaN, wherever the key lies.
TEST(EightBitPages, ANaNIsSeen) {
  for (const std::int64_t device_pages : {0, 8}) {
    const Pool pool(eight_bit_config(8, device_pages, HEED_FP8_E4M3, 1));
    PoolCase one(pool, {pool.add()}, 3);
    ASSERT_EQ(one.run(0, 40, 1, &heed_offload_prefill), HEED_OK) << heed_last_error();
    std::vector<std::uint16_t> keys(32, 0x7e00);
    heed_offload_call call = one.call();
    call.len_k = 1;
    call.k_strides = call.v_strides = {};
    call.dtype_kv = 0;
    call.k = keys.data();
    call.v = keys.data();
    call.len_q = 0;
    ASSERT_EQ(heed_offload_append(pool.pool, &call, nullptr), HEED_OK) << heed_last_error();
    ASSERT_EQ(one.run(0, 1, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
    for (const float x : one.o()) EXPECT_TRUE(std::isnan(x));
  }
}

// Half of the bytes of pages in 16 bits, and what follows from that.
TEST(EightBitPages, TheLinkCarriesABytePerElement) {
  for (const bool is_quantised_before : {false, true}) {
    heed_offload_config c = eight_bit_config(32, 4, HEED_FP8_E4M3, 2);
    c.streamed_share = 1;
    const Pool pool(c);
    PoolCase one(pool, {pool.add()}, 5);
    one.gives_eight_bits = is_quantised_before;
    ASSERT_EQ(one.run(0, 12 * 8, 0, &heed_offload_append), HEED_OK) << heed_last_error();
    constexpr double kPage = 2 * 8 * 2 * 16;
    EXPECT_EQ(pool.info().bytes_out, 12 * kPage);
    const double before = pool.info().bytes_in;
    ASSERT_EQ(one.run(0, 0, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
    one.check(2e-3);
    EXPECT_EQ(pool.info().bytes_in - before, 8 * kPage);
    const std::string text = pool.explain({one.call().sequences[0]});
    for (const char* words : {"512 B of K and V in e4m3 a page and layer", "the link is hidden from 25 query rows"})
      EXPECT_THAT(text, ::testing::HasSubstr(words));
  }
  heed_offload_config plain = pool_config(32, 4, HEED_FP16);
  EXPECT_THAT(Pool(plain).explain(), ::testing::HasSubstr("the link is hidden from 50 query rows"));
}

// Plans copy nothing beside quantised tensors; the pool copies queries.
TEST(EightBitPages, QueriesMayHaveAnyStrides) {
  for (const std::int64_t device_pages : {0, 3, 16})
    for (const auto function : {&heed_offload_decode, &heed_offload_prefill}) {
      heed_offload_config c = eight_bit_config(16, device_pages, HEED_FP8_E4M3, 1);
      c.streamed_share = 0.5;
      const Pool pool(c);
      PoolCase one(pool, {pool.add(), pool.add()}, 5);
      ASSERT_EQ(one.run(0, 50, 3, function), HEED_OK) << heed_last_error();
      one.check(2e-3);
      heed_offload_call call = one.call();
      call.len_k = 0;
      const auto* const q = static_cast<const std::uint16_t*>(call.q);
      std::vector<std::uint16_t> columns(2 * 4 * 3 * 16);  // (batch, heads, dim, rows)
      for (std::size_t i = 0; i < columns.size(); ++i) columns[i / 48 * 48 + i % 16 * 3 + i / 16 % 3] = q[i];
      std::vector<std::uint16_t> o(columns.size());
      call.q = columns.data();
      call.q_strides = {4 * 48, 48, 1, 3};
      call.o = o.data();
      call.lse = nullptr;
      ASSERT_EQ(function(pool.pool, &call, nullptr), HEED_OK) << heed_last_error();
      for (std::size_t i = 0; i < o.size(); ++i) ASSERT_EQ(load_element(Dtype::fp16, o.data(), i), one.o()[i]) << i;
    }
}

// Without factors they are 1, as a serving engine's cache of e4m3 has them by default.
TEST(EightBitPages, WithoutFactorsTheyAreOne) {
  heed_offload_config c = eight_bit_config(16, 2, HEED_FP8_E4M3, 1);
  const float one_of_all = 1;
  c.k_scales = c.v_scales = nullptr;
  c.k_scale_count = c.v_scale_count = 0;
  const Pool pool(c);
  ASSERT_NE(pool.pool, nullptr);
  heed_offload_config told = c;
  told.k_scales = told.v_scales = &one_of_all;
  told.k_scale_count = told.v_scale_count = 1;
  const Pool other(told);
  PoolCase one(other, {other.add()}, 5);
  ASSERT_EQ(one.run(0, 50, 2, &heed_offload_prefill), HEED_OK) << heed_last_error();
  one.check(2e-3);
  const std::int64_t id = pool.add();
  heed_offload_call call = one.call();
  std::vector<std::uint16_t> o(4 * 2 * 16);
  call.sequences = &id;
  call.o = o.data();
  call.lse = nullptr;
  ASSERT_EQ(heed_offload_prefill(pool.pool, &call, nullptr), HEED_OK) << heed_last_error();
  for (std::size_t i = 0; i < o.size(); ++i) EXPECT_EQ(load_element(Dtype::fp16, o.data(), i), one.o()[i]);
}

}  // namespace
}  // namespace heed
