#include "trial/rule_check.hpp"

#include <algorithm>
#include <future>
#include <regex>
#include <set>

#include "base/faster.hpp"
#include "base/random.hpp"
#include "process/interrupt.hpp"

namespace heed::trial {
namespace {

// "b1h8l512d64", "b8h32hkv4l1k8192d128:bf16"
std::vector<std::string> shapes_in(std::string_view provenance) {
  static const std::regex shape("b[0-9]+h[0-9]+(?:hkv[0-9]+)?l[0-9]+(?:k[0-9]+)?d[0-9]+(?::(?:fp16|bf16|fp32))?");
  std::vector<std::string> shapes;
  const std::string text(provenance);
  for (std::sregex_iterator at(text.begin(), text.end(), shape), end; at != end; ++at)
    if (std::find(shapes.begin(), shapes.end(), at->str()) == shapes.end()) shapes.push_back(at->str());
  return shapes;
}

std::vector<Workload> workloads_named(const Family& family, const std::string& shape, const DeviceFacts& device) {
  std::vector<Workload> workloads;
  for (const char* rest :
       {"", ":causal_top_left", ":quantised=qkv/e4m3/head", ":causal_top_left:quantised=qkv/e4m3/head"}) {
    const bool is_quantised = std::string_view(rest).find("quantised") != std::string_view::npos;
    if (is_quantised && !workloads.empty()) break;
    Workload workload = parse_workload(shape + rest);
    if (!family.refuses(workload, device)) workloads.push_back(std::move(workload));
  }
  return workloads;
}

std::vector<DecidedRow> rows_that_decide(const Family& family, const Workload& workload, const DeviceFacts& device) {
  RuleTrace trace;
  (void)family.default_by(workload, device, trace);
  return trace.decided;
}

}  // namespace

std::vector<RuleWorkload> workloads_of_rules(const Family& family, const DeviceFacts& device, std::string_view rule) {
  std::vector<RuleWorkload> found;
  for (const DefaultRule& one : family.rules()) {
    if (!rule.empty() && one.name != rule) continue;
    for (std::size_t row = 0; row < one.rows.size(); ++row)
      for (const std::string& shape : shapes_in(one.rows[row].provenance))
        for (const Workload& workload : workloads_named(family, shape, device)) {
          const std::vector<DecidedRow> rows = rows_that_decide(family, workload, device);
          const bool decides = std::any_of(rows.begin(), rows.end(), [&](const DecidedRow& decided) {
            return decided.rule == one.name && decided.row == row;
          });
          if (!decides) continue;
          const auto known = std::find_if(found.begin(), found.end(), [&](const RuleWorkload& other) {
            return to_string(other.workload) == to_string(workload);
          });
          RuleWorkload& at = known != found.end() ? *known : found.emplace_back(RuleWorkload{workload, {}});
          at.rows.push_back({one.name, row});
        }
  }
  return found;
}

std::vector<OtherRow> other_rows(const Family& family, const RuleWorkload& at, const DeviceFacts& device) {
  std::vector<OtherRow> others;
  const std::vector<DefaultRule> rules = family.rules();
  const Variant standard = make_variant(family, family.default_config(at.workload, device), at.workload);
  for (const DecidedRow& decided : at.rows) {
    const auto rule =
        std::find_if(rules.begin(), rules.end(), [&](const DefaultRule& one) { return one.name == decided.rule; });
    std::set<std::string> tried = {standard.id()};
    for (std::size_t row = 0; row < rule->rows.size(); ++row) {
      if (row == decided.row) continue;
      RuleTrace trace{.forced = DecidedRow{decided.rule, row}, .decided = {}};
      Variant variant =
          canonical(make_variant(family, family.default_by(at.workload, device, trace), at.workload), at.workload);
      if (variant.is_illegal(at.workload, device) || !tried.insert(variant.id()).second) continue;
      others.push_back({decided, row, std::move(variant)});
    }
  }
  return others;
}

void check_rules(TrialRunner& trial_runner, jit::Builder& builder, const Family& family, const RuleWorkload& at,
                 const std::function<void(RuleReading)>& on_each) {
  const std::vector<OtherRow> others = other_rows(family, at, trial_runner.device());
  std::vector<std::future<jit::BuildOutcome>> builds;
  for (const OtherRow& other : others) builds.push_back(builder.start(trial_runner.request_for(other.variant)));
  const Variant standard = make_variant(family, family.default_config(at.workload, trial_runner.device()), at.workload);
  trial_runner.set_base(trial_runner.build(standard));
  // On a CPU compilers would disturb what is measured.
  if (trial_runner.device().kind == DeviceKind::cpu)
    for (const auto& build : builds) build.wait();
  const TrialRunner::SelfComparison self = trial_runner.base_against_itself();
  for (std::size_t i = 0; i < others.size(); ++i) {
    check_interrupt();
    const OtherRow& other = others[i];
    RuleReading reading{.rule = std::string(other.decided.rule),
                        .row = other.decided.row,
                        .other = other.other,
                        .workload = at.workload,
                        .variant = describe(other.variant),
                        .outcome = trial_runner.judge(other.variant, builds[i].get(), fresh_seed() >> 1),
                        .self_spread = self.spread,
                        .base_us = self.pair.base_median_us};
    reading.other_is_faster = reading.outcome.ok() && is_faster(reading.outcome.pair.ratio.low, self.spread);
    on_each(std::move(reading));
  }
}

}  // namespace heed::trial
