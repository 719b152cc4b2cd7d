// The C interface of pools: what callers may do wrong, what is refused, what a pool says of itself.
#include <thread>

#include "offload/any_call.hpp"
#include "offload/offload.hpp"
#include "offload/offload_case.hpp"

namespace heed {
namespace {

using testing_support::Pool;
using testing_support::pool_config;
using testing_support::PoolCase;

void expect_said(heed_status status, heed_status expected, const std::string& words) {
  EXPECT_STREQ(heed_status_name(status), heed_status_name(expected)) << heed_last_error();
  EXPECT_THAT(std::string(heed_last_error()), ::testing::HasSubstr(words));
}
void expect_no_pool(const heed_offload_config& c, heed_status expected, const std::string& words) {
  heed_offload* pool = nullptr;
  expect_said(heed_offload_create(&c, &pool), expected, words);
  EXPECT_EQ(pool, nullptr);
}

TEST(Offload, ConfigsThatCannotBe) {
  const heed_offload_config good = pool_config(8, 2);
  heed_offload_config c = good;
  expect_said(heed_offload_create(nullptr, nullptr), HEED_INVALID_ARGUMENT, "second argument is null");
  heed_offload* pool = nullptr;
  expect_said(heed_offload_create(nullptr, &pool), HEED_INVALID_ARGUMENT, "heed_offload_config is null");
  const auto with = [&](auto&& change) {
    c = good;
    change();
    return c;
  };
  expect_no_pool(with([&] { c.struct_size = 8; }), HEED_INVALID_ARGUMENT, "set it with heed_offload_config_init");
  expect_no_pool(with([&] { c.abi_version = 1; }), HEED_INVALID_ARGUMENT, "abi_version is 1");
  expect_no_pool(with([&] { c.reserved[3] = 1; }), HEED_INVALID_ARGUMENT, "reserved fields");
  expect_no_pool(with([&] { c.device_type = 7; }), HEED_INVALID_ARGUMENT, "7 is no heed_device_type");
  expect_no_pool(with([&] { c.dtype = HEED_FP8_E4M3; }), HEED_UNSUPPORTED, "Q and O of heed_dtype 3");
  expect_no_pool(with([&] { c.page_layout = 2; }), HEED_INVALID_ARGUMENT, "2 is no heed_page_layout");
  expect_no_pool(with([&] { c.heads = 5; }), HEED_INVALID_PROBLEM, "5 query heads cannot share 2");
  expect_no_pool(with([&] { c.page_size = 12; }), HEED_INVALID_PROBLEM, "page_size is 12; it must be a multiple of 8");
  expect_no_pool(with([&] { c.host_pages = 0; }), HEED_INVALID_PROBLEM, "host_pages is 0");
  expect_no_pool(with([&] { c.device_pages = 9; }), HEED_INVALID_PROBLEM, "device_pages is 9; it must be 0 to 8");
  expect_no_pool(with([&] { c.link_rate = -1; }), HEED_INVALID_ARGUMENT, "link_rate is -1");
  expect_no_pool(with([&] { c.streamed_share = 1.5; }), HEED_INVALID_ARGUMENT, "streamed_share is 1.5");
  expect_no_pool(with([&] { c.threads = -1; }), HEED_INVALID_PROBLEM, "threads is -1");
  expect_no_pool(with([&] { c.programs = "/nowhere"; }), HEED_BAD_PROGRAMS, "/nowhere");
  expect_no_pool(with([&] {
                   c.host_pages = std::int64_t{1} << 27;
                   c.dim = c.dim_v = 512;
                   c.heads = c.heads_kv = 1024;
                   c.layers = 64;
                 }),
                 HEED_OUT_OF_MEMORY, "the host's part of a page pool");
  // A plan needs a program for the device's part.
  expect_no_pool(with([&] { c.dim = c.dim_v = 500; }), HEED_UNSUPPORTED, "");
  c = good;
  c.device_type = HEED_CUDA;
  c.link_latency = 1;
  expect_no_pool(c, HEED_INVALID_ARGUMENT, "of a simulated GPU");
}

TEST(Offload, CallsThatCannotBe) {
  const Pool pool(pool_config(8, 2));
  const std::int64_t id = pool.add();
  std::vector<float> room(4096);
  heed_offload_call good;
  heed_offload_call_init(&good);
  good.batch = 1;
  good.sequences = &id;
  good.len_q = 1;
  good.q = room.data();
  good.o = room.data() + 2048;
  heed_offload_call c = good;
  const auto refused = [&](auto&& change, heed_status status, const std::string& words) {
    c = good;
    change();
    expect_said(heed_offload_decode(pool.pool, &c, nullptr), status, words);
    std::int64_t keys = -1;
    EXPECT_EQ(heed_offload_length(pool.pool, id, 0, &keys), HEED_OK);
    EXPECT_EQ(keys, 0) << words;
  };
  refused([&] { c.struct_size = 1; }, HEED_INVALID_ARGUMENT, "set it with heed_offload_call_init");
  refused([&] { c.layer = 1; }, HEED_INVALID_PROBLEM, "layer is 1; it must be 0 to 0");
  refused([&] { c.batch = -1; }, HEED_INVALID_PROBLEM, "batch is -1");
  refused([&] { c.sequences = nullptr; }, HEED_INVALID_ARGUMENT, "the numbers of the sequences are null");
  refused([&] { c.q = nullptr; }, HEED_INVALID_ARGUMENT, "the address of Q is null");
  refused([&] { c.o = nullptr; }, HEED_INVALID_ARGUMENT, "the address of O is null");
  refused([&] { c.o = const_cast<void*>(c.q); }, HEED_INVALID_ARGUMENT, "O overlaps Q");
  refused([&] { c.len_k = 3; }, HEED_INVALID_ARGUMENT, "the address of K is null");
  refused([&] { c.mask = HEED_MASK_CAUSAL_TOP_LEFT; }, HEED_UNSUPPORTED, "no heed_mask 1");
  refused([&] { c.window_left = -2; }, HEED_INVALID_PROBLEM, "window_left is -2");
  refused([&] { c.scale = -1; }, HEED_INVALID_PROBLEM, "scale is -1");
  refused([&] { c.softcap = INFINITY; }, HEED_INVALID_PROBLEM, "softcap is inf");
  refused([&] { c.scale = 1e300; }, HEED_INVALID_PROBLEM, "scale=1e+300 cannot be used");
  refused([&] { c.scale = 1e-40; }, HEED_INVALID_PROBLEM, "scale=1e-40 cannot be used");
  refused([&] { c.softcap = 1e-31; }, HEED_INVALID_PROBLEM, "softcap=1e-31 cannot be used");
  refused([&] { c.q_strides = {-1, 1, 1, 1}; }, HEED_INVALID_ARGUMENT, "a stride of Q is -1");
  refused([&] { c.o_strides = {64, 16, 16, 2}; }, HEED_UNSUPPORTED, "the elements of a row of O are 2 apart");
  refused(
      [&] {
        c.q = room.data() + 1;
        c.q = reinterpret_cast<const char*>(c.q) + 1;
      },
      HEED_INVALID_ARGUMENT, "a multiple of 4 bytes");
  const std::int64_t other = 99;
  refused([&] { c.sequences = &other; }, HEED_INVALID_ARGUMENT, "the pool has no sequence 99");
  expect_said(heed_offload_decode(pool.pool, nullptr, nullptr), HEED_INVALID_ARGUMENT, "heed_offload_call is null");
  // Without keys a row is zeros.
  ASSERT_EQ(heed_offload_decode(pool.pool, &good, nullptr), HEED_OK) << heed_last_error();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(room[2048 + static_cast<std::size_t>(i)], 0);
}

// Refused before a key is in pages, on every path through a call.
TEST(Offload, OutputsLieApart) {
  const Pool pool(pool_config(8, 2));
  const std::int64_t id = pool.add();
  std::vector<float> room(4096, 0.5F);
  heed_offload_call good;
  heed_offload_call_init(&good);
  good.batch = 1;
  good.sequences = &id;
  good.len_k = 4;
  good.k = room.data();
  good.v = room.data() + 512;
  good.len_q = 3;
  good.q = room.data() + 1024;
  good.o = room.data() + 2048;
  good.lse = room.data() + 3072;
  good.sinks = room.data() + 3584;
  const auto refused = [&](const std::string& words, auto&& change) {
    heed_offload_call c = good;
    change(c);
    for (const auto function : {&heed_offload_decode, &heed_offload_prefill})
      expect_said(function(pool.pool, &c, nullptr), HEED_INVALID_ARGUMENT, words);
    EXPECT_EQ(pool.info().host_pages_free, 8) << words;
  };
  using Call = heed_offload_call;
  const auto last_of = [](const void* at, std::int64_t floats) {
    return const_cast<float*>(static_cast<const float*>(at)) + floats - 1;
  };
  refused("O overlaps lse", [](Call& c) { c.lse = static_cast<float*>(c.o); });
  refused("O overlaps sinks", [](Call& c) { c.sinks = static_cast<float*>(c.o) + 4 * 3 * 16 - 1; });
  refused("O overlaps K", [&](Call& c) { c.o = last_of(c.k, 4 * 2 * 16); });
  refused("O overlaps V", [](Call& c) { c.o = const_cast<void*>(c.v); });
  refused("O overlaps Q", [&](Call& c) { c.o = last_of(c.q, 3 * 4 * 16); });
  refused("lse overlaps Q", [&](Call& c) { c.lse = last_of(c.q, 3 * 4 * 16); });
  refused("lse overlaps K", [&](Call& c) { c.lse = last_of(c.k, 4 * 2 * 16); });
  refused("lse overlaps sinks", [](Call& c) { c.sinks = c.lse + 3 * 4 - 1; });
  refused("the row stride of O is 15, so that its 3 entries would be written over one another",
          [](Call& c) { c.o_strides = {256, 64, 15, 1}; });
  refused("the row stride of O is 0", [](Call& c) { c.o_strides = {256, 64, 0, 1}; });
  // New keys of 8 bits end earlier, and without new keys their addresses are nobody's.
  heed_offload_call c = good;
  c.o = room.data() + 128;
  c.len_k = 0;
  ASSERT_EQ(heed_offload_decode(pool.pool, &c, nullptr), HEED_OK) << heed_last_error();
  ASSERT_EQ(heed_offload_decode(pool.pool, &good, nullptr), HEED_OK) << heed_last_error();
}

// For a window no program is there: only launches know, when keys are in pages.
TEST(Offload, AFailedCallKeepsNoPage) {
  testing_support::TemporaryFolder folder;
  const std::string without_windows = testing_support::build_pool_programs({{"fp32", ""}}, folder.file("heed.programs"),
                                                                           "fwd_cpu:unit=vector", 16, {""});
  const Pool pool(pool_config(8, 4, HEED_FP32, without_windows));
  const std::int64_t one = pool.add();
  const std::int64_t two = pool.add();
  PoolCase first(pool, {one}, 1);
  ASSERT_EQ(first.run(0, 20, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
  PoolCase second(pool, {two}, 2);
  second.call().mask = HEED_MASK_CAUSAL_BOTTOM_RIGHT;
  second.call().window_left = 3;
  for (const auto function : {&heed_offload_decode, &heed_offload_prefill}) {
    expect_said(second.run(0, 36, 6, function), HEED_UNSUPPORTED, "holds no program");
    const heed_offload_info info = pool.info();
    EXPECT_EQ(info.host_pages_free, 5);
    EXPECT_EQ(info.device_pages_free + 3 - info.remote_pages, 4) << "free, or of the first sequence";
  }
  ASSERT_EQ(first.run(0, 40, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
  first.check(2e-5);
}

TEST(Offload, AFullPoolIsSaidAndSequencesMakeRoom) {
  const Pool pool(pool_config(4, 2));
  const std::int64_t one = pool.add();
  const std::int64_t two = pool.add();
  PoolCase first(pool, {one}, 1);
  PoolCase second(pool, {two}, 2);
  ASSERT_EQ(first.run(0, 24, 2, &heed_offload_prefill), HEED_OK) << heed_last_error();
  expect_said(second.run(0, 9, 1, &heed_offload_prefill), HEED_OUT_OF_MEMORY, "the pool is full");
  ASSERT_EQ(second.run(0, 8, 1, &heed_offload_prefill), HEED_OK) << heed_last_error();
  second.check(2e-5);
  ASSERT_EQ(heed_offload_remove(pool.pool, one), HEED_OK);
  EXPECT_EQ(pool.info().host_pages_free, 3);
  ASSERT_EQ(second.run(0, 20, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
  second.check(2e-5);
  expect_said(first.run(0, 0, 1, &heed_offload_decode), HEED_INVALID_ARGUMENT, "it was removed, or never added");
}

// As many threads of the processors' part as are asked for: one, and more than there are heads.
TEST(Offload, OneThreadIsEnough) {
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 7}) {
    heed_offload_config c = pool_config(32, 2);
    c.threads = threads;
    c.streamed_share = 0;
    const Pool pool(c);
    PoolCase one(pool, {pool.add()}, 3);
    ASSERT_EQ(one.run(0, 200, 2, &heed_offload_decode), HEED_OK) << heed_last_error();
    one.check(2e-5);
    results.push_back(one.o());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// The same tables serve a plan of the library: pages are those of HEED_PAGED.
TEST(Offload, PagesAreThoseOfPagedPlans) {
  const Pool pool(pool_config(16, 3));
  const std::int64_t id = pool.add();
  PoolCase one(pool, {id}, 5);
  ASSERT_EQ(one.run(0, 61, 1, &heed_offload_prefill), HEED_OK) << heed_last_error();
  one.check(2e-5);
  heed_problem p;
  heed_problem_init(&p);
  p.heads = 4;
  p.heads_kv = 2;
  p.dim = p.dim_v = 16;
  p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_o = HEED_FP32;
  p.len_k = 64;
  p.page_size = 8;
  p.pages = 16;
  p.page_table_stride = 8;
  p.flags = HEED_PAGED | HEED_KEY_LENGTHS;
  heed_options o;
  heed_options_init(&o);
  o.programs = pool.config.programs;
  heed_plan* plan = nullptr;
  ASSERT_EQ(heed_plan_create(&p, &o, &plan), HEED_OK) << heed_last_error();
  std::int32_t table[8] = {};
  ASSERT_EQ(heed_offload_table(pool.pool, &id, 1, table, 8), HEED_OK);
  expect_said(heed_offload_table(pool.pool, &id, 1, table, 7), HEED_INVALID_ARGUMENT,
              "has 8 pages; rows of the table are 7");
  heed_tensors t;
  heed_tensors_init(&t);
  std::vector<float> out(64);
  const std::int32_t keys = 61;
  t.q = one.call().q;
  t.o = out.data();
  t.page_table = table;
  t.seqused_k = &keys;
  ASSERT_EQ(heed_offload_pages(pool.pool, 0, &t.k, &t.v), HEED_OK);
  ASSERT_EQ(heed_plan_run(plan, &t, nullptr, nullptr), HEED_OK) << heed_last_error();
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], one.o()[i], 1e-5);
  heed_plan_destroy(plan);
  const void* k = nullptr;
  expect_said(heed_offload_pages(pool.pool, 1, &k, &k), HEED_INVALID_PROBLEM, "no such layer");
  expect_said(heed_offload_pages(pool.pool, 0, nullptr, &k), HEED_INVALID_ARGUMENT, "one is null");
}

TEST(Offload, RatesAreMeasuredAndExplained) {
  heed_offload_config c = pool_config(32, 4);
  c.link_rate = c.host_rate = c.device_rate = c.device_flops = 0;
  c.link_bandwidth = 50e6;
  const Pool pool(c);
  const heed_offload_info info = pool.info();
  EXPECT_LE(info.link_rate, 51e6) << "a simulated link is as slow as it was made";
  EXPECT_GT(info.link_rate, 0);
  EXPECT_GT(info.host_rate, 0);
  EXPECT_GT(info.device_flops, 0);
  const std::int64_t id = pool.add();
  PoolCase one(pool, {id}, 5);
  ASSERT_EQ(one.run(0, 100, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
  const std::string text = pool.explain({id});
  for (const char* words :
       {"a simulated GPU, 4 of 4 pages used", "measured when the pool was made", "the link is hidden from",
        "4 pages on the device, 9 in host memory", "over the link", "moving    "})
    EXPECT_THAT(text, ::testing::HasSubstr(words));
  char few[8];
  EXPECT_EQ(heed_offload_explain(pool.pool, nullptr, 0, few, sizeof few), pool.explain().size());
  EXPECT_STREQ(few, "device ");
  const std::int64_t other = 1234;
  EXPECT_THAT(pool.explain({other}),
              ::testing::HasSubstr("refused   HEED_INVALID_ARGUMENT: the pool has no sequence 1234"));
}

// More than the link could bring at once, on the processors: nothing but the streamed share goes over the link.
TEST(Offload, OnlyTheStreamedShareGoesOverTheLink) {
  for (const double share : {0.0, 0.5, 1.0}) {
    heed_offload_config c = pool_config(32, 4);
    c.streamed_share = share;
    const Pool pool(c);
    PoolCase one(pool, {pool.add()}, 5);
    ASSERT_EQ(one.run(0, 12 * 8, 0, &heed_offload_append), HEED_OK) << heed_last_error();
    const double before = pool.info().bytes_in;
    EXPECT_GT(pool.info().bytes_out, 0);
    ASSERT_EQ(one.run(0, 0, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
    one.check(2e-5);
    EXPECT_EQ(pool.info().bytes_in - before, share * 8 * 2 * 8 * 2 * 16 * 4) << share;
  }
}

// A sequence ends: pages of the others come to the device, those of all layers, and results are as before.
TEST(Offload, PagesComeBackWhereTheDeviceHasRoomAgain) {
  heed_offload_config c = pool_config(64, 8);
  c.layers = 2;
  const Pool pool(c);
  const std::int64_t one = pool.add();
  const std::int64_t two = pool.add();
  PoolCase first(pool, {one}, 1);
  PoolCase second(pool, {two}, 2);
  for (const int layer : {0, 1})
    ASSERT_EQ(first.run(layer, 100, 1, &heed_offload_prefill), HEED_OK) << heed_last_error();
  for (const int layer : {0, 1})
    ASSERT_EQ(second.run(layer, 100, 1, &heed_offload_prefill), HEED_OK) << heed_last_error();
  ASSERT_EQ(heed_offload_remove(pool.pool, one), HEED_OK);
  EXPECT_EQ(pool.info().remote_pages, 9);
  for (const std::int64_t left : {5, 5}) {
    for (const int layer : {0, 1}) {
      ASSERT_EQ(second.run(layer, 1, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
      second.check(2e-5);
    }
    EXPECT_EQ(pool.info().remote_pages, left) << "four pages are free, and four come in a call";
  }
  // Where the device is the bound a page pays for nothing.
  c.device_rate = 1e8;
  const Pool slow(c);
  const std::int64_t three = slow.add();
  const std::int64_t four = slow.add();
  PoolCase third(slow, {three}, 1);
  PoolCase fourth(slow, {four}, 2);
  for (const int layer : {0, 1})
    ASSERT_EQ(third.run(layer, 100, 1, &heed_offload_prefill), HEED_OK) << heed_last_error();
  for (const int layer : {0, 1})
    ASSERT_EQ(fourth.run(layer, 100, 1, &heed_offload_prefill), HEED_OK) << heed_last_error();
  ASSERT_EQ(heed_offload_remove(slow.pool, three), HEED_OK);
  ASSERT_EQ(fourth.run(0, 1, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
  EXPECT_EQ(slow.info().remote_pages, 9);
}

// Random bytes as configs and calls.
TEST(Offload, AnyFieldIsAnswered) {
  for (const bool has_eight_bits : {false, true}) {
    const heed_offload_config given =
        has_eight_bits ? testing_support::eight_bit_config(16, 4, HEED_INT8, 2) : pool_config(16, 4);
    Random random(11);
    int made = 0;
    for (int round = 0; round < 400; ++round) {
      std::vector<std::uint8_t> bytes(400);
      for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.below(256));
      testing_support::Choices choices(bytes.data(), bytes.size());
      made += testing_support::try_any_pool(given, choices) ? 1 : 0;
    }
    EXPECT_GT(made, 50) << "pools whose calls were tried";
  }
}

TEST(Offload, HandlesThatAreNone) {
  std::int64_t id = 0;
  expect_said(heed_offload_add(nullptr, &id), HEED_INVALID_ARGUMENT, "the pool is null");
  heed_offload* pool = nullptr;
  const heed_offload_config c = pool_config(2, 0);
  ASSERT_EQ(heed_offload_create(&c, &pool), HEED_OK) << heed_last_error();
  expect_said(heed_offload_add(pool, nullptr), HEED_INVALID_ARGUMENT, "nowhere to put the sequence's number");
  expect_said(heed_offload_get_info(pool, nullptr), HEED_INVALID_ARGUMENT, "the info is null");
  expect_said(heed_offload_length(pool, 1, 0, nullptr), HEED_INVALID_ARGUMENT, "nowhere to put the number");
  heed_offload_destroy(pool);
  heed_offload_destroy(pool);
  heed_offload_destroy(nullptr);
  expect_said(heed_offload_add(pool, &id), HEED_INVALID_ARGUMENT, "the pool was destroyed");
}

// Sequences come, grow and go on several threads: each has what it would have alone.
TEST(Offload, ThreadsTakeTurns) {
  heed_offload_config c = pool_config(64, 8);
  c.link_latency = 50e-6;
  const Pool pool(c);
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    threads.emplace_back([&pool, seed] {
      for (int round = 0; round < 3; ++round) {
        const std::int64_t id = pool.add();
        PoolCase one(pool, {id}, seed);
        for (const std::int64_t keys : {50, 1, 1}) {
          EXPECT_EQ(one.run(0, keys, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
          one.check(2e-5);
        }
        EXPECT_EQ(heed_offload_remove(pool.pool, id), HEED_OK);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.info().host_pages_free, 64);
}

}  // namespace
}  // namespace heed
