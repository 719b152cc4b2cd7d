// A clock on a machine that others use, too: what a block of launches reads while the processor is taken away, slowed
// down or drifts. Time passes as blocks run, so what disturbs one block disturbs its neighbours.
#pragma once

#include <cmath>
#include <string>

#include "base/random.hpp"
#include "measure/pair.hpp"

namespace heed::measure {

enum class Noise { quiet, bursts, two_speeds, drift };

inline std::string to_string(Noise noise) {
  switch (noise) {
    case Noise::quiet:
      return "quiet";
    case Noise::bursts:
      return "bursts";
    case Noise::two_speeds:
      return "two_speeds";
    case Noise::drift:
      return "drift";
  }
  return "";
}

class NoisyClock {
 public:
  NoisyClock(Noise noise, std::uint64_t seed) : noise_(noise), random_(seed) {
    now_ = 10'000 * random_.uniform();
    left_ = 100 * random_.uniform();
  }

  /// A block of launches that take `us` each when nothing disturbs them, as long as a block on a CPU.
  double block_us(double us) { return us * (1 + 0.004 * random_.normal()) * slowed() / kBlock_ms; }
  Block block(double us) {
    return [this, us] { return Reading(block_us(us)); };
  }
  /// Between two measurements a gate runs.
  void pass(double ms) {
    for (double until = now_ + ms; now_ < until;) (void)slowed();
  }

 private:
  static constexpr double kBlock_ms = 20;

  double exponential(double mean) { return -mean * std::log(1 - random_.uniform()); }

  // ms that kBlock_ms of work take from now on.
  double slowed() {
    const double begin = now_;
    double work = kBlock_ms;
    while (work > 0) {
      const double part = std::min(work, left_ / slowness());
      work -= part;
      now_ += part * slowness();
      left_ -= part * slowness();
      if (left_ <= 1e-9) next();
    }
    return now_ - begin;
  }

  [[nodiscard]] double slowness() const {
    return noise_ == Noise::drift ? slow_ * (1 + 0.15 * std::sin(now_ / 800)) : slow_;
  }

  void next() {
    switch (noise_) {
      case Noise::quiet:
        left_ = 1000;
        return;
      case Noise::bursts:  // everything slows down for 20 ms to a second, as where a program beside compiles
        disturbed_ = !disturbed_;
        slow_ = disturbed_ ? 1.5 + 3.5 * random_.uniform() : 1;
        left_ = disturbed_ ? std::min(1000.0, 25 / std::pow(1 - random_.uniform(), 1 / 1.2)) : exponential(90);
        return;
      case Noise::two_speeds:  // a neighbour on the same core, or a host that steals: half of the time 2.5 times as
                               // slow
        disturbed_ = !disturbed_;
        slow_ = disturbed_ ? 2.5 : 1;
        left_ = exponential(disturbed_ ? 50 : 60);
        return;
      case Noise::drift:  // spikes that come in series, on a clock that sways by 15% in five seconds
        disturbed_ = random_.chance(disturbed_ ? 0.75 : 0.24);
        slow_ = disturbed_ ? 1 + 1.5 * std::abs(random_.normal()) : 1;
        left_ = 15;
        return;
    }
  }

  Noise noise_;
  Random random_;
  double now_ = 0;   // ms
  double left_ = 0;  // ms until the next change
  double slow_ = 1;
  bool disturbed_ = false;
};

}  // namespace heed::measure
