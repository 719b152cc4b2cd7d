#include "landscape/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.hpp"
#include "base/parallel.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "heed/heed.hpp"

namespace heed::landscape {
namespace {

constexpr double kGood = 0.02;
constexpr int kResamples = 2000;

double quantile(std::vector<double> values, double share) {
  HEED_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  if (values[below] == values[above]) return values[below];  // both may be infinite
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

// What a search has found after each trial.
class Progress {
 public:
  Progress(const Landscape& landscape, int trials)
      : landscape_(landscape), fastest_us_(landscape.best_us()), trials_(trials) {
    HEED_CHECK(fastest_us_ > 0);
  }
  void take(const Config& config, bool ok) {
    const Point& point = landscape_.points.at(config);
    if (ok) best_ = std::min(best_, point.us / fastest_us_ - 1);
    regrets_.push_back(best_);
  }
  [[nodiscard]] bool is_done() const { return static_cast<int>(regrets_.size()) >= trials_; }
  [[nodiscard]] std::vector<double> regrets() const {
    std::vector<double> all = regrets_;
    all.resize(static_cast<std::size_t>(trials_), best_);
    return all;
  }

 private:
  const Landscape& landscape_;
  double fastest_us_;
  int trials_;
  double best_ = std::numeric_limits<double>::infinity();
  std::vector<double> regrets_;
};

// A legal point, each as likely. The stream is another than that of the strategy's, which the same seed begins.
const Config& random_point(const Landscape& landscape, std::uint64_t seed) {
  constexpr std::uint64_t kOtherStream = 0x9e3779b97f4a7c15;
  const std::size_t at = Random(seed ^ kOtherStream).below(landscape.points.size());
  return std::next(landscape.points.begin(), static_cast<std::ptrdiff_t>(at))->first;
}

// Gates refuse the same points as those of other searches with this seed and start.
std::vector<double> random_regrets(const Landscape& landscape, const Config& start, double refused, std::uint64_t seed,
                                   int trials) {
  std::vector<const Config*> configs;
  for (const auto& [config, point] : landscape.points) configs.push_back(&config);
  Progress progress(landscape, trials);
  Random random(seed);
  for (std::size_t left = configs.size(); left > 0 && !progress.is_done(); --left) {
    const std::size_t at = random.below(left);
    const bool ok = landscape.points.at(*configs[at]).ok() && !is_refused(*configs[at], start, seed, refused);
    progress.take(*configs[at], ok);
    std::swap(configs[at], configs[left - 1]);
  }
  return progress.regrets();
}

}  // namespace

Start start_of(std::string_view name) {
  if (name == "default") return Start::default_config;
  if (name == "random") return Start::random;
  throw Error(ErrorCode::usage, fmt::format("a search starts at the default or at a random point, not at {}", name),
              std::string(name));
}

Searcher searcher_of(std::string_view name, int population) {
  Searcher searcher;
  searcher.name = name;
  searcher.options.population = population;
  searcher.is_random = name == "random";
  if (searcher.is_random) return searcher;
  std::string_view kind = name;
  for (const auto& [suffix, knowledge] :
       {std::pair<std::string_view, Knowledge>{"-diagnoses", Knowledge::diagnoses}, {"-insights", Knowledge::insights}})
    if (kind.ends_with(suffix)) {
      kind.remove_suffix(suffix.size());
      searcher.knowledge = knowledge;
    }
  if (kind != "single" && kind != "elite" && kind != "islands")
    throw Error(
        ErrorCode::usage,
        fmt::format("{} is no search; {}", name,
                    one_of(name, {"single", "elite", "islands", "random", "elite-diagnoses", "elite-insights"})),
        std::string(name));
  searcher.options.kind = record::parse_strategy(kind);
  searcher.options.islands = std::min(searcher.options.islands, population);
  return searcher;
}

std::vector<double> regrets(const Landscape& landscape, const Searcher& searcher, std::uint64_t seed, int trials,
                            const Prior& prior) {
  const Config& start = searcher.start == Start::random ? random_point(landscape, seed) : landscape.default_config;
  if (searcher.is_random) return random_regrets(landscape, start, searcher.course.refused, seed, trials);
  evolve::StrategyOptions options = searcher.options;
  options.seed = seed;
  evolve::Space space;
  space.knobs = &landscape.knobs;
  space.default_config = start;
  space.is_legal = [&](const Config& config) { return landscape.points.count(config) != 0; };
  space.name = landscape.family;
  space.prior = prior;
  Progress progress(landscape, trials);
  for (const Tried& one : follow(landscape, space, options, searcher.course, trials)) progress.take(one.config, one.ok);
  return progress.regrets();
}

Summary simulate(const Landscape& landscape, const Searcher& searcher, int seeds, int trials, const Insights* insights,
                 const std::function<void(int)>& on_seed) {
  HEED_CHECK(seeds > 0 && trials > 0);
  Prior prior;
  if (searcher.knowledge == Knowledge::diagnoses) prior = prior_of_diagnoses(landscape);
  if (searcher.knowledge == Knowledge::insights && insights != nullptr) prior = insights->prior();
  std::vector<std::vector<double>> all(static_cast<std::size_t>(seeds));
  // A few at a time, so that whoever waits is told.
  constexpr int kTogether = 10;
  for (int first = 0; first < seeds; first += kTogether) {
    const int count = std::min(kTogether, seeds - first);
    parallel_for(count, 0, [&](std::int64_t i) {
      const auto seed = static_cast<std::uint64_t>(first) + static_cast<std::uint64_t>(i);
      all[static_cast<std::size_t>(seed)] = regrets(landscape, searcher, seed + 1, trials, prior);
    });
    if (on_seed) on_seed(first + count);
  }
  Summary summary;
  summary.searcher = searcher.name;
  for (const std::vector<double>& one : all) summary.of_all_seeds.push_back(one.back());
  summary.median = quantile(summary.of_all_seeds, 0.5);
  summary.low = quantile(summary.of_all_seeds, 0.25);
  summary.high = quantile(summary.of_all_seeds, 0.75);
  summary.within_2_percent = static_cast<double>(std::count_if(summary.of_all_seeds.begin(), summary.of_all_seeds.end(),
                                                               [](double r) { return r <= kGood; })) /
                             seeds;
  for (int n = 0; n < trials; ++n) {
    std::vector<double> after;
    for (const std::vector<double>& one : all) after.push_back(one[static_cast<std::size_t>(n)]);
    summary.by_trial.push_back(quantile(std::move(after), 0.5));
  }
  return summary;
}

Difference difference_of(const Summary& a, const Summary& b) {
  HEED_CHECK(a.of_all_seeds.size() == b.of_all_seeds.size() && !a.of_all_seeds.empty());
  std::vector<double> pairs;
  for (std::size_t i = 0; i < a.of_all_seeds.size(); ++i) pairs.push_back(a.of_all_seeds[i] - b.of_all_seeds[i]);
  const auto mean_of = [&](const auto& value) {
    double sum = 0;
    for (std::size_t i = 0; i < pairs.size(); ++i) sum += value(i);
    return sum / static_cast<double>(pairs.size());
  };
  Difference difference;
  difference.mean = mean_of([&](std::size_t i) { return pairs[i]; });
  Random random(1);
  std::vector<double> means;
  for (int n = 0; n < kResamples; ++n)
    means.push_back(mean_of([&](std::size_t) { return pairs[random.below(pairs.size())]; }));
  difference.low = quantile(means, 0.025);
  difference.high = quantile(means, 0.975);
  return difference;
}

}  // namespace heed::landscape
