#include "ladder/report.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/text.hpp"
#include "base/version.hpp"
#include "compile/embedded.hpp"
#include "record/json.hpp"
#include "report/table.hpp"

namespace heed::ladder {
namespace {

using nlohmann::json;

constexpr const char* kNothing = "-";

std::string ratio_text(double ratio) {
  return ratio >= 100 ? fmt::format("{:.0f}", ratio) : fmt::format("{:.2f}", ratio);
}
std::string us_text(double us) {
  return us < 1000 ? fmt::format("{:.2f}", us) : fmt::format("{:.0f}", us);
}
std::string share_text(const std::optional<double>& share) {
  return share ? fmt::format("{:.0f}%", 100 * *share) : kNothing;
}

json ratio_json(const measure::Ratio& ratio) {
  return {ratio.low, ratio.high};
}

json row_json(const Result& result, const Row& row) {
  json j = {{"workload", to_string(result.workload)},
            {"causal", result.workload.is_causal()},
            {"step", row.step.name},
            {"title", row.step.title},
            {"variant", row.variant_id.empty() ? json() : json(row.variant_id)},
            {"config", row.step.variant.empty() ? json() : json(row.step.variant)},
            {"verdict", row.verdict ? json(to_string(*row.verdict)) : json()},
            {"finding", to_string(row.finding)},
            {"reason", row.reason},
            {"predicted", row.step.predicted > 0 ? json(row.step.predicted) : json()},
            {"predicted_against", row.step.before}};
  if (row.measured()) {
    j["mode"] = result.device.kind == DeviceKind::cuda ? "graph_warm" : "warm";
    j["us"] = row.us;
    if (!row.variant_id.empty()) j["heed_us"] = row.us;
    j["tflops"] = row.tflops;
    j["floor_us"] = result.floor.us();
    j["first_ratio"] = row.to_first;
    j["clocks"] = {{"before", record::to_json(row.clocks_before)}, {"after", record::to_json(row.clocks_after)}};
  }
  if (row.to_before) {
    j["before"] = row.before;
    j["before_ratio"] = row.to_before->value;
    j["before_ratio_ci"] = ratio_json(*row.to_before);
  }
  if (row.to_peer) {
    j["best_peer"] = result.best_peer;
    j["ratio"] = row.to_peer->value;
    j["ratio_ci"] = ratio_json(*row.to_peer);
  }
  if (row.max_abs >= 0) j["max_abs_err"] = row.max_abs;
  if (row.rel_rms >= 0) j["rel_rms_err"] = row.rel_rms;
  if (row.resources) {
    j["resources"] = record::to_json(*row.resources);
    j["shared_bytes"] = row.shared_bytes;
    j["blocks"] = row.blocks;
    j["threads"] = row.threads;
  }
  j["tensor_pipe_share"] = row.shares.tensor_pipe ? json(*row.shares.tensor_pipe) : json();
  j["dram_share"] = row.shares.dram ? json(*row.shares.dram) : json();
  return j;
}

}  // namespace

std::string table_text(const Result& result) {
  const bool gpu = result.device.kind == DeviceKind::cuda;
  std::string text = fmt::format("workload  {}\ndevice    {} ({}, {} {}, driver {})\n\n", to_string(result.workload),
                                 result.device.name, result.device.arch, result.device.processors,
                                 gpu ? "multiprocessors" : "processors", result.device.driver);
  report::Table table({"step", "us", "to before", "95% interval", "predicted", "to first", "to SDPA", "registers",
                       "spills", "shared", "max|error|", "tensor", "DRAM"});
  for (const Row& row : result.rows) {
    const bool compiled = row.resources && gpu;
    table.add({row.step.name,
               row.measured() ? us_text(row.us)
               : row.verdict  ? std::string(to_string(*row.verdict))
                              : kNothing,
               row.to_before ? ratio_text(row.to_before->value) : kNothing,
               row.to_before ? fmt::format("[{:.3f}, {:.3f}]", row.to_before->low, row.to_before->high) : kNothing,
               row.comparable() ? ratio_text(row.step.predicted) : kNothing,
               row.measured() ? ratio_text(row.to_first) : kNothing,
               row.to_peer ? fmt::format("{:.3f}", row.to_peer->value) : kNothing,
               compiled ? std::to_string(row.resources->registers) : kNothing,
               compiled ? std::to_string(row.resources->spill_store_bytes + row.resources->spill_load_bytes) : kNothing,
               compiled ? std::to_string(row.shared_bytes) : kNothing,
               row.max_abs >= 0 ? fmt::format("{:.1e}", row.max_abs) : kNothing, share_text(row.shares.tensor_pipe),
               share_text(row.shares.dram)});
  }
  text += table.str();
  text +=
      "\nRatios are time / time: above 1 the step is faster. Registers a thread, spills and shared memory in bytes.\n";
  for (const Row& row : result.rows)
    if (!row.measured())
      text += fmt::format("{}: {}{}\n", row.step.name, row.verdict ? fmt::format("{}: ", to_string(*row.verdict)) : "",
                          split(row.reason, '\n').front().substr(0, 300));
  for (const Row& row : result.rows)
    if (row.measured() && row.to_before && !row.step.before.empty() && row.before != row.step.before)
      text += fmt::format("{} was measured against {}; its prediction speaks of {}\n", row.step.name, row.before,
                          row.step.before);
  if (!result.best_peer.empty()) {
    text += "SDPA: ";
    for (const Peer& peer : result.peers)
      text += fmt::format("{}{} {}", &peer == &result.peers.front() ? "" : ", ", peer.backend,
                          peer.us > 0 ? fmt::format("{:.2f} us", peer.us) : std::string("refuses"));
    text += fmt::format("; best {}; PyTorch {}{}\n", result.best_peer, result.torch,
                        result.cudnn.empty() ? "" : ", cuDNN " + result.cudnn);
  } else {
    text += fmt::format("No comparison with PyTorch: {}\n",
                        result.peers_reason.empty() ? "every backend refuses this workload" : result.peers_reason);
  }
  return text;
}

json evidence(const Result& result) {
  json rows = json::array();
  for (const Row& row : result.rows) rows.push_back(row_json(result, row));
  json peers = json::object();
  json kernels = json::object();
  for (const Peer& peer : result.peers) {
    peers[peer.backend] = peer.us > 0 ? json(peer.us) : json(nullptr);
    kernels[peer.backend] = peer.refused.empty() ? json(peer.kernels) : json(peer.refused);
  }
  for (json& row : rows)
    if (row.contains("us")) row["peers_us"] = peers;
  json programs = json::object();
  double clock_before = 0;
  double clock_after = 0;
  for (const Row& row : result.rows) {
    if (!row.machine_code.empty()) programs[row.variant_id] = row.machine_code;
    if (row.measured()) {
      if (clock_before == 0) clock_before = row.clocks_before.clock_mhz;
      clock_after = row.clocks_after.clock_mhz;
    }
  }
  return {{"schema", 1},
          {"what", "ladder"},
          {"device", result.device.name},
          {"arch", result.device.arch},
          {"driver", result.device.driver},
          {"clocks_mhz", {{"before", clock_before}, {"after", clock_after}}},
          {"heed", kVersion},
          {"source_digest", compile::source_digest()},
          {"referee", kReferee},
          {"date", result.date},
          {"peer", {{"torch", result.torch}, {"cudnn", result.cudnn}, {"reason", result.peers_reason}}},
          {"peer_kernels", kernels},
          {"floor", record::to_json(result.floor)},
          {"passed", result.passed()},
          {"elapsed_s", result.elapsed_s},
          {"programs", programs},
          {"rows", rows},
          {"table", table_text(result)}};
}

}  // namespace heed::ladder
