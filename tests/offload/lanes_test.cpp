// Lanes of a simulated GPU, and pools whose calls are not waited for: order, overlap, pages that are freed while they
// are read, a device that is lost.
#include "offload/lanes.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include "offload/offload.hpp"
#include "offload/offload_case.hpp"

namespace heed::offload {
namespace {

using testing_support::pool_config;

TEST(SimulatedLanes, WaitForMarksOfOthers) {
  const auto lanes = make_simulated_lanes({});
  std::vector<char> from(1 << 16, 'a');
  std::vector<char> to(1 << 16, 'b');
  std::atomic<bool> may_go{false};
  std::atomic<bool> is_seen{false};
  lanes->call([&] {
    while (!may_go) std::this_thread::yield();
  });
  const MarkPointer mark = lanes->record(Lane::host);
  lanes->wait(Lane::in, mark);
  lanes->copy_in(Lane::in, to.data(), from.data(), from.size());
  const MarkPointer copied = lanes->record(Lane::in);
  EXPECT_FALSE(lanes->is_done(copied));
  EXPECT_EQ(to[0], 'b');
  lanes->wait(Lane::host, copied);
  lanes->call([&] { is_seen = to.back() == 'a'; });
  may_go = true;
  lanes->finish_all();
  EXPECT_TRUE(is_seen);
  EXPECT_TRUE(lanes->is_done(copied));
  EXPECT_EQ(lanes->traffic().bytes_in, 1 << 16);
}

TEST(SimulatedLanes, TimesBetweenMarks) {
  const auto lanes = make_simulated_lanes({.bandwidth = 0, .latency = 2e-3});
  char bytes[2] = {};
  std::atomic<bool> may_go{false};
  lanes->call([&] {
    while (!may_go) std::this_thread::yield();
  });
  const MarkPointer begin = lanes->record_time(Lane::in);
  lanes->wait(Lane::in, lanes->record(Lane::host));
  lanes->copy_in(Lane::in, bytes, bytes + 1, 1);
  const MarkPointer end = lanes->record_time(Lane::in);
  EXPECT_FALSE(lanes->seconds_between(begin, end).has_value());
  may_go = true;
  lanes->finish_all();
  EXPECT_GE(lanes->seconds_between(begin, end).value(), 2e-3);
}

TEST(SimulatedLanes, ALostDeviceIsToldAndNobodyWaitsForEver) {
  const auto lanes = make_simulated_lanes({.bandwidth = 0, .latency = 0, .fail_after = 1});
  char from = 'a';
  char to = 'b';
  lanes->copy_in(Lane::in, &to, &from, 1);
  lanes->copy_in(Lane::in, &to, &from, 1);
  const MarkPointer mark = lanes->record(Lane::in);
  lanes->wait(Lane::compute, mark);
  EXPECT_THROW(lanes->finish_all(), Error);
  EXPECT_THROW(lanes->copy_in(Lane::in, &to, &from, 1), Error);
  EXPECT_THROW(lanes->call([] {}), Error);
}

// A pool in C++, whose calls return before they are done.
struct Queued {
  explicit Queued(heed_offload_config c, std::int64_t fail_after = -1) {
    Config config = read_config(&c);
    config.simulation.fail_after = fail_after;
    pool = std::make_unique<Offload>(config);
  }
  // K, V, Q of ones times a value; what a row is then is known.
  void fill(float key, float value, std::int64_t keys) {
    k.assign(static_cast<std::size_t>(keys) * 2 * 16, key);
    v.assign(static_cast<std::size_t>(keys) * 2 * 16, value);
  }
  Call call(std::int64_t id, std::int64_t keys, std::vector<float>& o) const {
    Call c;
    c.ids = {id};
    c.new_keys = keys;
    c.k = reinterpret_cast<const std::byte*>(k.data());
    c.v = reinterpret_cast<const std::byte*>(v.data());
    c.k_strides = c.v_strides = {2 * keys * 16, keys * 16, 16, 1};
    c.rows = 1;
    c.q = reinterpret_cast<const std::byte*>(q.data());
    c.o = reinterpret_cast<std::byte*>(o.data());
    c.q_strides = c.o_strides = {64, 16, 16, 1};
    c.scale = 1;
    return c;
  }
  std::vector<float> k;
  std::vector<float> v;
  std::vector<float> q = std::vector<float>(64, 0.1F);
  std::unique_ptr<Offload> pool;
};

TEST(QueuedOffload, CallsReturnBeforeTheyAreDone) {
  heed_offload_config c = pool_config(32, 2);
  c.link_latency = 20e-3;
  c.streamed_share = 1;
  Queued queued(c);
  queued.fill(1, 3, 96);
  std::vector<float> o(64, 0);
  const std::int64_t id = queued.pool->add();
  const auto begin = std::chrono::steady_clock::now();
  queued.pool->attend(queued.call(id, 96, o), true, nullptr);
  const float seen = o[0];
  // K and V of five chunks take 20 ms each; a machine that was busy for as long tells nothing.
  if (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(100)) {
    EXPECT_EQ(seen, 0);
  }
  queued.pool->finish();
  for (const float x : o) EXPECT_NEAR(x, 3, 1e-5);
}

// Pages of a removed sequence are written again only when those that read them have ended.
TEST(QueuedOffload, PagesThatAreFreedWhileTheyAreRead) {
  heed_offload_config c = pool_config(12, 0);
  c.link_latency = 5e-3;
  for (const double share : {0.0, 0.5, 1.0}) {
    c.streamed_share = share;
    Queued queued(c);
    queued.fill(1, 3, 96);
    Queued other(c);
    std::vector<float> o(64, 0);
    std::vector<float> o2(64, 0);
    const std::int64_t id = queued.pool->add();
    queued.pool->attend(queued.call(id, 96, o), true, nullptr);
    queued.pool->remove(id);
    const std::int64_t second = queued.pool->add();
    other.fill(1, -5, 96);
    queued.pool->attend(other.call(second, 96, o2), true, nullptr);
    queued.pool->finish();
    for (const float x : o) EXPECT_NEAR(x, 3, 1e-5) << share;
    for (const float x : o2) EXPECT_NEAR(x, -5, 1e-5) << share;
  }
}

// More calls than the host may be ahead of the device, each over all keys before.
TEST(QueuedOffload, ManyCallsInARow) {
  heed_offload_config c = pool_config(32, 3);
  c.link_latency = 100e-6;
  Queued queued(c);
  queued.fill(1, 2, 1);
  const std::int64_t id = queued.pool->add();
  std::vector<std::vector<float>> o(100, std::vector<float>(64, 0));
  for (auto& one : o) queued.pool->attend(queued.call(id, 1, one), true, nullptr);
  queued.pool->finish();
  for (const auto& one : o)
    for (const float x : one) ASSERT_NEAR(x, 2, 1e-5);
}

TEST(QueuedOffload, ALostDeviceIsSaidOnceAndForAll) {
  heed_offload_config c = pool_config(32, 2);
  c.streamed_share = 1;
  for (const std::int64_t copies : {0, 1, 3, 6}) {
    Queued queued(c, copies);
    queued.fill(1, 3, 96);
    std::vector<float> o(64, 0);
    const std::int64_t id = queued.pool->add();
    try {
      queued.pool->attend(queued.call(id, 96, o), true, nullptr);
      queued.pool->finish();
      FAIL() << "the device was lost after " << copies << " copies";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::driver);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("was lost"));
    }
    try {
      queued.pool->attend(queued.call(id, 1, o), true, nullptr);
      FAIL() << "it is lost";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("can still be read: destroy it and make another"));
    }
  }
}

// A ring of three buffers brings sixteen chunks, each page once.
TEST(QueuedOffload, ARingBringsEveryPageOnce) {
  heed_offload_config c = pool_config(64, 0);
  c.streamed_share = 1;
  c.chunk_pages = 4;
  c.link_latency = 2e-3;
  Queued queued(c);
  queued.fill(1, 3, 512);
  std::vector<float> o(64, 0);
  const std::int64_t id = queued.pool->add();
  Call call = queued.call(id, 512, o);
  queued.pool->attend(call, false, nullptr);
  queued.pool->finish();
  for (const float x : o) EXPECT_NEAR(x, 3, 1e-5);
  heed_offload_info info;
  heed_offload_info_init(&info);
  queued.pool->info(info);
  EXPECT_GE(info.seconds_in, 16 * 2 * 2e-3) << "two copies of each of 16 chunks";
  EXPECT_EQ(info.bytes_in, 64 * 2 * 8 * 2 * 16 * 4);
}

}  // namespace
}  // namespace heed::offload
