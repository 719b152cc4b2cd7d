#include "evolve/knowledge.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace heed::evolve {
namespace {

std::string digest_of_edits(const store::TrialRecord& trial) {
  return trial.edits.is_object() ? trial.edits.value("digest", std::string()) : std::string();
}

void add_individuals(const RunContext& run, const store::TrialRecord& t, const Basis& basis,
                     std::vector<Individual>& to) {
  const Variant variant = run.variant_of(t);
  to.push_back(
      {t.number, t.generation, t.island, values_of(variant), t.ok(), t.ratio_low, run.space_of(variant, basis)});
  for (const store::DraftRecord& draft : t.drafts) {
    if (draft.config == t.config && draft.edits == digest_of_edits(t)) continue;
    const Variant drafted = parse_variant(draft.config, run.options.workload, run.device);
    to.push_back({t.number, t.generation, t.island, values_of(drafted), false, draft.certain,
                  run.space_of(*drafted.family, draft.edits, basis), true});
  }
}

}  // namespace

std::vector<Individual> individuals_of(const RunContext& run, const Basis& basis) {
  std::vector<Individual> all;
  for (std::size_t i = 0; i < std::min(basis.known, run.trials.size()); ++i)
    add_individuals(run, run.trials[i], basis, all);
  return all;
}

std::vector<Individual> KnownTrials::first(std::size_t known) {
  known = std::min(known, run_.trials.size());
  // Edits that passed are a space for what knows of them alone: what is of it depends on who asks.
  if (!run_.edited.empty()) return individuals_of(run_, {.known = known});
  for (std::size_t i = read_.size(); i < known; ++i)
    add_individuals(run_, run_.trials[i], {}, read_.emplace_back());
  std::vector<Individual> all;
  for (std::size_t i = 0; i < known; ++i) all.insert(all.end(), read_[i].begin(), read_[i].end());
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
