#include "evolve/division.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.hpp"

namespace heed::evolve {
namespace {

constexpr double kLeastOfATrial = 0.25;  // a share below it is worth no trial

// One number a workload that is not refused; 0 for those that are.
std::vector<double> weights_of(const std::vector<Offer>& offers) {
  double gained = 0, spent = 0, flops = 0;  // of those that were timed
  for (const Offer& offer : offers)
    if (!offer.refused && offer.seconds > 0) {
      gained += std::max(0.0, offer.seconds - offer.calls * offer.floor_s);
      spent += offer.seconds;
      flops += offer.calls * offer.flops;
    }
  const bool by_gain = gained > 0;
  const double of_a_flop = spent > 0 && flops > 0 ? (by_gain ? gained : spent) / flops : 1;
  std::vector<double> weights;
  for (const Offer& offer : offers) {
    double weight = 0;
    if (offer.seconds > 0)
      weight = by_gain ? std::max(0.0, offer.seconds - offer.calls * offer.floor_s) : offer.seconds;
    else
      weight = offer.calls * offer.flops * of_a_flop;
    weights.push_back(offer.refused ? 0 : weight);
  }
  return weights;
}

// Whole numbers in proportion to weights: each gets its quota without the fraction, and those of the largest fractions
// one more, until the sum is reached.
void by_largest_remainder(const std::vector<std::size_t>& which, const std::vector<double>& weights, int sum,
                          std::vector<Part>& parts) {
  double of_all = 0;
  for (const std::size_t i : which) of_all += weights[i];
  std::vector<std::pair<double, std::size_t>> fractions;
  int left = sum;
  for (const std::size_t i : which) {
    const double quota = sum * weights[i] / of_all;
    parts[i].trials = static_cast<int>(std::floor(quota));
    left -= parts[i].trials;
    fractions.emplace_back(quota - std::floor(quota), i);
  }
  std::stable_sort(fractions.begin(), fractions.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t at = 0; left > 0; at = (at + 1) % fractions.size(), --left) ++parts[fractions[at].second].trials;
}

}  // namespace

std::vector<Part> divide(const std::vector<Offer>& offers, int trials) {
  HEED_CHECK(trials >= 1);
  const std::vector<double> weights = weights_of(offers);
  const double of_all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<Part> parts(offers.size());
  const double largest = weights.empty() ? 0 : *std::max_element(weights.begin(), weights.end());
  std::vector<std::size_t> served;
  for (std::size_t i = 0; i < offers.size(); ++i) {
    if (of_all > 0) parts[i].share = weights[i] / of_all;
    if (offers[i].refused)
      parts[i].why = NoTrials::refused;
    else if (parts[i].share * trials < kLeastOfATrial && weights[i] < largest)
      parts[i].why = NoTrials::too_small;
    else
      served.push_back(i);
  }
  std::stable_sort(served.begin(), served.end(), [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  const int least = std::min(kLeastTrials, trials);
  while (served.size() > static_cast<std::size_t>(trials / least)) {
    parts[served.back()].why = NoTrials::too_few;
    served.pop_back();
  }
  // The smallest first: what is put up to the least leaves fewer trials to the others.
  int left = trials;
  while (!served.empty()) {
    double others = 0;
    for (const std::size_t i : served) others += weights[i];
    if (left * weights[served.back()] / others >= least) break;
    parts[served.back()].trials = served.size() == 1 ? left : least;
    left -= parts[served.back()].trials;
    served.pop_back();
  }
  if (!served.empty()) by_largest_remainder(served, weights, left, parts);
  return parts;
}

std::vector<std::size_t> by_trials(const std::vector<Part>& parts) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i].trials > 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return parts[a].trials != parts[b].trials ? parts[a].trials > parts[b].trials : parts[a].share > parts[b].share;
  });
  return order;
}

double time_of_first(double left_s, const std::vector<int>& trials) {
  const int all = std::accumulate(trials.begin(), trials.end(), 0);
  return all > 0 ? std::max(0.0, left_s) * trials.front() / all : 0;
}

}  // namespace heed::evolve
