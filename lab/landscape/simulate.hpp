/// Searches replayed on a landscape: the same proposals as in a run, times looked up in place of measured.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "landscape/course.hpp"
#include "landscape/landscape.hpp"
#include "landscape/prior.hpp"

namespace heed::landscape {

/// The first point of a search: the default, as in a run, or a legal point drawn by the seed, as tuners without a
/// default begin.
enum class Start { default_config, random };
/// @throws Error(usage) for a name that is neither "default" nor "random"
Start start_of(std::string_view name);

/// What the mutations of a search know: nothing, as in a run, or a prior.
enum class Knowledge { none, diagnoses, insights };

/// A way to search. `random` draws points without replacement, each as likely.
struct Searcher {
  std::string name;  ///< "elite", "single", "islands", "random", and with a prior: "elite-diagnoses", "elite-insights"
  bool is_random = false;
  Knowledge knowledge = Knowledge::none;
  Start start = Start::default_config;
  evolve::StrategyOptions options;
  Course course = {};  ///< random points have none
};
/// @throws Error(usage) for a name that is none
Searcher searcher_of(std::string_view name, int population);

/// How far the best of the first n trials of one search is behind the landscape's fastest point, for n from 1 to
/// `trials`: time / fastest time - 1. A search that ends early keeps what it has. Points without a time count as
/// trials. Infinite until a point with a time was tried.
/// @param prior of the searcher's knowledge; none: every change is as likely
std::vector<double> regrets(const Landscape& landscape, const Searcher& searcher, std::uint64_t seed, int trials,
                            const Prior& prior = nullptr);

/// Of many seeds.
struct Summary {
  std::string searcher;
  double median = 0;  ///< regret after all trials
  double low = 0;     ///< quartiles
  double high = 0;
  double within_2_percent = 0;       ///< share of the seeds
  std::vector<double> by_trial;      ///< median regret after n trials
  std::vector<double> of_all_seeds;  ///< regrets after all trials, by seed
};

/// @param insights of other landscapes, for a searcher that knows them
/// @param on_seed told how many seeds are done; may throw
Summary simulate(const Landscape& landscape, const Searcher& searcher, int seeds, int trials,
                 const Insights* insights = nullptr, const std::function<void(int)>& on_seed = {});

/// The difference of two searchers' mean regrets (a's minus b's) with its 95% interval, by the bootstrap over pairs of
/// seeds (Efron and Tibshirani 1993; 2,000 resamples of a fixed seed).
struct Difference {
  double mean = 0;
  double low = 0;
  double high = 0;
};
Difference difference_of(const Summary& a, const Summary& b);

}  // namespace heed::landscape
