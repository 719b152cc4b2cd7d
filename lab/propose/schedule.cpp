#include "propose/schedule.hpp"

#include <algorithm>
#include <cmath>

namespace heed::propose {
namespace {

double rate(const Record& record) {
  return record.seconds > 0 ? std::max(0.0, record.gain) / record.seconds : 0;
}

}  // namespace

int places_at_share(double share, int places, int trials_before) {
  const auto whole = [&](int trials) { return static_cast<int>(std::floor(share * trials + 1e-9)); };
  return whole(trials_before + places) - whole(trials_before);
}

int places_by_bandit(const Record& knobs, const Record& models, int places) {
  const double scale = std::max(rate(knobs), rate(models));
  int of_knobs = knobs.trials;
  int of_models = models.trials;
  int chosen = 0;
  for (int place = 0; place < places; ++place) {
    const double all = std::max(1, of_knobs + of_models);
    const auto bound = [&](const Record& record, int trials) {
      const double mean = scale > 0 ? rate(record) / scale : 0;
      return mean + std::sqrt(2 * std::log(all) / trials);
    };
    const bool is_models = of_models == 0 || (of_knobs != 0 && bound(models, of_models) > bound(knobs, of_knobs));
    chosen += is_models ? 1 : 0;
    (is_models ? of_models : of_knobs) += 1;
  }
  return chosen;
}

}  // namespace heed::propose
