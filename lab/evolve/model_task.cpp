#include "evolve/model_task.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/random.hpp"
#include "base/text.hpp"
#include "evolve/run_diagnosis.hpp"
#include "insights/insight.hpp"
#include "record/diagnosis.hpp"
#include "record/json.hpp"
#include "source/editable.hpp"
#include "source/nearness.hpp"
#include "source/stored.hpp"
#include "store/observations.hpp"

namespace heed::evolve {
namespace {

constexpr std::uint64_t kParents = 13;  // of the random numbers that choose parents
constexpr std::size_t kMostSolutions = 5;
constexpr std::size_t kMostShownFailures = 5;
constexpr std::size_t kMostInsights = 12;
constexpr std::size_t kMostReason = 240;  // bytes of what failed
constexpr double kWorthTelling = 0.005;   // of an insight's expected change, as a logarithm

// Trials of the basis, the best first.
std::vector<std::size_t> passed(const RunContext& run, const Basis& basis) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < run.trials.size(); ++i)
    if (run.trials[i].ok() && basis.holds(run.trials[i])) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return run.trials[a].ratio_low > run.trials[b].ratio_low; });
  return order;
}

prompts::Solution solution_of(const store::TrialRecord& t) {
  return {.trial = t.number,
          .config = t.config,
          .ratio = t.ratio,
          .low = t.ratio_low,
          .high = t.ratio_high,
          .us = t.trial_us,
          .what = t.why,
          .diff = source::stored_diff(t.edits)};
}

std::string words_of(const nlohmann::json& resources) {
  std::vector<std::string> parts;
  if (resources.is_object())
    for (const auto& [name, value] : resources.items())
      if (value.is_number() && value != 0) {
        std::string words = name;
        std::replace(words.begin(), words.end(), '_', ' ');
        parts.push_back(fmt::format("{} {}", words, value.dump()));
      }
  return join(parts, ", ");
}

std::string words_of(const DeviceFacts& device) {
  std::string text = fmt::format("{} ({}), {} {}", device.name, device.arch, device.processors,
                                 device.kind == DeviceKind::cuda ? "multiprocessors" : "processors");
  if (device.cache_bytes > 0)
    text += fmt::format(", {} of last-level cache", human_bytes(static_cast<double>(device.cache_bytes)));
  if (device.clock_mhz > 0) text += fmt::format(", up to {} MHz", device.clock_mhz);
  return text;
}

// The nearest first within a rank.
std::vector<prompts::SourceFile> sources_of(const Variant& variant) {
  const std::string folder = std::string(variant.family->folder()) + "/";
  const std::map<std::string, source::Nearness> nearness = source::nearness_of(variant);
  std::vector<prompts::SourceFile> files;
  for (const auto& [path, text] : source::editable(*variant.family)) {
    const std::string* edited = variant.overlay ? variant.overlay->find(path) : nullptr;
    const bool is_own = path == Overlay::kEntry || path.rfind(folder, 0) == 0;
    const int rank = edited != nullptr ? 0 : nearness.at(path).is_of_others ? 3 : is_own ? 1 : 2;
    files.push_back({path, edited == nullptr ? text : *edited, rank});
  }
  std::stable_sort(files.begin(), files.end(),
                   [&](const auto& a, const auto& b) { return nearness.at(a.path).steps < nearness.at(b.path).steps; });
  return files;
}

}  // namespace

bool is_of_models(const store::TrialRecord& trial) {
  return trial.operation == to_string(Operation::edit) || trial.operation == to_string(Operation::repair);
}

bool is_repair(const store::TrialRecord& trial) {
  return trial.operation == to_string(Operation::repair);
}

std::string problem_in_words(const Workload& w) {
  const auto heads = w.heads == w.heads_kv ? fmt::format("{} heads", w.heads)
                                           : fmt::format("{} query heads that share {} key heads", w.heads, w.heads_kv);
  std::string text = fmt::format("softmax(scale Q K^T) V for a batch of {}, {}, {} queries, {} keys, head dim {}",
                                 w.batch, heads, w.len_q, w.len_k, w.dim);
  if (w.dim_v != w.dim) text += fmt::format(", {} of V", w.dim_v);
  text += fmt::format(", elements {} with sums in fp32, layout {}", to_string(w.dtype), to_string(w.layout));
  switch (w.mask) {
    case Mask::none:
      break;
    case Mask::causal_top_left:
      text += "; query i sees keys up to i";
      break;
    case Mask::causal_bottom_right:
      text += "; query i sees keys up to i + keys - queries";
      break;
    case Mask::window_top_left:
    case Mask::window_bottom_right:
      text += "; each query sees a window of keys around its own";
      break;
  }
  if (w.has_features()) text += "; features as the text of the workload says";
  return text;
}

