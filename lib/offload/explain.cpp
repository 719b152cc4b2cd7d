// What a pool is, and what its calls would do, as text.
#include <fmt/format.h>

#include <cmath>

#include "offload/offload.hpp"

namespace heed::offload {
namespace {

std::string rate_text(double bytes) {
  return readable(bytes) + "/s";
}
std::string time_text(double seconds) {
  return seconds >= 1e-3 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} us", seconds * 1e6);
}

}  // namespace

std::string about_nodes(int host_node, int device_node) {
  if (host_node < 0 || device_node < 0) return {};
  if (host_node == device_node) return fmt::format("NUMA      pages and GPU are on node {}\n", host_node);
  return fmt::format(
      "NUMA      pages are on node {0}, far from the GPU on node {1}: copies cross the link between processors; start "
      "the "
      "process on node {1} (numactl --cpunodebind={1} --membind={1})\n",
      host_node, device_node);
}

std::size_t Offload::bytes_of(const Work& work) {
  std::size_t all = 0;
  for (const Scratch* scratch : {&work.ring, &work.parts, &work.sums, &work.workspace, &work.q, &work.lse})
    all += scratch->bytes;
  for (const auto& desk : work.desks) all += desk->numbers.bytes;
  return all;
}
std::size_t Offload::bytes_of(const Graph& graph) {
  std::size_t all = bytes_of(graph.work);
  for (const Scratch& scratch : graph.outgrown) all += scratch.bytes;
  return all;
}

void Offload::info(heed_offload_info& info) const {
  const std::lock_guard lock(mutex_);
  const Traffic traffic = lanes_->traffic();
  info.host_node = host_.node();
  info.device_node = lanes_->node();
  info.host_bytes = host_.bytes();
  info.device_bytes = bytes_of(own_);
  for (const Scratch* scratch : {&device_, &scales_, &fresh_}) info.device_bytes += scratch->bytes;
  for (const auto& graph : graphs_) info.device_bytes += bytes_of(*graph);
  info.host_pages_free = pages_.free_host();
  info.device_pages_free = pages_.free_device();
  info.remote_pages = pages_.remote();
  info.sequences = pages_.sequences();
  info.link_rate = config_.rates.link;
  info.host_rate = config_.rates.host;
  info.device_rate = config_.rates.device;
  info.device_flops = config_.rates.device_flops;
  info.bytes_in = traffic.bytes_in;
  info.bytes_out = traffic.bytes_out;
  info.seconds_in = traffic.seconds_in;
  info.seconds_compute = traffic.seconds_compute;
  info.seconds_host = traffic.seconds_host;
}

std::string Offload::explain(std::span<const std::int64_t> ids) const {
  const std::lock_guard lock(mutex_);
  const Rates& rates = config_.rates;
  const double page = static_cast<double>(config_.page_bytes());
  std::string text = fmt::format("device    {}, {} of {} pages used, ring of {} chunks of {}\n", lanes_->name(),
                                 pages_.resident(), config_.pages.device_pages, config_.chunks,
                                 readable(page * static_cast<double>(config_.chunk_pages)));
  text += fmt::format("host      {} of {} pages free, {} of K and V{} a page and layer, {}\n", pages_.free_host(),
                      config_.pages.host_pages, readable(page),
                      config_.has_eight_bits() ? fmt::format(" in {}", to_string(config_.dtype_kv)) : "",
                      config_.kind == DeviceKind::cuda ? "pinned" : "not pinned: the GPU is simulated");
  text += about_nodes(host_.node(), lanes_->node());
  const std::int64_t steps = host_rate_->steps();
  text += fmt::format("rates     link {}, attention of the device {} and {:.3g} TFLOP/s, of the processors {}; {}\n",
                      rate_text(rates.link), rate_text(rates.device), rates.device_flops / 1e12,
                      host_can_ ? rate_text(rates.host) : "none",
                      steps == 0 ? rates_from_ : fmt::format("{}, then over {} steps of a layer", rates_from_, steps));
  for (const auto& graph : graphs_)
    if (graph->recording->is_alive())
      text += fmt::format("graph     {} sequences stay where they are, {} of the device are its own\n",
                          graph->held.size(), readable(static_cast<double>(bytes_of(*graph))));
  if (!host_can_) text += fmt::format("          no program for the processors: {}\n", host_refusal_);
  const std::int64_t hides =
      rows_that_hide_the_link(rates, config_.heads, config_.heads_kv, config_.page_element_bytes());
  text += fmt::format(
      "prefill   the link is hidden from {} query rows a call on; with half of them the link takes twice "
      "as long as the kernel\n",
      hides);
  if (config_.has_eight_bits())
    text += fmt::format("          launches of {} rows at most: pages of 8 bits have programs for few queries alone\n",
                        config_.most_rows());
  DecodeBytes bytes;
  for (int layer = 0; layer < config_.pages.layers; ++layer) {
    bytes = bytes_of(ids, layer);
    if (bytes.resident + bytes.remote > 0) break;
  }
  if (ids.empty() || bytes.resident + bytes.remote == 0) return text;
  const double share = share_of(bytes);
  const DecodePlan plan = plan_decode(rates, bytes, share);
  const double all = plan_decode(rates, bytes, 1).step_s();
  text += fmt::format(
      "decode    {:.0f} pages on the device, {:.0f} in host memory: {:.0f}% of these over the link{}\n"
      "          a layer takes device {}, link {}, processors {}: {}; {} with all of them over the link\n",
      bytes.resident / page, bytes.remote / page, 100 * share,
      !host_can_              ? ", for the processors have no program"
      : config_.streamed >= 0 ? ", as the config says"
                              : ", the processors attend to the others: both end together, or the device last",
      time_text(plan.device_s), time_text(plan.link_s), time_text(plan.host_s), time_text(plan.step_s()),
      time_text(all));
  const double to_pay = steps_to_pay(rates, bytes, page);
  text += to_pay <= 1e6 ? fmt::format("moving    a page that moves to the device has paid after {:.0f} steps\n",
                                      std::ceil(to_pay))
                        : std::string("moving    no page that moves to the device makes a step shorter\n");
  return text;
}

}  // namespace heed::offload
