#include "evolve/knowledge.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace heed::evolve {
namespace {

std::string digest_of_edits(const store::TrialRecord& trial) {
  return trial.edits.is_object() ? trial.edits.value("digest", std::string()) : std::string();
}

void add_known(const RunContext& run, const store::TrialRecord& t, std::vector<KnownConfig>& to) {
  const Variant variant = run.variant_of(t);
  to.push_back({{t.number, t.generation, t.island, values_of(variant), t.ok(), t.ratio_low},
                variant.family,
                variant.overlay ? variant.overlay->digest() : std::string()});
  for (const store::DraftRecord& draft : t.drafts) {
    if (draft.config == t.config && draft.edits == digest_of_edits(t)) continue;
    const Variant drafted = parse_variant(draft.config, run.options.workload, run.device);
    to.push_back({{t.number, t.generation, t.island, values_of(drafted), false, draft.certain, 0, true},
                  drafted.family,
                  draft.edits});
  }
}

Individual in_space(const RunContext& run, const KnownConfig& known, const Basis& basis) {
  Individual individual = known.individual;
  individual.space = run.space_of(*known.family, known.edits, basis);
  return individual;
}

}  // namespace

std::vector<Individual> individuals_of(const RunContext& run, const Basis& basis) {
  KnownTrials known(run);
  return known.first(run.trials.size(), basis);
}

std::vector<Individual> KnownTrials::first(std::size_t known, const Basis& basis) {
  known = std::min(known, run_.trials.size());
  for (std::size_t i = ends_.size(); i < known; ++i) {
    add_known(run_, run_.trials[i], read_);
    ends_.push_back(read_.size());
  }
  std::vector<Individual> all;
  const std::size_t end = known > 0 ? ends_[known - 1] : 0;
  for (std::size_t i = 0; i < end; ++i) all.push_back(in_space(run_, read_[i], basis));
  return all;
}

std::vector<Space> spaces_of(const RunContext& run, const Basis& basis) {
  std::vector<Space> all;
  for (const Family* family : run.families)
    all.push_back(space_of(*family, run.options.workload, run.device, run.options.hold));
  for (const Variant& variant : run.found) {
    Space& space = all[static_cast<std::size_t>(run.space_of(variant))];
    space.found.push_back(with_held(space, values_of(variant)));
  }
  // The search begins at the trial that brought the edits, which was tried.
  for (const EditedSources& one : run.edited) {
    if (!basis.holds(one.generation, one.trial)) break;
    Space space = all[static_cast<std::size_t>(run.space_of(*one.variant.family, "", basis))];
    space.found.clear();
    space.default_config = values_of(one.variant);
    space.name = fmt::format("{} with edits {}", one.variant.family->name(), one.digest.substr(0, 8));
    all.push_back(std::move(space));
  }
  return all;
}

}  // namespace heed::evolve
