#include "dispatch/provenance.hpp"

#include <fmt/format.h>

#include <cmath>

namespace heed::dispatch {

std::string lacks_evidence(const Provenance& p) {
  if (p.device.empty()) return "says nothing of the device that it was measured on";
  if (p.source_digest.empty() || p.referee <= 0) return "says nothing of the sources and the referee of its search";
  if (!std::isfinite(p.ratio.value) || !std::isfinite(p.ratio.high) || p.ratio.low > p.ratio.value ||
      p.ratio.value > p.ratio.high)
    return fmt::format("has no interval: {} [{}, {}]", p.ratio.value, p.ratio.low, p.ratio.high);
  if (!(p.ratio.low > 1))
    return fmt::format("is not shown to be faster than its base: {:.4f} [{:.4f}, {:.4f}] reaches down to 1",
                       p.ratio.value, p.ratio.low, p.ratio.high);
  return "";
}

std::string to_string(const Provenance& p) {
  std::string search = p.run > 0 ? fmt::format("run {}", p.run) : fmt::format("search of {}", p.date.substr(0, 10));
  if (p.run > 0 && p.trial >= 0) search += fmt::format(" trial {}", p.trial);
  // Gains of less than a hundredth are told by three digits.
  const int digits = p.ratio.high - p.ratio.low < 0.02 || p.ratio.low < 1.02 ? 3 : 2;
  return fmt::format("{}: {:.{}f} [{:.{}f}, {:.{}f}] over its base on {}", search, p.ratio.value, digits, p.ratio.low,
                     digits, p.ratio.high, digits, p.device);
}

}  // namespace heed::dispatch
