// The rules of families as heed rules prints and measures them: what they say is what defaults do.
#include <algorithm>

#include "device/device.hpp"
#include "testing.hpp"
#include "variant/family.hpp"

namespace heed {
namespace {

using testing_support::case_table;

std::vector<DeviceFacts> devices() {
  return {cpu_facts(), gpu_limits("sm_80"), gpu_limits("sm_89"), gpu_limits("sm_90a")};
}

const DefaultRule& rule_of(const std::vector<DefaultRule>& rules, std::string_view name) {
  return *std::find_if(rules.begin(), rules.end(), [&](const DefaultRule& one) { return one.name == name; });
}

TEST(DefaultRules, EveryRowIsReadAsKnobsAndSaysWhatItRestsOn) {
  int families_with_rules = 0;
  for (const Family* family : families()) {
    const std::vector<DefaultRule> rules = family->rules();
    families_with_rules += rules.empty() ? 0 : 1;
    Config standard;
    for (const Knob& knob : family->knobs()) standard.push_back(knob.standard);
    for (const DefaultRule& rule : rules) {
      EXPECT_GE(rule.rows.size(), 2U) << rule.name;
      for (const DefaultRule::Row& row : rule.rows) {
        EXPECT_NO_THROW((void)parse_config(family->knobs(), standard, row.knobs)) << row.knobs;
        EXPECT_FALSE(row.knobs.empty());
        EXPECT_FALSE(row.provenance.empty()) << row.knobs;
      }
    }
  }
  EXPECT_EQ(families_with_rules, 5);
}

TEST(DefaultRules, ATraceChangesNoDefaultAndNamesRowsThatExist) {
  for (const Family* family : families())
    for (const DeviceFacts& device : devices())
      for (const Workload& workload : case_table()) {
        if (family->refuses(workload, device)) continue;
        RuleTrace trace;
        EXPECT_EQ(family->default_by(workload, device, trace), family->default_config(workload, device))
            << family->name() << ": " << to_string(workload);
        const std::vector<DefaultRule> rules = family->rules();
        for (const DecidedRow& decided : trace.decided)
          EXPECT_LT(decided.row, rule_of(rules, decided.rule).rows.size()) << decided.rule;
      }
}

TEST(DefaultRules, AForcedRowDecides) {
  const Family& family = find_family("fwd_sm90_persistent");
  const DeviceFacts device = gpu_limits("sm_90a");
  const Workload workload = parse_workload("b8h16l2048d128");
  RuleTrace trace;
  const Config standard = family.default_by(workload, device, trace);
  ASSERT_FALSE(trace.decided.empty());
  for (const DecidedRow& decided : trace.decided) {
    const DefaultRule rule = rule_of(family.rules(), decided.rule);
    int others = 0;
    for (std::size_t row = 0; row < rule.rows.size(); ++row) {
      RuleTrace forced{.forced = DecidedRow{decided.rule, row}, .decided = {}};
      const Config config = family.default_by(workload, device, forced);
      const bool is_same = rule.rows[row].knobs == rule.rows[decided.row].knobs;
      EXPECT_TRUE(!is_same || config == standard) << rule.rows[row].knobs;
      others += config != standard ? 1 : 0;
    }
    EXPECT_GT(others, 0) << rule.name;  // a choice that does not fit gives way, not every one
  }
}

}  // namespace
}  // namespace heed