std::optional<std::size_t> parent_for(const RunContext& run, prompts::Preset preset, const Basis& basis, int generation,
                                      int place) {
  const std::vector<std::size_t> order = passed(run, basis);
  if (order.empty()) return std::nullopt;
  if (preset == prompts::Preset::free) return order.front();
  Random random(substream(substream(run.options.strategy.seed, kParents),
                          static_cast<std::uint64_t>(generation) * 4096 + static_cast<std::uint64_t>(place)));
  const auto elites = std::min(order.size(), static_cast<std::size_t>(run.options.strategy.population));
  return order[std::min(random.below(elites), random.below(elites))];
}

prompts::Task task_of(RunContext& run, std::optional<std::size_t> parent, const Basis& basis) {
  const Workload& w = run.options.workload;
  const Variant variant = parent ? run.variant_of(run.trials[*parent]) : run.trial_runner.base().variant;
  const measure::Floor floor = run.trial_runner.floor(run.device.processors);
  prompts::Task task;
  task.device = words_of(run.device);
  task.workload = to_string(w);
  task.problem = problem_in_words(w);
  task.family = fmt::format("{}: {}", variant.family->name(), variant.family->description());
  task.floor_us = floor.us();
  task.floor_bound = floor.bound();
  task.base_us = run.trial_runner.base_against_itself().pair.base_median_us;
  nlohmann::json diagnosis;
  if (parent) {
    const store::TrialRecord& trial = run.trials[*parent];
    task.parent = solution_of(trial);
    task.resources = words_of(trial.resources);
    diagnosis = trial.diagnosis;
  } else {
    task.parent.trial = -1;
    task.parent.config = describe(variant);
    task.parent.us = task.base_us;
    task.resources = words_of(record::to_json(run.trial_runner.base().artifact.resources));
    diagnosis = base_diagnosis(run);
  }
  if (diagnosis.is_object()) task.profile = diagnosis.value("text", std::string());

  task.sources = sources_of(variant);

  for (const std::size_t index : passed(run, basis))
    if (index != parent && task.solutions.size() < kMostSolutions)
      task.solutions.push_back(solution_of(run.trials[index]));
  // Of the base and of trials that are the base again, the default's among them, the failures are the same.
  const auto kernel_of = [&](const std::optional<std::size_t>& trial) {
    if (!trial) return std::pair{describe(run.trial_runner.base().variant), std::string()};
    const store::TrialRecord& t = run.trials[*trial];
    return std::pair{t.config, t.edits.is_object() ? t.edits.value("digest", std::string()) : std::string()};
  };
  for (auto t = run.trials.rbegin(); t != run.trials.rend() && task.failures.size() < kMostShownFailures; ++t) {
    if (!is_of_models(*t) || t->ok() || static_cast<std::size_t>(t->number) >= basis.known) continue;
    // A repair's parent is the edit that was refused, of the same kernel.
    const store::TrialRecord* edit = &*t;
    if (is_repair(*t) && !t->parents.empty()) edit = &run.trials[static_cast<std::size_t>(t->parents.front())];
    std::optional<std::size_t> of;
    if (!edit->parents.empty()) of = static_cast<std::size_t>(edit->parents.front());
    if (kernel_of(of) == kernel_of(parent))
      task.failures.push_back(fmt::format("{} ({}: {})", t->why.empty() ? "An edit" : t->why, to_string(t->verdict),
                                          telling_line(t->reason).substr(0, kMostReason)));
  }
  const insights::Place place{.family = std::string(variant.family->name()),
                              .workload = w,
                              .arch = run.device.arch,
                              .bound = std::string(to_string(record::bound_of(diagnosis)))};
  for (const insights::Insight& insight : insights::insights_for(store::observations(run.store), place))
    if (std::abs(std::log(insight.expected)) > kWorthTelling && task.insights.size() < kMostInsights)
      task.insights.push_back(insight.sentence);
  return task;
}

}  // namespace heed::evolve
