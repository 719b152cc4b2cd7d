/// Which variants to try next.
///
/// Populations after EvoEngineer (arXiv 2510.03760): a single best solution, elite preservation, or islands. Proposals
/// are a pure function of the seed, the generation and the trials of earlier generations, so that a resumed run makes
/// the same ones; those of later rounds (refine) also of what screenings of the drafts before them read.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "record/run_options.hpp"
#include "variant/family.hpp"

namespace heed::evolve {

using record::StrategyKind;
using record::StrategyOptions;

enum class Operation {
  initial_default,
  recall,      ///< what an earlier run found
  specialise,  ///< the default of the first space with what a program may know of its workload
  restart,
  mutate,
  crossover,
  migrate,
  regroup,  ///< an elite's work shared out in another way: the knobs that say so together, the others as they are
  revert,   ///< one change of an elite put back to the default: what it picked up by chance and does not need
  edit,     ///< a model's edits of a parent's sources
  repair,   ///< the same after a build error or a failed gate
};
std::string_view to_string(Operation operation);

/// Proposals for a trial that are made together; further ones know what these were timed at.
inline constexpr int kDraftsARound = 8;

/// Of the best's ratio: variants and ways of sharing the work below that are given up.
inline constexpr double kNearlyAsFast = 0.9;

/// What a strategy knows of a finished trial.
struct Individual {
  int number = 0;
  int generation = 0;
  int island = 0;
  Config config;
  bool ok = false;
  double certain = 0;         ///< base time / trial time: the lower end of its interval, which is certain
  int space = 0;              ///< which of the spaces its config is of
  bool is_draft = false;      ///< one that was looked at and not chosen: known, but no trial and no parent
  bool is_under_way = false;  ///< a draft of a trial that is not finished: regroup() leaves its way of sharing alone
};

struct Proposal {
  Config config;
  Operation operation = Operation::restart;
  std::vector<int> parents;  ///< trial numbers
  std::string why;           ///< "block_n 64 -> 128 of trial 7"
  int island = 0;
  int space = 0;                             ///< which of the spaces its config is of
  int place = 0;                             ///< which of the generation's trials it is a draft of
  std::shared_ptr<const Overlay> overlay{};  ///< edited sources; null: as carried
};

/// What the strategy needs of a family: its knobs and those of its specializations (variant_knobs), its default, and
/// whether a variant may be tried. Configs are the values of these knobs.
struct Space {
  const std::vector<Knob>* knobs = nullptr;
  Config default_config;
  std::function<bool(const Config&)> is_legal;
  std::function<Config(const Config&)> canonical = nullptr;  ///< heed::canonical; none: every config is
  std::string name = {};
  std::vector<Config> found = {};  ///< by earlier runs: legal ones
  /// Numbers of knobs that every proposal has as the default: knobs of accuracy (Knob::of_accuracy), since a search
  /// looks at speed alone, and those that the run's options hold.
  std::vector<std::size_t> held = {};
  /// How many times as likely a mutation gives knob number `knob` of a parent this value; none: each value alike. Runs
  /// have none: from the default neither diagnoses nor insights paid on landscapes (landscape/prior.hpp).
  std::function<double(const Config& parent, std::size_t knob, int value)> prior = nullptr;
};

/// The family's default for the workload with the knobs that `hold` names at its values ("" for none): the base of a
/// run, and what its search begins with. @throws Error(usage) where the family has no such knob or value, or cannot run
/// the workload with it
Variant default_with(const Family& family, std::string_view hold, const Workload& workload, const DeviceFacts& device);

/// The space of a family that does not refuse the workload. @throws what default_with does
Space space_of(const Family& family, const Workload& workload, const DeviceFacts& device, std::string_view hold = {});

/// A config with the knobs that its space holds as the default has them.
Config with_held(const Space& space, Config config);

/// Some of a generation's trials, by place.
struct Slots {
  int first = 0;
  int count = std::numeric_limits<int>::max();  ///< up to the generation's end
};

/// The proposals of one generation, or of some of its trials: for each of options.population trials options.drafts of
/// them, but kDraftsARound at most, one after the other, fewer only when the space holds no more. None equals an
/// earlier trial, a draft of one, or another of the same generation. Defaults and what is known from elsewhere have a
/// trial to themselves: they are worth one whatever its screening says. A search of several spaces begins with the
/// default of each, and tries that of the first made for its workload alone (Knob::known) with the first generation, or
/// next to it; behind the defaults comes what earlier runs found (Space::found). Elites compete whatever their space,
/// so that the better one gets the trials. Those that share out the work as the best does leave some places to the best
/// others that are nearly as fast: another way seldom wins before its knobs suit it.
/// @param spaces the first is that of the base
/// @param history every trial that may be known, in order, every draft, and what is under way
std::vector<Proposal> propose(const StrategyOptions& options, std::span<const Space> spaces, int generation,
                              const std::vector<Individual>& history, Slots slots = {});

/// More proposals for some trials of a generation, kDraftsARound for each, next to the best that each has by now.
/// @param round how many rounds of proposals there were before
/// @param history as for propose, and every proposal of this generation as a draft
/// @param leaders the best of each of those trials
/// @return mutations of leaders and crossovers between those of an island, with the leader's parents
std::vector<Proposal> refine(const StrategyOptions& options, std::span<const Space> spaces, int generation, int round,
                             const std::vector<Individual>& history, const std::vector<Proposal>& leaders);

/// The knobs in which two configs differ: "block_n 64 -> 128, stages 2 -> 3".
std::string difference(const std::vector<Knob>& knobs, const Config& from, const Config& to);

}  // namespace heed::evolve
