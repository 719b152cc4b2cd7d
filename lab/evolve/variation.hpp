/// The operators of a search: from parents, or from nothing, to a config that is new and legal.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "evolve/strategy.hpp"

namespace heed::evolve {

/// Draws until a legal, new config is found; then an operator is given up.
inline constexpr int kAttempts = 400;

/// Knows every config that was tried, and gives none twice.
class Variation {
 public:
  Variation(std::span<const Space> spaces, const std::vector<Individual>& history);

  /// No operator gives its config again from now on, nor does regroup() share out the work in its way.
  void take(const Proposal& proposal);

  [[nodiscard]] const Space& space(int index) const { return spaces_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const std::vector<Knob>& knobs(int index) const { return *space(index).knobs; }
  /// Whether it was not tried, has what its space holds, and may be.
  [[nodiscard]] bool is_new(int index, const Config& config) const;
  /// With what the space holds, by its one name.
  [[nodiscard]] Config canonical(int index, Config config) const;
  /// In which way a config shares out the work: the values of the knobs that say so.
  [[nodiscard]] Config sharing(int index, const Config& config) const;
  /// The better of two elites drawn at random: strong pressure towards the best without forgetting the others.
  static const Individual& tournament(const std::vector<const Individual*>& parents, Random& random);
  /// The parent with another value of one knob or two.
  std::optional<Proposal> mutate(const Individual& parent, Random& random) const;
  /// A parent with half of the knobs in which another one of its space differs.
  std::optional<Proposal> crossover(const std::vector<const Individual*>& parents, Random& random) const;
  /// The parent with another combination of the knobs that share out the work: of those that nobody tried, else of
  /// those that came near the best, each as likely; none that this generation tries anyway. One that does not fit as it
  /// is gets another value of one other knob. None where fewer than two knobs say so, or nothing new is legal.
  std::optional<Proposal> regroup(const Individual& parent, Random& random) const;
  /// The default of the first space with every knob by which programs know their workload at that value.
  [[nodiscard]] std::optional<Proposal> specialised() const;
  /// The parent with one knob put back to the default's value. None when every change was put back before.
  std::optional<Proposal> revert(const Individual& parent, Random& random) const;
  /// A random point of a space, or one of the last that are left.
  std::optional<Proposal> restart(int index, Random& random) const;
  /// "trial 7", or "the default", from which the first generation starts and which is no trial.
  static std::string name_of(const Individual& parent);

 private:
  [[nodiscard]] const std::vector<std::size_t>& sharing_knobs(int index) const;
  static void change_knob(Config& config, const std::vector<Knob>& knobs, std::size_t index, Random& random);
  /// Another value of one knob, and how likely it is to be the next one tried.
  struct Change {
    std::size_t knob;
    int value;
    double weight;
  };
  /// How many knobs of two configs differ.
  static int distance(const Config& a, const Config& b);
  /// Every other value of a parent's knobs. Those that no config near it has come first, and those that the space's
  /// prior favours.
  [[nodiscard]] std::vector<Change> changes_of(const Individual& parent) const;
  static const Change& draw(const std::vector<Change>& changes, Random& random);
  static std::vector<int> numbers_of(const Individual& parent);
  /// A new config that shares out the work as this one does, with one other knob changed if it takes that. What
  /// canonical() puts back is another way.
  std::optional<Config> fitted(int index, const Config& wanted, Random& random) const;
  /// Each way of sharing out the work that was tried in a space, if only as a draft, with its best ratio.
  [[nodiscard]] std::map<Config, double> tried_sharings(int index) const;

  std::span<const Space> spaces_;
  const std::vector<Individual>& history_;
  std::set<std::pair<int, Config>> seen_;
  std::vector<std::vector<std::size_t>> sharing_knobs_;  ///< of each space
  std::set<std::pair<int, Config>> under_way_;           ///< how proposals that are no trials yet share out the work
};

}  // namespace heed::evolve
