// Tables that defaults are chosen by: every row decides somewhere, and the last one everywhere else.
#include "variant/rule_table.hpp"

#include <iterator>
#include <vector>

#include "base/random.hpp"
#include "testing.hpp"
#include "variant/sm90_persistent_rules.hpp"

namespace heed {
namespace {

struct Length {
  int keys = 0;
};

TEST(RuleTable, TheFirstRowThatHoldsDecides) {
  static constexpr RuleRow<Length, char> kRows[] = {
      {[](const Length& l) { return l.keys > 100; }, 'l', "long"},
      {[](const Length& l) { return l.keys > 10; }, 'm', "middle"},
      {[](const Length&) { return true; }, 's', "short"},
  };
  EXPECT_EQ(deciding_row(kRows, {101}).choice, 'l');
  EXPECT_EQ(deciding_row(kRows, {100}).choice, 'm');
  EXPECT_EQ(deciding_row(kRows, {10}).choice, 's');
  EXPECT_EQ(deciding_row(kRows, {10}).provenance, "short");
}

TEST(RuleTable, ATraceIsToldOfTheRowAndMayForceAnother) {
  static constexpr RuleRow<Length, char> kRows[] = {
      {[](const Length& l) { return l.keys > 100; }, 'l', "long"},
      {[](const Length&) { return true; }, 's', "short"},
  };
  EXPECT_EQ(choose("length", kRows, {101}, nullptr), 'l');
  RuleTrace trace;
  EXPECT_EQ(choose("length", kRows, {101}, &trace), 'l');
  trace.forced = DecidedRow{"length", 1};
  EXPECT_EQ(choose("length", kRows, {101}, &trace), 's');
  trace.forced = DecidedRow{"other", 1};
  EXPECT_EQ(choose("length", kRows, {101}, &trace), 'l');
  ASSERT_EQ(trace.decided.size(), 3U);
  EXPECT_EQ(trace.decided[0].row, 0U);
  EXPECT_EQ(trace.decided[1].row, 1U);
  EXPECT_EQ(trace.decided[2].rule, "length");
}

TEST(RuleTable, LimitsAloneCountAsAChip) {
  DeviceFacts device;
  EXPECT_EQ(num_sms_of(device), 132);
  EXPECT_EQ(num_sms_of(device, kAmpereSms), 108);
  device.processors = 78;
  EXPECT_EQ(num_sms_of(device), 78);
  EXPECT_EQ(num_sms_of(device, kAmpereSms), 78);
}

sm90_persistent::LaunchFacts random_facts(Random& random) {
  const auto one_of = [&](std::vector<int> values) { return values[random.below(values.size())]; };
  sm90_persistent::LaunchFacts f;
  f.dim = one_of({64, 128, 192, 256});
  f.len_k = one_of({64, 128, 256, 512, 1024, 2048, 4096});
  f.bytes = 1e6 * one_of({5, 15, 25, 35, 50, 70, 100});
  f.causal = random.chance(0.5);
  f.few_keys = f.dim == 64 && f.len_k <= 128 && random.chance(0.5);
  f.m_warpgroups = f.few_keys ? 1 : one_of({1, 2, 4});
  f.shares_tail = f.causal && random.chance(0.3);
  f.staggers = !f.few_keys && !f.causal && random.chance(0.3);
  f.ctas = 132 * one_of({1, 3});
  f.q_tiles = one_of({20, 100, 132, 200, 256, 264, 380, 700, 1024, 3000});
  return f;
}

/// How often each row decides.
template <class Choice, std::size_t kRows>
std::vector<int> decisions(const sm90_persistent::Row<Choice> (&rows)[kRows], bool of_one_wave) {
  Random random(31);
  std::vector<int> counts(kRows, 0);
  for (int i = 0; i < 50'000; ++i) {
    const sm90_persistent::LaunchFacts f = random_facts(random);
    if (f.one_wave() && !of_one_wave) continue;
    ++counts[static_cast<std::size_t>(&deciding_row(rows, f) - rows)];
  }
  return counts;
}

TEST(RuleTable, EveryRowOfPersistentDefaultsDecidesSomewhere) {
  using ::testing::Each;
  using ::testing::Gt;
  EXPECT_THAT(decisions(sm90_persistent::kSchedules, false), Each(Gt(0)));
  EXPECT_THAT(decisions(sm90_persistent::kStarts, true), Each(Gt(0)));
  EXPECT_THAT(decisions(sm90_persistent::kEvictFirsts, true), Each(Gt(0)));
  EXPECT_THAT(decisions(sm90_persistent::kStores, true), Each(Gt(0)));
}

}  // namespace
}  // namespace heed
