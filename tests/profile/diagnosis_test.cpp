// Every bound is reached from made-up counters, and from times alone where that is possible.
#include "profile/diagnosis.hpp"

#include <set>

#include "device/device.hpp"
#include "testing.hpp"

namespace heed::profile {
namespace {

DeviceFacts hopper() {
  DeviceFacts device = gpu_limits("sm_90a");
  device.processors = 132;
  device.clock_mhz = 1980;
  device.cache_bytes = 50 << 20;
  device.memory_bandwidth = 4.8e12;
  return device;
}

// 264 blocks of 128 threads: two for each of 132 multiprocessors, which hold them at once.
Evidence gpu_evidence() {
  Evidence e;
  e.us = 10;
  e.floor = {.products_us = 1, .exponentials_us = 0.5, .bytes_us = 0.5, .launch_us = 0.5};
  e.plan.grid = {33, 8, 1};
  e.plan.threads = 128;
  e.plan.shared_bytes = 40 << 10;
  e.resources.registers = 128;
  e.device = hopper();
  e.bytes = 2 << 20;
  return e;
}

Counters quiet_counters() {
  Counters c;
  c.tensor_percent = 20;
  c.fma_percent = 15;
  c.alu_percent = 12;
  c.xu_percent = 10;
  c.issue_percent = 25;
  c.active_percent = 92;
  c.dram_percent = 5;
  c.l2_percent = 12;
  c.shared_percent = 18;
  c.shared_wavefronts = 1000;
  c.shared_bank_conflicts = 10;
  c.stalls = {{"long_scoreboard", 2.0}, {"wait", 1.5}, {"barrier", 1.0}, {"short_scoreboard", 0.5}};
  return c;
}

const std::vector<Knob>& gpu_knobs() {
  return find_family("fwd_sm80").knobs();
}

Diagnosis with(const std::function<void(Evidence&, Counters&)>& change) {
  Evidence e = gpu_evidence();
  e.counters = quiet_counters();
  change(e, *e.counters);
  return diagnose(e, gpu_knobs());
}

Diagnosis without(const std::function<void(Evidence&)>& change) {
  Evidence e = gpu_evidence();
  change(e);
  return diagnose(e, gpu_knobs());
}

TEST(Diagnosis, EveryBoundIsReachedByCounters) {
  EXPECT_EQ(with([](Evidence& e, Counters&) { e.floor.launch_us = 8; }).bound, Bound::launch);
  EXPECT_EQ(with([](Evidence&, Counters& c) { c.tensor_percent = 75; }).bound, Bound::tensor);
  EXPECT_EQ(with([](Evidence&, Counters& c) { c.xu_percent = 80; }).bound, Bound::exponentials);
  EXPECT_EQ(with([](Evidence&, Counters& c) { c.fma_percent = 70; }).bound, Bound::fma);
  EXPECT_EQ(with([](Evidence&, Counters& c) { c.alu_percent = 70; }).bound, Bound::fma);
  EXPECT_EQ(with([](Evidence&, Counters& c) { c.issue_percent = 85; }).bound, Bound::issue);
  EXPECT_EQ(with([](Evidence&, Counters&) {}).bound, Bound::latency);
  EXPECT_EQ(with([](Evidence&, Counters& c) { c.shared_percent = 70; }).bound, Bound::shared_memory);
  EXPECT_EQ(with([](Evidence&, Counters& c) { c.l2_percent = 66; }).bound, Bound::l2);
  EXPECT_EQ(with([](Evidence&, Counters& c) { c.dram_percent = 90; }).bound, Bound::dram);
  EXPECT_EQ(with([](Evidence& e, Counters&) { e.plan.grid = {8, 8, 1}; }).bound, Bound::tail);
  EXPECT_EQ(with([](Evidence& e, Counters&) { e.us = 0; }).bound, Bound::unknown);
}

TEST(Diagnosis, TheBusiestUnitIsTheBound) {
  const Diagnosis d = with([](Evidence&, Counters& c) { c.tensor_percent = 65, c.xu_percent = 75, c.l2_percent = 62; });
  EXPECT_EQ(d.bound, Bound::exponentials);
  EXPECT_EQ(d.knobs, (std::vector<std::string>{"overlap", "exp2"}));
  for (std::size_t i = 1; i < d.shares.size(); ++i) EXPECT_GE(d.shares[i - 1].value, d.shares[i].value);
}

TEST(Diagnosis, StallsDecideWhereNoUnitIsBusy) {
  // Conflicts cost a third of the passes, and shared memory matters.
  EXPECT_EQ(with([](Evidence&, Counters& c) { c.shared_percent = 35, c.shared_bank_conflicts = 400; }).bound,
            Bound::shared_memory);
  // As many conflicts where shared memory is hardly used decide nothing.
  EXPECT_EQ(with([](Evidence&, Counters& c) { c.shared_percent = 3, c.shared_bank_conflicts = 400; }).bound,
            Bound::latency);
  // Warps wait for a pipe: the busiest of them.
  const auto pipe = [](Evidence&, Counters& c) {
    c.stalls = {{"math_pipe_throttle", 3.0}, {"wait", 1.0}};
    c.tensor_percent = 50;
  };
  EXPECT_EQ(with(pipe).bound, Bound::tensor);
  // One queue serves shared memory and special functions.
  const auto queue = [](Counters& c) { c.stalls = {{"short_scoreboard", 2.0}, {"mio_throttle", 1.0}, {"wait", 1.0}}; };
  EXPECT_EQ(with([&](Evidence&, Counters& c) { queue(c), c.shared_percent = 40; }).bound, Bound::shared_memory);
  EXPECT_EQ(with([&](Evidence&, Counters& c) { queue(c), c.xu_percent = 45; }).bound, Bound::exponentials);
}

TEST(Diagnosis, IdleMultiprocessorsAreATail) {
  // As measured: blocks of different lengths leave processors idle although there are enough of them.
  const Diagnosis measured = with([](Evidence&, Counters& c) { c.active_percent = 55; });
  EXPECT_EQ(measured.bound, Bound::tail);
  // An idle share that the launch explains is none.
  EXPECT_EQ(with([](Evidence& e, Counters& c) { c.active_percent = 55, e.floor.launch_us = 4; }).bound, Bound::latency);
}

TEST(Diagnosis, MissingCountersAreNoEvidence) {
  Evidence e = gpu_evidence();
  e.counters = Counters{};
  const Diagnosis d = diagnose(e, gpu_knobs());
  EXPECT_EQ(d.bound, Bound::latency);
  EXPECT_TRUE(d.with_counters);
  for (const Share& share : d.shares) EXPECT_NE(share.bound, Bound::tensor);
  EXPECT_TRUE(d.stalls.empty());
}

TEST(Diagnosis, WorksWithoutCounters) {
  EXPECT_EQ(without([](Evidence& e) { e.floor.launch_us = 8; }).bound, Bound::launch);
  EXPECT_EQ(without([](Evidence& e) { e.floor.products_us = 6; }).bound, Bound::tensor);
  EXPECT_EQ(without([](Evidence& e) { e.floor.exponentials_us = 6; }).bound, Bound::exponentials);
  EXPECT_EQ(without([](Evidence& e) { e.floor.bytes_us = 7; }).bound, Bound::l2);
  EXPECT_EQ(without([](Evidence& e) { e.floor.bytes_us = 7, e.bytes = 1e9; }).bound, Bound::dram);
  EXPECT_EQ(without([](Evidence& e) { e.plan.grid = {4, 8, 1}; }).bound, Bound::tail);
  EXPECT_EQ(without([](Evidence&) {}).bound, Bound::latency);
  const Diagnosis d = without([](Evidence&) {});
  EXPECT_FALSE(d.with_counters);
  EXPECT_THAT(d.text, ::testing::HasSubstr("without counters"));
}

TEST(Diagnosis, WorksOnACpu) {
  Evidence e;
  e.device.kind = DeviceKind::cpu;
  e.device.processors = 4;
  e.us = 100;
  e.floor.products_us = 60;
  e.plan.grid = {32, 1, 1};
  e.plan.threads = 4;
  const std::vector<Knob>& knobs = find_family("fwd_cpu").knobs();
  EXPECT_EQ(diagnose(e, knobs).bound, Bound::fma);
  EXPECT_THAT(diagnose(e, knobs).knobs, ::testing::Contains("tile_rows"));
  e.floor.products_us = 10;
  EXPECT_EQ(diagnose(e, knobs).bound, Bound::unknown);
  EXPECT_TRUE(diagnose(e, knobs).knobs.empty());
  e.plan.threads = 1;
  EXPECT_EQ(diagnose(e, knobs).bound, Bound::tail);
  e.plan.threads = 4;
  e.plan.grid = {5, 1, 1};  // a second round with one block
  EXPECT_EQ(diagnose(e, knobs).bound, Bound::tail);
}

TEST(Diagnosis, SaysWhatItRestsOn) {
  const Diagnosis d = with([](Evidence& e, Counters&) { e.resources.spill_store_bytes = 24; });
  for (const char* words : {"Bound by latency.", "25% of the time", "40% loads from L2 or memory (long_scoreboard)",
                            "Floor 1.00 us (products), 10% of its time", "Registers spill: 24 bytes",
                            "Knobs that act on it: block_m, block_n", "kv_groups", "stages"})
    EXPECT_THAT(d.text, ::testing::HasSubstr(words));
  const Diagnosis tail = with([](Evidence& e, Counters&) { e.plan.grid = {8, 8, 1}; });
  EXPECT_THAT(tail.text, ::testing::HasSubstr("64 blocks leave 52% of 132 multiprocessors without work"));
  const Diagnosis conflicts =
      with([](Evidence&, Counters& c) { c.shared_percent = 35, c.shared_bank_conflicts = 400; });
  EXPECT_THAT(conflicts.text, ::testing::HasSubstr("40% of its passes are bank conflicts"));
  for (const Bound bound : {Bound::tensor, Bound::l2, Bound::dram}) {
    const Diagnosis busy = with([&](Evidence&, Counters& c) {
      (bound == Bound::tensor ? c.tensor_percent : bound == Bound::l2 ? c.l2_percent : c.dram_percent) = 88;
    });
    EXPECT_THAT(busy.text, ::testing::ContainsRegex("The .* (is|are) busy for 88% of the time"));
  }
}

TEST(Occupancy, IsLimitedByWhatIsScarce) {
  Evidence e = gpu_evidence();
  Occupancy o = occupancy_of(e.plan, e.resources, e.device);
  EXPECT_EQ(o.blocks_per_processor, 4);  // 65,536 registers / (128 threads * 128), and 228 KiB / 41 KiB is 5
  EXPECT_EQ(o.limit, "registers");
  EXPECT_EQ(o.warps_per_processor, 8) << "only two blocks a multiprocessor exist";
  EXPECT_DOUBLE_EQ(o.rounds, 0.5);
  EXPECT_EQ(o.idle_share, 0);
  e.plan.shared_bytes = 100 << 10;
  o = occupancy_of(e.plan, e.resources, e.device);
  EXPECT_EQ(o.blocks_per_processor, 2);
  EXPECT_EQ(o.limit, "shared memory");
  e.plan.shared_bytes = 0;
  e.resources.registers = 16;
  e.plan.threads = 1024;
  o = occupancy_of(e.plan, e.resources, e.device);
  EXPECT_EQ(o.blocks_per_processor, 2);
  EXPECT_EQ(o.limit, "threads");
  e.plan.threads = 32;
  EXPECT_EQ(occupancy_of(e.plan, e.resources, e.device).limit, "blocks");
  // One block more than a full round.
  e.plan.grid = {132 * 32 + 1, 1, 1};
  EXPECT_NEAR(occupancy_of(e.plan, e.resources, e.device).idle_share, 0.5, 0.01);
}

TEST(Knobs, SayWhatTheyActOn) {
  for (const Family* family : families()) {
    std::set<Bound> reached;
    for (const Knob& knob : family->knobs()) {
      EXPECT_FALSE(knob.acts_on.empty()) << family->name() << " " << knob.name;
      for (const Bound bound : knob.acts_on) {
        EXPECT_NE(bound, Bound::unknown);
        reached.insert(bound);
      }
    }
    for (const Bound bound :
         {Bound::tail, Bound::latency, Bound::exponentials, Bound::fma, Bound::issue, Bound::l2, Bound::dram})
      EXPECT_EQ(reached.count(bound), 1U) << family->name() << " has no knob for " << to_string(bound);
  }
  for (const Bound bound : kBounds) EXPECT_EQ(parse_bound(to_string(bound)), bound);
}

}  // namespace
}  // namespace heed::profile
