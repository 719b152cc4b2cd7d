// What a spot check of a CPU does to K beside what timed replays do.
#include <cstring>
#include <memory>
#include <vector>

#include "testing.hpp"
#include "worker/cpu_entry.hpp"
#include "worker/worker.hpp"

namespace heed::worker {
namespace {

// In a pause K of the first launch that has not begun becomes another; when the check has stopped K is what it was.
TEST(KeyChanges, APauseChangesKeysOfLaunchesThatHaveNotBegun) {
  const auto arena = std::make_shared<Arena>(1 << 18);
  Worker worker(DeviceKind::cpu, arena);
  worker.load(0,
              build_entry("if (block != 0) return;\n"
                          "static_cast<float*>(params->o)[0] = static_cast<const float*>(params->k)[0];\n"
                          "for (volatile int i = 0; i < 2000000; i = i + 1) {}"),
              small_plan(1));
  worker.seal();
  constexpr int kLaunches = 12;
  constexpr std::uint64_t kKeys = 64 << 10;
  std::memset(arena->data(), 0, arena->size());
  std::vector<ChannelRange> keys;
  for (int set = 0; set < 3; ++set) {
    keys.push_back({kKeys + 4096 * static_cast<std::uint64_t>(set), 2, 1, Dtype::fp32});
    auto* const k = reinterpret_cast<float*>(arena->data() + keys.back().offset);
    k[0] = static_cast<float>(set + 1);
    k[1] = 5;
  }
  std::vector<Launch> launches(kLaunches, small_launch());
  for (std::size_t i = 0; i < launches.size(); ++i) {
    launches[i].o = 4096 * i;
    launches[i].k = keys[i % 3].offset;
  }
  worker.prepare(0, 128 << 10, {{0, launches}}, {{0, kLaunches * 4096}}, keys, 10);
  const KeyChanges changes{
      .loud = {{keys[1].offset, 1, 1, Dtype::fp32}}, .loudness = 8, .pauses = {0.2, 2.5, 5.9, 6.1}, .turn = {-1}};
  const Stopped stopped = worker.spot_check(0, 1, kLaunches, {{1}, {1}, {1}}, {}, 128 << 10, 128 << 10, 10, changes);
  ASSERT_FALSE(stopped.turned.empty());
  for (int i = 0; i < stopped.complete; ++i) {
    float expected = static_cast<float>(i % 3 + 1) * (i % 3 == 1 ? 8.0F : 1.0F);
    for (const int turned : stopped.turned)
      if (turned <= i && turned % 3 == i % 3) expected = -expected;
    EXPECT_EQ(*reinterpret_cast<const float*>(arena->data() + 4096 * i), expected) << "launch " << i;
  }
  for (int set = 0; set < 3; ++set) {
    const auto* const k = reinterpret_cast<const float*>(arena->data() + keys[static_cast<std::size_t>(set)].offset);
    EXPECT_EQ(k[0], static_cast<float>(set + 1));
    EXPECT_EQ(k[1], 5);
  }
}

}  // namespace
}  // namespace heed::worker
