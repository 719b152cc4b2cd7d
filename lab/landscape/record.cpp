#include "landscape/record.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/random.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "compile/embedded.hpp"
#include "evolve/draft.hpp"
#include "process/interrupt.hpp"
#include "profile/diagnosis.hpp"
#include "record/json.hpp"

namespace heed::landscape {
namespace {

constexpr std::size_t kBatchAJob = 4;  // builds of a batch, for each that runs at once

// The knob that is asked for, with the values that it is to take.
Knob wanted_knob(const std::vector<Knob>& table, const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const auto at = std::find_if(table.begin(), table.end(), [&](const Knob& knob) { return knob.name == name; });
  if (at == table.end()) {
    std::vector<std::string_view> known;
    for (const Knob& knob : table) known.push_back(knob.name);
    throw Error(ErrorCode::usage, fmt::format("there is no knob {}; {}", name, one_of(name, known)), name);
  }
  Knob knob = *at;
  if (equals == std::string::npos) return knob;
  std::vector<int> values;
  std::vector<std::string> names;
  for (const std::string& value : split(text.substr(equals + 1), '/')) {
    values.push_back(knob.parse(value));
    names.push_back(knob.text_of(values.back()));
  }
  if (knob.is_named()) knob.names = names;
  knob.values = values;
  return knob;
}

std::vector<std::size_t> places_of(const Landscape& l, const Family& family) {
  const std::vector<Knob>& table = variant_knobs(family);
  std::vector<std::size_t> places;
  for (const Knob& knob : l.knobs)
    places.push_back(static_cast<std::size_t>(
        std::find_if(table.begin(), table.end(), [&](const Knob& one) { return one.name == knob.name; }) -
        table.begin()));
  return places;
}

void look_at(Point& point, trial::TrialRunner& trial_runner, const Variant& variant, const jit::BuildOutcome& build,
             bool verify) {
  if (!build.artifact) {
    point.invalidity = build.timed_out ? "timeout" : "compile";
    point.reason = telling_line(build.log);
    return;
  }
  point.build_ms = build.artifact->build_ms;
  if (verify) {
    const verify::GateReport report = trial_runner.verify({variant, *build.artifact}, fresh_seed());
    if (!report.passed()) {
      point.invalidity = report.verdict == Verdict::timed_out ? "timeout" : "correctness";
      point.reason = report.reason;
      return;
    }
  }
  evolve::Draft draft;
  do {
    check_interrupt();
    draft.take(trial_runner.screen(variant, build));
  } while (draft.reason.empty() && !draft.is_settled());
  if (!draft.reason.empty()) {
    point.invalidity = "runtime";
    point.reason = draft.reason;
    return;
  }
  point.invalidity = "correct";
  point.us = draft.pair.trial_median_us;
  point.ratio = draft.pair.ratio.value;
  point.low = draft.pair.ratio.low;
  point.high = draft.pair.ratio.high;
  for (const measure::PairResult& one : draft.screenings) point.readings_us.push_back(one.trial_median_us);
  profile::Evidence evidence;
  evidence.us = point.us;
  evidence.plan = variant.plan(trial_runner.workload(), trial_runner.device());
  evidence.floor = trial_runner.floor(static_cast<int>(evidence.plan.threads));
  evidence.resources = build.artifact->resources;
  evidence.device = trial_runner.device();
  evidence.bytes = trial_runner.workload().bytes();
  point.bound = profile::diagnose(evidence, variant_knobs(*variant.family)).bound;
}

}  // namespace

Landscape landscape_of(const Family& family, const Workload& workload, const DeviceFacts& device,
                       const std::vector<std::string>& wanted) {
  Landscape l;
  l.workload = to_string(workload);
  l.family = family.name();
  l.device = record::to_json(device);
  l.heed = kVersion;
  l.source_digest = compile::source_digest();
  const std::vector<Knob>& table = variant_knobs(family);
  for (const std::string& text : wanted) {
    Knob knob = wanted_knob(table, text);
    if (std::any_of(l.knobs.begin(), l.knobs.end(), [&](const Knob& one) { return one.name == knob.name; }))
      throw Error(ErrorCode::usage, fmt::format("the knob {} is named twice; once is enough", knob.name), knob.name);
    l.knobs.push_back(std::move(knob));
  }
  if (l.knobs.empty()) throw Error(ErrorCode::usage, "a landscape needs knobs that vary; name them with --knobs");
  const Variant standard = make_variant(family, family.default_config(workload, device), workload);
  const Config values = values_of(standard);
  l.others = describe(standard);
  for (std::size_t i = 0; const std::size_t place : places_of(l, family)) {
    Knob& knob = l.knobs[i++];
    const int value = values[place];
    l.default_config.push_back(value);
    if (knob.index_of(value) >= 0) continue;
    // The search begins there.
    if (knob.is_named()) knob.names.push_back(table[place].text_of(value));
    knob.values.push_back(value);
  }
  return l;
}

Variant variant_at(const Landscape& l, const Config& config, const Workload& workload, const DeviceFacts& device) {
  const Family& family = find_family(l.family);
  Config values = values_of(parse_variant(l.others, workload, device));
  for (std::size_t i = 0; const std::size_t place : places_of(l, family)) values[place] = config[i++];
  return variant_of(family, values, workload);
}

std::vector<Config> legal_points(const Landscape& l, const Workload& workload, const DeviceFacts& device) {
  const Family& family = find_family(l.family);
  const evolve::Space space = evolve::space_of(family, workload, device);
  std::vector<Config> points;
  Config config;
  for (const Knob& knob : l.knobs) config.push_back(knob.values.front());
  std::vector<std::size_t> digits(l.knobs.size(), 0);
  for (;;) {
    for (std::size_t i = 0; i < digits.size(); ++i) config[i] = l.knobs[i].values[digits[i]];
    const Config values = values_of(variant_at(l, config, workload, device));
    if ((!space.canonical || space.canonical(values) == values) && space.is_legal(values)) points.push_back(config);
    std::size_t digit = digits.size();
    while (digit > 0 && ++digits[digit - 1] == l.knobs[digit - 1].values.size()) digits[--digit] = 0;
    if (digit == 0) return points;
  }
}

void record(Landscape& l, trial::TrialRunner& trial_runner, jit::Builder& builder, bool verify,
            const std::function<void(std::size_t, std::size_t)>& on_batch) {
  const Workload& workload = trial_runner.workload();
  const DeviceFacts& device = trial_runner.device();
  const std::vector<Config> all = legal_points(l, workload, device);
  std::vector<Config> left;
  for (const Config& config : all)
    if (l.points.count(config) == 0) left.push_back(config);
  const std::size_t batch = kBatchAJob * static_cast<std::size_t>(std::max(1, builder.jobs()));
  std::vector<std::future<jit::BuildOutcome>> builds;
  const auto start = [&](std::size_t from) {
    for (std::size_t i = from; i < std::min(left.size(), from + batch); ++i)
      builds.push_back(builder.start(trial_runner.request_for(variant_at(l, left[i], workload, device))));
  };
  start(0);
  for (std::size_t from = 0; from < left.size(); from += batch) {
    // A compiler would disturb what is timed on a CPU; a GPU is timed while the next batch is built.
    if (device.kind == DeviceKind::cuda) start(from + batch);
    const std::size_t end = std::min(left.size(), from + batch);
    if (device.kind == DeviceKind::cpu)
      for (std::size_t i = from; i < end; ++i) builds[i].wait();
    for (std::size_t i = from; i < end; ++i) {
      check_interrupt();
      look_at(l.points[left[i]], trial_runner, variant_at(l, left[i], workload, device), builds[i].get(), verify);
    }
    on_batch(l.points.size(), all.size());
    if (device.kind == DeviceKind::cpu) start(end);
  }
}

}  // namespace heed::landscape
