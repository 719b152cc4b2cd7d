// Rates that follow what steps take: steps of a machine whose clock is arithmetic, and pools whose rates stay or
// follow.
#include "offload/moving_rate.hpp"

#include <cmath>

#include "offload/offload_case.hpp"
#include "offload/planner.hpp"

namespace heed::offload {
namespace {

using testing_support::Pool;
using testing_support::pool_config;
using testing_support::PoolCase;

/// One layer of 3,074 remote pages, on a link and processors that are slower while the other is at work, too.
struct Machine {
  DecodeBytes bytes = {.resident = 268e6, .remote = 806e6};
  Rates alone = {.link = 54e9, .host = 11.3e9, .device = 2.4e12};
  double host_beside = 0.5;
  double link_beside = 1;

  struct Step {
    double link_s = 0;
    double host_s = 0;
  };
  /// Whichever ends first is slowed down all the time, the other one until then.
  [[nodiscard]] Step step(double share) const {
    const double link = share * bytes.remote;
    const double host = bytes.remote - link;
    const double link_rate = alone.link * link_beside;
    const double host_rate = alone.host * host_beside;
    if (link / link_rate <= host / host_rate) {
      const double link_s = link / link_rate;
      return {link_s, link_s + (host - link_s * host_rate) / alone.host};
    }
    const double host_s = host / host_rate;
    return {host_s + (link - host_s * link_rate) / alone.link, host_s};
  }
  [[nodiscard]] double seconds(double share) const {
    const Step taken = step(share);
    return std::max(taken.link_s, taken.host_s);
  }
  [[nodiscard]] double best() const {
    double least = INFINITY;
    for (int i = 0; i <= 1000; ++i) least = std::min(least, seconds(i / 1000.0));
    return least;
  }
};

/// Steps of a pool that begins with what was measured alone. @return seconds of the last one
double seconds_after(const Machine& machine, int steps, bool follows = true) {
  MovingRate link;
  MovingRate host;
  link.begin(machine.alone.link);
  host.begin(machine.alone.host);
  double seconds = 0;
  for (int i = 0; i < steps; ++i) {
    Rates rates = machine.alone;
    rates.link = link.planned();
    rates.host = host.planned();
    const double share = plan_decode(rates, machine.bytes).streamed;
    const Machine::Step taken = machine.step(share);
    seconds = std::max(taken.link_s, taken.host_s);
    if (!follows) continue;
    host.add((1 - share) * machine.bytes.remote, taken.host_s);
    link.add(share * machine.bytes.remote, taken.link_s);
  }
  return seconds;
}

TEST(MovingRate, TheShareComesToTheBestOne) {
  for (const double host_beside : {0.5, 0.6, 0.8, 1.0})
    for (const double link_beside : {0.95, 1.0}) {
      Machine machine;
      machine.host_beside = host_beside;
      machine.link_beside = link_beside;
      EXPECT_LE(seconds_after(machine, 11), 1.1 * machine.best()) << host_beside << " " << link_beside;
      EXPECT_LE(seconds_after(machine, 40), 1.04 * machine.best()) << host_beside << " " << link_beside;
    }
  Machine slower;
  slower.host_beside = 0.3;
  EXPECT_LE(seconds_after(slower, 20), 1.1 * slower.best());
  const Machine halved;
  EXPECT_GT(seconds_after(halved, 40, false), 1.2 * halved.best()) << "rates that stay are worse by more";
}

TEST(MovingRate, NoiseAndOneSlowStepChangeNoShare) {
  MovingRate rate;
  rate.begin(10e9);
  for (int i = 0; i < 50; ++i) rate.add(1e9, i % 2 == 0 ? 0.102 : 0.098);
  EXPECT_EQ(rate.planned(), 10e9);
  EXPECT_EQ(rate.steps(), 50);
  rate.add(1e9, 60);  // a thread that was put to sleep
  EXPECT_GT(rate.planned(), 8.5e9);
  for (int i = 0; i < 20; ++i) rate.add(1e9, 0.1);
  EXPECT_NEAR(rate.planned(), 10e9, 10e9 / 32);
}

TEST(MovingRate, TimesThatAreNoneAreLeftOut) {
  MovingRate rate;
  rate.begin(2);
  for (const auto& [bytes, seconds] : {std::pair{0.0, 1.0}, {1.0, 0.0}, {-1.0, 1.0}, {1.0, NAN}, {INFINITY, 1.0}})
    rate.add(bytes, seconds);
  EXPECT_EQ(rate.steps(), 0);
  EXPECT_EQ(rate.planned(), 2);
  for (int i = 0; i < 100; ++i) rate.add(1, 1e9);
  EXPECT_EQ(rate.planned(), 0.25) << "an eighth, so that a part remains which shows when it is fast again";
  for (int i = 0; i < 100; ++i) rate.add(1, 0.5);
  EXPECT_NEAR(rate.planned(), 2, 2.0 / 16);
  MovingRate none;
  none.begin(0);
  none.add(1, 1);
  EXPECT_EQ(none.planned(), 0);
  EXPECT_EQ(none.steps(), 0);
}

heed_offload_config measured_config() {
  heed_offload_config c = pool_config(32, 4);
  c.link_rate = c.host_rate = c.device_rate = c.device_flops = 0;
  return c;
}
/// Twelve steps over 8 remote pages and more, of which both link and processors have some.
std::string explained_after_steps(const Pool& pool) {
  const std::int64_t id = pool.add();
  PoolCase one(pool, {id}, 5);
  EXPECT_EQ(one.run(0, 12 * 8, 0, &heed_offload_append), HEED_OK) << heed_last_error();
  for (int step = 0; step < 12; ++step) {
    EXPECT_EQ(one.run(0, 1, 1, &heed_offload_decode), HEED_OK) << heed_last_error();
    one.check(2e-5);
  }
  return pool.explain({id});
}

TEST(MovingRate, StepsOfAPoolAreFollowed) {
  heed_offload_config c = measured_config();
  c.link_bandwidth = 50e6;
  const Pool pool(c);
  EXPECT_THAT(explained_after_steps(pool),
              ::testing::ContainsRegex("measured when the pool was made, then over [0-9]+ steps of a layer"));
  EXPECT_LE(pool.info().link_rate, 51e6) << "a simulated link is as slow as it was made";
  EXPECT_GT(pool.info().host_rate, 0);
}

TEST(MovingRate, RatesAndSharesThatAreGivenStay) {
  for (int given = 0; given < 3; ++given) {
    heed_offload_config c = given == 0 ? pool_config(32, 4) : measured_config();
    if (given == 1) c.streamed_share = 0.5;
    if (given == 2) c.link_rate = 1e9;
    const Pool pool(c);
    const heed_offload_info before = pool.info();
    EXPECT_THAT(explained_after_steps(pool), ::testing::Not(::testing::HasSubstr("then over"))) << given;
    EXPECT_EQ(pool.info().link_rate, before.link_rate) << given;
    EXPECT_EQ(pool.info().host_rate, before.host_rate) << given;
  }
}

}  // namespace
}  // namespace heed::offload
