#include "trial/phases.hpp"

#include <algorithm>

namespace heed::trial {
namespace {

const char* name_of(PhaseTimes Phases::*which) {
  return which == &Phases::gate ? "gate" : which == &Phases::screen ? "screen" : "measure";
}

}  // namespace

PhaseTimes& PhaseTimes::operator+=(const PhaseTimes& other) {
  wall_s += other.wall_s;
  busy_s += other.busy_s;
  recorded_s += other.recorded_s;
  return *this;
}

Phases& Phases::operator+=(const Phases& other) {
  gate += other.gate;
  screen += other.screen;
  measure += other.measure;
  spot_checks_s += other.spot_checks_s;
  return *this;
}

Shares shares_of(const Phases& phases, double seconds, bool of_gpu) {
  Shares shares;
  const double all = phases.gate.wall_s + phases.screen.wall_s + phases.measure.wall_s;
  const double whole = std::max(seconds, all);  // two clocks may differ by a moment
  if (whole <= 0) return {.idle = 1, .waiting = 1};
  // A worker's own clock is no larger than what passed here meanwhile, whatever it says.
  const auto share = [&](const PhaseTimes& one) {
    return (of_gpu ? std::clamp(one.busy_s, 0.0, one.wall_s) : one.wall_s) / whole;
  };
  shares.gate = share(phases.gate);
  shares.screen = share(phases.screen);
  shares.measure = share(phases.measure);
  shares.idle = std::max(0.0, 1 - shares.gate - shares.screen - shares.measure);
  shares.waiting = std::min(shares.idle, (whole - all) / whole);
  return shares;
}

Phase::Phase(PhaseClock& clock, PhaseTimes Phases::*which, const std::string& of)
    : clock_(clock), which_(which), is_outermost_(!clock.is_running), before_(*clock.busy), range_(name_of(which), of) {
  clock_.is_running = true;
}

Phase::~Phase() {
  if (!is_outermost_) return;
  clock_.is_running = false;
  constexpr double kSeconds = 1e-6;
  PhaseTimes& times = clock_.times.*which_;
  times.wall_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  times.busy_s += (clock_.busy->us - before_.us) * kSeconds;
  times.recorded_s += (clock_.busy->recorded_us - before_.recorded_us) * kSeconds;
}

}  // namespace heed::trial
