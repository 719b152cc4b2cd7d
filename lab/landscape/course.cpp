#include "landscape/course.hpp"

#include <algorithm>

#include "base/digest.hpp"
#include "base/random.hpp"
#include "landscape/landscape.hpp"

namespace heed::landscape {
namespace {

using evolve::Individual;
using evolve::Proposal;

constexpr int kLooks = 2;  // at a draft before it leads: evolve::Draft::is_settled of readings that agree

// Streams of the seed beside those that the strategy draws from.
constexpr std::uint64_t kOfReadings = 0x7ead;
constexpr std::uint64_t kOfGates = 0x6a7e;

struct Draft {
  Proposal proposal;
  double sum = 0;
  int looks = 0;
  [[nodiscard]] double reads() const { return looks > 0 ? sum / looks : 0; }
};

struct Place {
  int generation = 0;
  std::vector<Draft> drafts;
  std::size_t proposed = 0;  // how many of its drafts before any of them was read
  bool ok = false;
  double certain = 0;

  Draft& best() {
    return *std::max_element(drafts.begin(), drafts.end(),
                             [](const Draft& a, const Draft& b) { return a.reads() < b.reads(); });
  }
};

Individual as_draft(const Proposal& p, int generation, double reads) {
  return {-1, generation, p.island, p.config, false, reads, p.space, true};
}

class Follower {
 public:
  Follower(const Landscape& landscape, const evolve::Space& space, const evolve::StrategyOptions& options,
           const Course& course)
      : landscape_(landscape),
        space_(space),
        options_(options),
        course_(course),
        readings_(substream(options.seed, kOfReadings)) {}

  std::vector<Tried> go(int trials) {
    const int together = course_.under_way > 0 ? 1 : options_.population;
    while (static_cast<int>(places_.size()) < trials) {
      const auto place = static_cast<int>(places_.size());
      const int generation = place / options_.population;
      const int slot = place % options_.population;
      const std::vector<Individual> history = known_to(place);
      std::vector<Place> proposed;
      for (Proposal& p : evolve::propose(options_, {&space_, 1}, generation, history, {slot, together})) {
        if (proposed.empty() || proposed.back().drafts.front().proposal.place != p.place)
          proposed.emplace_back().generation = generation;
        proposed.back().drafts.push_back({std::move(p)});
      }
      if (proposed.empty()) break;
      for (Place& one : proposed) {
        one.proposed = one.drafts.size();
        judge(one, history);
        places_.push_back(std::move(one));
      }
    }
    std::vector<Tried> tried;
    for (Place& place : places_)
      if (static_cast<int>(tried.size()) < trials) tried.push_back({place.best().proposal.config, place.ok});
    return tried;
  }

 private:
  // What is known when a place is proposed: the trials that are finished, and what those under way are about.
  std::vector<Individual> known_to(int place) {
    const int known = std::max(0, place - std::max(0, course_.under_way - 1));
    std::vector<Individual> history;
    for (int i = 0; i < place; ++i) {
      Place& other = places_[static_cast<std::size_t>(i)];
      if (i < known) {
        const Draft& best = other.best();
        const Proposal& p = best.proposal;
        history.push_back({i, other.generation, p.island, p.config, other.ok, other.certain, p.space});
        for (const Draft& one : other.drafts)
          if (&one != &best) history.push_back(as_draft(one.proposal, other.generation, one.reads()));
        continue;
      }
      for (std::size_t n = 0; n < other.proposed; ++n) {
        history.push_back(as_draft(other.drafts[n].proposal, other.generation, 0));
        history.back().is_under_way = true;
      }
    }
    return history;
  }

  void look_at(Draft& draft) {
    const Point& point = landscape_.points.at(draft.proposal.config);
    ++draft.looks;
    const double noise = course_.noise > 0 ? course_.noise * readings_.normal() : 0;
    if (point.ok()) draft.sum += point.ratio * (1 + noise);
  }

  // Rounds of drafts, as evolve::Drafting has them for a place by itself; then the trial of the best one.
  void judge(Place& place, std::vector<Individual> history) {
    std::size_t read = 0;
    for (int round = 0; place.drafts.size() > 1; ++round) {
      for (std::size_t n = read; n < place.drafts.size(); ++n) look_at(place.drafts[n]);
      while (place.best().reads() > 0 && place.best().looks < kLooks) look_at(place.best());
      for (; read < place.drafts.size(); ++read)
        history.push_back(as_draft(place.drafts[read].proposal, place.generation, place.drafts[read].reads()));
      if (static_cast<int>(place.drafts.size()) >= options_.drafts || place.best().reads() == 0) break;
      std::vector<Proposal> more =
          evolve::refine(options_, {&space_, 1}, place.generation, round, history, {place.best().proposal});
      for (Proposal& p : more)
        if (static_cast<int>(place.drafts.size()) < options_.drafts) place.drafts.push_back({std::move(p)});
      if (more.empty()) break;
    }
    const Config& config = place.best().proposal.config;
    const Point& point = landscape_.points.at(config);
    place.ok = point.ok() && !is_refused(config, space_.default_config, options_.seed, course_.refused);
    place.certain = point.low;
  }

  const Landscape& landscape_;
  const evolve::Space& space_;
  const evolve::StrategyOptions& options_;
  const Course& course_;
  Random readings_;
  std::vector<Place> places_;
};

}  // namespace

bool is_refused(const Config& config, const Config& start, std::uint64_t seed, double share) {
  std::uint64_t of_config = substream(seed, kOfGates);
  for (const int value : config) of_config = substream(of_config, static_cast<std::uint64_t>(value));
  return config != start && Random(of_config).chance(share);
}

std::vector<Tried> follow(const Landscape& landscape, const evolve::Space& space,
                          const evolve::StrategyOptions& options, const Course& course, int trials) {
  return Follower(landscape, space, options, course).go(trials);
}

}  // namespace heed::landscape
