#include "trial/noise.hpp"

#include <fmt/format.h>

#include <chrono>

#include "base/faster.hpp"
#include "measure/statistics.hpp"

namespace heed::trial {
namespace {

constexpr std::chrono::milliseconds kMoment{200};  // 20 ticks of each processor
constexpr double kBusy = 0.1;                      // of the processors, or more, are said to be busy
constexpr double kStolen = 0.02;

}  // namespace

Noise noise_of(const TrialRunner::SelfComparison& self) {
  Noise noise;
  noise.self_spread = self.spread;
  noise.block_spread = measure::spread(self.pair.base_us);
  noise.others = watch_others(kMoment);
  return noise;
}

bool is_too_noisy(const Noise& noise) {
  return noise.self_spread > kTooNoisy;
}

std::string describe(const Noise& noise, bool device_is_cpu) {
  std::string text = fmt::format(
      "the base against itself reaches {:.1f}% from 1 and its blocks spread by {:.0f}%, so that no gain below {:.1f}% "
      "can be shown",
      100 * noise.self_spread, 100 * noise.block_spread, 100 * noise.self_spread);
  if (noise.others.busy >= kBusy)
    text += fmt::format("; other programs take {:.0f}% of the processors", 100 * noise.others.busy);
  if (noise.others.stolen >= kStolen)
    text += fmt::format("; the host gives {:.0f}% of them to other machines", 100 * noise.others.stolen);
  text += device_is_cpu ? ". Stop what else runs, or wait until it ends; give each measurement more time "
                          "(--measure-limit 10)"
                        : ". Stop what else uses the GPU, or give each measurement more time (--measure-limit 10)";
  return text;
}

}  // namespace heed::trial
