#include "evolve/drafting.hpp"

#include <fmt/format.h>

#include "base/check.hpp"
#include "evolve/trials.hpp"
#include "process/interrupt.hpp"

namespace heed::evolve {
namespace {

// Of a block of a screening. Ten, as a measurement has of launches of a few us, tell no more that drafts are chosen by,
// and take two and a half times as long.
constexpr int kReplays = 4;
// Of the best draft's ratio: what reads less at first is not looked at further.
constexpr double kHopelessLook = 0.97;

}  // namespace

Drafting::Drafting(RunContext& run) : run_(run) {
  if (run.options.strategy.drafts <= 1) return;
  try {
    trial_runner_.emplace(run.options.workload, run.device, run.builder, nullptr, run.trial_runner.options());
    trial_runner_->set_base(run.trial_runner.base());  // its gate takes the memory that screening takes, too
    run.draft_phases = trial_runner_->phases();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;  // the memory is not enough for the inputs twice
    trial_runner_.reset();
    run.options.strategy.drafts = 1;
    run.observer.message(fmt::format("no drafts, every proposal is a trial: {}", error.what()));
  }
}

void Drafting::look_at(Draft& draft, double best) {
  HEED_CHECK(trial_runner_.has_value());
  check_interrupt();
  wait_for_build(run_, draft);
  const Variant variant = run_.variant_of(draft.proposal);
  const Turns::Turn turn(run_.turns);
  if (const store::TrialRecord* duplicate = duplicate_of(run_, variant, draft.outcome))
    draft.give_up(as_duplicate_of(*duplicate));
  else
    draft.take(trial_runner_->screen(
        variant, draft.outcome,
        {.most_replays = kReplays, .hopeless_below = kHopelessLook * best, .timed_at = run_.timed_at}));
}

void Drafting::draft(int generation, const std::vector<Space>& where, std::vector<Individual> history,
                     std::vector<Place>& places) {
  const auto is_open = [&](const Place& place) {
    return place.drafts.size() > 1 && static_cast<int>(place.drafts.size()) < run_.options.strategy.drafts;
  };
  std::vector<std::size_t> known(places.size(), 0);  // how many of each place's drafts earlier rounds proposed
  for (int round = 0;; ++round) {
    for (std::size_t i = 0; i < places.size(); ++i)
      for (std::size_t n = known[i]; n < places[i].drafts.size(); ++n)
        start_build(run_, places[i].drafts[n], build_turn(generation, places[i].drafts.front().proposal.place));
    // On a GPU the first finished build is timed while the others are compiled. On a CPU the compiler would disturb
    // what is timed, so all builds come first.
    if (run_.device.kind == DeviceKind::cpu)
      for (Place& place : places)
        for (Draft& one : place.drafts) wait_for_build(run_, one);
    for (std::size_t i = 0; i < places.size(); ++i) {
      std::vector<Draft>& drafts = places[i].drafts;
      if (drafts.size() > 1) {
        for (std::size_t n = known[i]; n < drafts.size(); ++n) look_at(drafts[n], places[i].best().certain());
        while (places[i].best().certain() > 0 && !places[i].best().is_settled())
          look_at(places[i].best(), places[i].best().certain());
      }
      for (std::size_t n = known[i]; n < drafts.size(); ++n) {
        const Proposal& p = drafts[n].proposal;
        history.push_back({-1, generation, p.island, p.config, false, drafts[n].certain(), p.space, true});
      }
      known[i] = drafts.size();
    }
    std::vector<Proposal> leaders;
    for (Place& place : places)
      if (is_open(place) && place.best().certain() > 0) leaders.push_back(place.best().proposal);
    bool more = false;
    for (Proposal& proposal : refine(run_.options.strategy, where, generation, round, history, leaders))
      for (Place& place : places)
        if (is_open(place) && place.drafts.front().proposal.place == proposal.place) {
          place.drafts.emplace_back().proposal = std::move(proposal);
          more = true;
          break;
        }
    const Turns::Turn turn(run_.turns);
    if (trial_runner_) run_.draft_phases = trial_runner_->phases();
    if (!more) return;
  }
}

}  // namespace heed::evolve
