#include "evolve/run_context.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "evolve/selection.hpp"
#include "source/stored.hpp"
#include "variant/renames.hpp"

namespace heed::evolve {
namespace {

// @throws Error(usage) for a variant of a family that is not searched, and whatever parse_variant does
std::vector<Variant> found_before(const record::RunOptions& options, const DeviceFacts& device,
                                  const std::vector<const Family*>& families) {
  std::vector<Variant> found;
  for (const std::string& text : options.found) {
    const Family& family = find_family(text.substr(0, text.find(':')));
    if (std::find(families.begin(), families.end(), &family) == families.end())
      throw Error(ErrorCode::usage,
                  fmt::format("the search cannot begin with a variant of {}, which is none of the families that it "
                              "goes through; name it with --family, too",
                              family.name()),
                  text);
    found.push_back(parse_variant(text, options.workload, device));
  }
  return found;
}

}  // namespace

std::vector<const Family*> families_for(const record::RunOptions& options, const DeviceFacts& device) {
  std::vector<const Family*> all;
  if (options.families.empty()) all = searched_families(options.workload, device);
  for (const std::string& name : options.families) all.push_back(&find_family(name));
  for (std::size_t i = 0; i < all.size(); ++i)
    if (std::find(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i), all[i]) !=
        all.begin() + static_cast<std::ptrdiff_t>(i))
      throw Error(ErrorCode::usage, fmt::format("the family {} is named twice; once is enough", all[i]->name()),
                  std::string(all[i]->name()));
  for (const Family* family : all)
    if (const auto reason = family->refuses(options.workload, device))
      throw Error(
          ErrorCode::unsupported,
          fmt::format("{} cannot run {} on {}: {}", family->name(), to_string(options.workload), device.name, *reason),
          to_string(options.workload));
  return all;
}

RunContext::RunContext(store::Store& to_store, jit::Builder& with_builder, const DeviceFacts& on_device,
                       const record::RunOptions& asked, const trial::Options& trial_options,
                       const QkvTensors* own_tensors, Observer& told)
    : store(to_store),
      builder(with_builder),
      device(on_device),
      options(asked),
      observer(told),
      tensors(own_tensors),
      families(families_for(asked, on_device)),
      found(found_before(asked, on_device, families)),
      trial_runner(asked.workload, on_device, with_builder, own_tensors, trial_options) {
  if (options.trials < 1)
    throw Error(ErrorCode::usage, fmt::format("--trials {} makes no run; at least 1 is needed", options.trials),
                std::to_string(options.trials));
  for (const Family* family : families) (void)default_with(*family, options.hold, options.workload, device);
  options.families.clear();
  for (const Family* family : families) options.families.emplace_back(family->name());
}

double RunContext::elapsed_s() const {
  return earlier_s + std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

record::TimeShares RunContext::time_shares() const {
  record::TimeShares shares;
  shares.of_gpu = device.kind == DeviceKind::cuda;
  shares.phases = trial_runner.phases();
  shares.phases += draft_phases;
  shares.seconds = elapsed_s() - earlier_s - elsewhere_s + beside_s;
  shares.elsewhere_s = elsewhere_s;
  shares.builds = builds.times();
  shares.parts = parts;
  shares.no_records = trial_runner.no_records();
  return shares;
}

PartOfRun::~PartOfRun() {
  const double seconds = run_.elapsed_s() - begin_s_;
  for (auto& [name, so_far] : run_.parts)
    if (name == name_) {
      so_far += seconds;
      return;
    }
  run_.parts.emplace_back(name_, seconds);
}

double RunContext::gate_s() const {
  double sum = 0;
  int gates = 0;
  for (const store::TrialRecord& t : trials)
    if (t.ok()) {
      sum += t.verify_ms / 1000;
      ++gates;
    }
  return gates > 0 ? sum / gates : prepared_s / 2;
}

int RunContext::trials_that_fit() const {
  const double trial_s = trials.empty() ? prepared_s : trials.back().run_elapsed_s / static_cast<double>(trials.size());
  return budget().trials_left(elapsed_s(), trial_s, gate_s(), trial_runner.options().final_pair.limit_s);
}

measure::PairOptions RunContext::final_pair() const {
  measure::PairOptions pair = as_sharp_as_useful(trial_runner.options().final_pair);
  pair.limit_s = budget().final_measurement_s(pair.limit_s);
  return pair;
}

measure::PairOptions RunContext::as_sharp_as_useful(measure::PairOptions pair) const {
  pair.target_uncertainty = std::max(pair.target_uncertainty, std::min(self_spread / 4, wide_above(self_spread) / 2));
  return pair;
}

Variant RunContext::variant_of(const Proposal& proposal) const {
  const std::lock_guard lock(edited_mutex_);
  const auto space = static_cast<std::size_t>(proposal.space);
  const Variant* sources = space < families.size() ? nullptr : &edited.at(space - families.size()).variant;
  Variant variant =
      heed::variant_of(sources == nullptr ? *families[space] : *sources->family, proposal.config, options.workload);
  variant.overlay = proposal.overlay ? proposal.overlay : sources == nullptr ? nullptr : sources->overlay;
  return variant;
}

Variant RunContext::variant_of(const store::TrialRecord& trial) const {
  return source::with_stored(parse_variant(with_current_names(trial.config), options.workload, device), trial.edits);
}

int RunContext::space_of(const Variant& variant, const Basis& basis) const {
  return space_of(*variant.family, variant.overlay ? variant.overlay->digest() : std::string(), basis);
}

int RunContext::space_of(const Family& family, std::string_view digest, const Basis& basis) const {
  if (!digest.empty())
    for (std::size_t i = 0; i < edited.size() && basis.holds(edited[i].generation, edited[i].trial); ++i)
      if (edited[i].variant.family == &family && edited[i].digest == digest)
        return static_cast<int>(families.size() + i);
  const auto at = std::find(families.begin(), families.end(), &family);
  HEED_CHECK(at != families.end());
  return static_cast<int>(at - families.begin());
}

void RunContext::note_edits(const store::TrialRecord& trial) {
  if (!trial.ok() || trial.edits.is_null()) return;
  Variant variant = variant_of(trial);
  if (space_of(variant) >= static_cast<int>(families.size())) return;
  std::string digest = variant.overlay->digest();
  const std::lock_guard lock(edited_mutex_);
  edited.push_back({std::move(variant), std::move(digest), trial.generation, trial.number});
}

void RunContext::take_trials(std::vector<store::TrialRecord> stored) {
  trials = std::move(stored);
  for (const store::TrialRecord& trial : trials) note_edits(trial);
}

double RunContext::best_certain() const {
  double best = 0;
  for (const store::TrialRecord& t : trials)
    if (t.ok()) best = std::max(best, t.ratio_low);
  return best;
}

std::size_t RunContext::drafts_looked_at() const {
  std::size_t drafts = 0;
  for (const store::TrialRecord& t : trials) drafts += t.drafts.size();
  return drafts;
}

double RunContext::dependent_us(const Variant& variant) {
  if (device.kind != DeviceKind::cuda || !variant.plan(options.workload, device).supports_pdl) return 0;
  return trial_runner.measure_dependent(trial_runner.build(variant));
}

void RunContext::add_trial(store::TrialRecord trial, int trials_in_all) {
  trial.id = store.add_trial(trial);
  trials.push_back(std::move(trial));
  note_edits(trials.back());
  observer.trial_finished(trials.back(), best_certain(), trials_in_all);
}

}  // namespace heed::evolve
