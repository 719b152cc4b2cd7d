#include "offload/planner.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace heed::offload {
namespace {

double seconds(double bytes, double rate) {
  if (bytes <= 0) return 0;
  return rate > 0 ? bytes / rate : std::numeric_limits<double>::infinity();
}

}  // namespace

double DecodePlan::step_s() const {
  return std::max({device_s, link_s, host_s});
}

DecodePlan plan_decode(const Rates& rates, const DecodeBytes& bytes, double streamed) {
  const double over_link = streamed * bytes.remote;
  return {.streamed = streamed,
          .device_s = seconds(bytes.resident + over_link, rates.device),
          .link_s = seconds(over_link, rates.link),
          .host_s = seconds(bytes.remote - over_link, rates.host)};
}

DecodePlan plan_decode(const Rates& rates, const DecodeBytes& bytes) {
  if (rates.host <= 0) return plan_decode(rates, bytes, 1);
  if (rates.link <= 0 || bytes.remote <= 0) return plan_decode(rates, bytes, 0);
  // The host's part shrinks with the share, the link's and the device's grow: the best share is where the host's meets
  // the later of them, or none, where the host ends first without help.
  const double with_link = rates.link / (rates.link + rates.host);
  double share = with_link;
  if (rates.device > 0) {
    const double with_device = (bytes.remote / rates.host - bytes.resident / rates.device) /
                               (bytes.remote / rates.host + bytes.remote / rates.device);
    share = std::min(share, with_device);
  }
  return plan_decode(rates, bytes, std::clamp(share, 0.0, 1.0));
}

std::int64_t rows_that_hide_the_link(const Rates& rates, std::int64_t heads, std::int64_t heads_kv, int element_bytes) {
  if (rates.link <= 0 || heads <= 0) return 0;
  const double rows = rates.device_flops / rates.link * static_cast<double>(heads_kv) * element_bytes /
                      (2.0 * static_cast<double>(heads));
  return static_cast<std::int64_t>(std::ceil(std::min(rows, 1e15)));
}

double steps_to_pay(const Rates& rates, const DecodeBytes& bytes, double page_bytes) {
  if (page_bytes <= 0 || bytes.remote < page_bytes) return std::numeric_limits<double>::infinity();
  const double before = plan_decode(rates, bytes).step_s();
  const double after = plan_decode(rates, {bytes.resident + page_bytes, bytes.remote - page_bytes}).step_s();
  const double gain = before - after;
  return gain > 0 ? seconds(page_bytes, rates.link) / gain : std::numeric_limits<double>::infinity();
}

}  // namespace heed::offload
