#include "worker/protocol.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "json/integer.hpp"
#include "json/text.hpp"
#include "kernels/attention/mask.hpp"
#include "process/interrupt.hpp"
#include "variant/params_fields.hpp"

namespace heed::worker {
namespace {

using Clock = std::chrono::steady_clock;

bool send_all(int socket, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::write(socket, at, bytes);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

Clock::time_point deadline_in(double limit_s) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(0.0, limit_s)));
}

// Received::frame: there is something to read, were it the end of the other side.
Received wait_for_bytes(int socket, Clock::time_point deadline, bool has_deadline, bool interruptible) {
  for (;;) {
    int wait_ms = 200;  // short, so that an interrupt is seen
    if (has_deadline) {
      const double left = std::chrono::duration<double, std::milli>(deadline - Clock::now()).count();
      if (left <= 0) return Received::timed_out;
      wait_ms = static_cast<int>(std::min(left, 200.0)) + 1;
    }
    if (interruptible && interrupted()) return Received::interrupted;
    pollfd fd{socket, POLLIN, 0};
    const int ready = ::poll(&fd, 1, wait_ms);
    if (ready < 0 && errno != EINTR) return Received::closed;
    if (ready > 0) return Received::frame;
  }
}

Received receive_all(int socket, void* data, std::size_t bytes, Clock::time_point deadline, bool has_deadline,
                     bool interruptible) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    if (const Received r = wait_for_bytes(socket, deadline, has_deadline, interruptible); r != Received::frame)
      return r;
    const ssize_t got = ::read(socket, at, bytes);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return Received::closed;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return Received::frame;
}

void* pointer(std::uintptr_t base, std::uint64_t offset) {
  return offset == kNull ? nullptr : reinterpret_cast<void*>(base + offset);
}

nlohmann::json strides_to_json(const TensorStrides& s) {
  return {s.batch, s.head, s.row};
}
TensorStrides strides_from_json(const nlohmann::json& json) {
  return {integer<long long>(json.at(0)), integer<long long>(json.at(1)), integer<long long>(json.at(2))};
}

std::array<std::uint32_t, 3> grid_from_json(const nlohmann::json& json) {
  return {integer<std::uint32_t>(json.at(0)), integer<std::uint32_t>(json.at(1)), integer<std::uint32_t>(json.at(2))};
}

nlohmann::json scales_to_json(const TensorScales& s) {
  return {s.strides.batch, s.strides.head, s.strides.row, s.rows, s.channel, s.first_row};
}
TensorScales scales_from_json(const nlohmann::json& json) {
  return {.at = nullptr,
          .strides = strides_from_json(json),
          .rows = integer<int>(json.at(3)),
          .channel = integer<int>(json.at(4)),
          .first_row = integer<int>(json.at(5)),
          .reserved = 0};
}

void features_from_json(const nlohmann::json& json, Launch& launch) {
  const auto& at = json.at("at");
  std::size_t index = 0;
  for (std::uint64_t Launch::*place : kFeatureAddresses) launch.*place = integer<std::uint64_t>(at.at(index++));
  FeatureParams& s = launch.shape;
  index = 0;
  for (long long* stride : {&s.bias_batch, &s.bias_head, &s.bias_row, &s.bias_key})
    *stride = integer<long long>(json.at("bias").at(index++));
  index = 0;
  for (long long* stride : {&s.alibi_batch, &s.page_table_batch, &s.lse_batch, &s.lse_head})
    *stride = integer<long long>(json.at("strides").at(index++));
  index = 0;
  for (int* number : {&s.page_size, &s.pages, &s.bias_element, &s.aligned_to_the_end, &s.block_most, &s.block_rows,
                      &s.block_keys, &s.total_q, &s.total_k})
    *number = integer<int>(json.at("numbers").at(index++));
  s.softcap = json.at("softcap").get<float>();
  const nlohmann::json& dropout = json.at("dropout");
  s.dropout_seed = integer<unsigned long long>(dropout.at(0));
  s.dropout_offset = integer<unsigned long long>(dropout.at(1));
  s.dropout_threshold = integer<unsigned>(dropout.at(2));
  s.dropout_scale = dropout.at(3).get<float>();
  s.dropout_first_entry = integer<int>(dropout.at(4));
  RelativeBuckets& buckets = s.relative_buckets;
  index = 0;
  for (int* number : {&buckets.all, &buckets.side, &buckets.exact, &buckets.far})
    *number = integer<int>(json.at("relative").at(index++));
  for (float* number : {&buckets.rate, &buckets.shift}) *number = json.at("relative").at(index++).get<float>();
  s.q_scales = scales_from_json(json.at("scales").at(0));
  s.k_scales = scales_from_json(json.at("scales").at(1));
  s.v_scales = scales_from_json(json.at("scales").at(2));
  const nlohmann::json& output = json.at("output");
  s.out_gate_strides = strides_from_json(output);
  s.out_gate_column = integer<long long>(output.at(3));
  s.out_norm_head = integer<long long>(output.at(4));
  s.out_norm_eps = output.at(5).get<float>();
  s.out_columns = integer<int>(output.at(6));
  s.block_count_strides = strides_from_json(json.at("block_counts"));
  s.block_index_strides = strides_from_json(json.at("block_indices"));
}

}  // namespace

void Launch::take(const LaunchPlan& plan) {
  grid = plan.grid;
  k_box_rows = plan.tensor_maps ? plan.tensor_maps->k_rows : 0;
  v_box_rows = plan.tensor_maps ? plan.tensor_maps->v_rows : 0;
}

TensorMapSpec Launch::with_boxes(TensorMapSpec maps) const {
  maps.k_rows = k_box_rows;
  maps.v_rows = v_box_rows;
  return maps;
}

FeatureParams resolve(const Launch& launch, std::uintptr_t base) {
  FeatureParams params = launch.shape;
  params.q = pointer(base, launch.q);
  params.k = pointer(base, launch.k);
  params.v = pointer(base, launch.v);
  params.o = pointer(base, launch.o);
  params.lse = static_cast<float*>(pointer(base, launch.lse));
  params.workspace = pointer(base, launch.workspace);
  params.semaphores = static_cast<unsigned*>(pointer(base, launch.semaphores));
  params.bias = pointer(base, launch.bias);
  params.alibi_slopes = static_cast<const float*>(pointer(base, launch.alibi_slopes));
  params.sinks = static_cast<const float*>(pointer(base, launch.sinks));
  params.cu_seqlens_q = static_cast<const int*>(pointer(base, launch.cu_seqlens_q));
  params.cu_seqlens_k = static_cast<const int*>(pointer(base, launch.cu_seqlens_k));
  params.seqused_k = static_cast<const int*>(pointer(base, launch.seqused_k));
  params.page_table = static_cast<const int*>(pointer(base, launch.page_table));
  params.block_counts = static_cast<const int*>(pointer(base, launch.block_counts));
  params.block_indices = static_cast<const int*>(pointer(base, launch.block_indices));
  params.prefix_lengths = static_cast<const int*>(pointer(base, launch.prefix_lengths));
  params.relative_bias = static_cast<const float*>(pointer(base, launch.relative_bias));
  params.q_scales.at = static_cast<const float*>(pointer(base, launch.q_scales));
  params.k_scales.at = static_cast<const float*>(pointer(base, launch.k_scales));
  params.v_scales.at = static_cast<const float*>(pointer(base, launch.v_scales));
  params.out_gate = pointer(base, launch.out_gate);
  params.out_norm_weight = static_cast<const float*>(pointer(base, launch.out_norm_weight));
  return trimmed(params, launch.mask, {bytes_of(launch.k_element), bytes_of(launch.v_element)});
}

void to_json(nlohmann::json& json, const Launch& launch) {
  const FeatureParams& s = launch.shape;
  json = {{"at", {launch.q, launch.k, launch.v, launch.o, launch.lse, launch.workspace, launch.semaphores}},
          {"scale", s.scale},
          {"mask", to_string(launch.mask)},
          {"elements", {to_string(launch.k_element), to_string(launch.v_element)}},
          {"grid", launch.grid},
          {"box_rows", {launch.k_box_rows, launch.v_box_rows}}};
  for (const auto& field : kStridesFields) json[std::string(field.name)] = strides_to_json(s.*field.member);
  nlohmann::json addresses = nlohmann::json::array();
  for (std::uint64_t Launch::*place : kFeatureAddresses) addresses.push_back(launch.*place);
  json["features"] = {
      {"at", addresses},
      {"bias", {s.bias_batch, s.bias_head, s.bias_row, s.bias_key}},
      {"strides", {s.alibi_batch, s.page_table_batch, s.lse_batch, s.lse_head}},
      {"numbers",
       {s.page_size, s.pages, s.bias_element, s.aligned_to_the_end, s.block_most, s.block_rows, s.block_keys, s.total_q,
        s.total_k}},
      {"scales", {scales_to_json(s.q_scales), scales_to_json(s.k_scales), scales_to_json(s.v_scales)}},
      {"block_counts", strides_to_json(s.block_count_strides)},
      {"block_indices", strides_to_json(s.block_index_strides)},
      {"softcap", s.softcap},
      {"output",
       {s.out_gate_strides.batch, s.out_gate_strides.head, s.out_gate_strides.row, s.out_gate_column, s.out_norm_head,
        s.out_norm_eps, s.out_columns}},
      {"dropout", {s.dropout_seed, s.dropout_offset, s.dropout_threshold, s.dropout_scale, s.dropout_first_entry}},
      {"relative",
       {s.relative_buckets.all, s.relative_buckets.side, s.relative_buckets.exact, s.relative_buckets.far,
        s.relative_buckets.rate, s.relative_buckets.shift}}};
  for (const auto& field : kIntFields) json[std::string(field.name)] = s.*field.member;
}

void from_json(const nlohmann::json& json, Launch& launch) {
  const auto& at = json.at("at");
  launch.q = integer<std::uint64_t>(at.at(0));
  launch.k = integer<std::uint64_t>(at.at(1));
  launch.v = integer<std::uint64_t>(at.at(2));
  launch.o = integer<std::uint64_t>(at.at(3));
  launch.lse = integer<std::uint64_t>(at.at(4));
  launch.workspace = integer<std::uint64_t>(at.at(5));
  launch.semaphores = integer<std::uint64_t>(at.at(6));
  FeatureParams& s = launch.shape;
  for (const auto& field : kStridesFields) s.*field.member = strides_from_json(json.at(std::string(field.name)));
  for (const auto& field : kIntFields) s.*field.member = integer<int>(json.at(std::string(field.name)));
  s.scale = json.at("scale").get<float>();
  features_from_json(json.at("features"), launch);
  launch.mask = parse_mask_kind(json.at("mask").get<std::string>());
  launch.k_element = find_element(json.at("elements").at(0).get<std::string>()).element;
  launch.v_element = find_element(json.at("elements").at(1).get<std::string>()).element;
  launch.grid = grid_from_json(json.at("grid"));
  launch.k_box_rows = integer<int>(json.at("box_rows").at(0));
  launch.v_box_rows = integer<int>(json.at("box_rows").at(1));
}

namespace {

nlohmann::json inputs_to_json(const Inputs& inputs) {
  if (!inputs.quantised) return nullptr;
  return {to_string(inputs.q), to_string(inputs.k), to_string(inputs.v)};
}

Inputs inputs_from_json(const nlohmann::json& json) {
  if (json.is_null()) return {};
  const auto element = [&](std::size_t i) { return find_element(json.at(i).get<std::string>()).element; };
  return {.quantised = true, .q = element(0), .k = element(1), .v = element(2)};
}

}  // namespace

nlohmann::json plan_to_json(const LaunchPlan& plan) {
  nlohmann::json tensor_maps;
  if (const auto& b = plan.tensor_maps)
    tensor_maps = {{"element", to_string(b->problem.element)},
                   {"inputs", inputs_to_json(b->problem.inputs)},
                   {"head_dim", b->problem.head_dim},
                   {"mask", to_string(b->problem.mask)},
                   {"columns", b->columns},
                   {"q_rows", b->q_rows},
                   {"k_rows", b->k_rows},
                   {"v_rows", b->v_rows},
                   {"o_rows", b->o_rows},
                   {"o_columns", b->o_columns},
                   {"l2_bytes", b->l2_bytes}};
  return {{"entry", plan.entry},
          {"grid", plan.grid},
          {"threads", plan.threads},
          {"cluster", plan.cluster},
          {"shared_bytes", plan.shared_bytes},
          {"workspace_bytes", plan.workspace_bytes},
          {"semaphores", plan.semaphores},
          {"tensor_maps", tensor_maps},
          {"supports_pdl", plan.supports_pdl},
          {"o_strides", plan.o_strides ? strides_to_json(*plan.o_strides) : nlohmann::json()}};
}

LaunchPlan plan_from_json(const nlohmann::json& json) {
  LaunchPlan plan;
  plan.entry = json.at("entry").get<std::string>();
  plan.grid = grid_from_json(json.at("grid"));
  plan.threads = integer<std::uint32_t>(json.at("threads"));
  plan.cluster = integer<std::uint32_t>(json.at("cluster"));
  plan.shared_bytes = integer<std::int64_t>(json.at("shared_bytes"));
  plan.workspace_bytes = integer<std::int64_t>(json.at("workspace_bytes"));
  plan.semaphores = integer<int>(json.at("semaphores"));
  if (const auto& b = json.at("tensor_maps"); !b.is_null())
    plan.tensor_maps = TensorMapSpec{.problem = {.element = find_element(b.at("element").get<std::string>()).element,
                                                 .head_dim = integer<int>(b.at("head_dim")),
                                                 .mask = parse_mask_kind(b.at("mask").get<std::string>()),
                                                 .inputs = inputs_from_json(b.at("inputs"))},
                                     .columns = integer<int>(b.at("columns")),
                                     .q_rows = integer<int>(b.at("q_rows")),
                                     .k_rows = integer<int>(b.at("k_rows")),
                                     .v_rows = integer<int>(b.at("v_rows")),
                                     .o_rows = integer<int>(b.at("o_rows")),
                                     .o_columns = integer<int>(b.at("o_columns")),
                                     .l2_bytes = integer<int>(b.at("l2_bytes"))};
  plan.supports_pdl = json.at("supports_pdl").get<bool>();
  if (const auto& strides = json.at("o_strides"); !strides.is_null()) plan.o_strides = strides_from_json(strides);
  return plan;
}

void to_json(nlohmann::json& json, const Range& range) {
  json = {range.offset, range.bytes};
}

void from_json(const nlohmann::json& json, Range& range) {
  range.offset = integer<std::uint64_t>(json.at(0));
  range.bytes = integer<std::uint64_t>(json.at(1));
}

void to_json(nlohmann::json& json, const ChannelRange& range) {
  json = {range.offset, range.elements, range.dim, range.dtype};
}

void from_json(const nlohmann::json& json, ChannelRange& range) {
  range.offset = integer<std::uint64_t>(json.at(0));
  range.elements = integer<std::uint64_t>(json.at(1));
  range.dim = integer<int>(json.at(2));
  range.dtype = static_cast<Dtype>(integer<std::underlying_type_t<Dtype>>(json.at(3)));
}

void to_json(nlohmann::json& json, const KeyChanges& changes) {
  json = {{"loud", changes.loud}, {"loudness", changes.loudness}, {"pauses", changes.pauses}, {"turn", changes.turn}};
}

void from_json(const nlohmann::json& json, KeyChanges& changes) {
  json.at("loud").get_to(changes.loud);
  json.at("loudness").get_to(changes.loudness);
  json.at("pauses").get_to(changes.pauses);
  json.at("turn").get_to(changes.turn);
}

nlohmann::json choices_to_json(const std::vector<MetricChoice>& choices) {
  nlohmann::json json = nlohmann::json::array();
  for (const MetricChoice& choice : choices) json.push_back({{"key", choice.key}, {"names", choice.names}});
  return json;
}

std::vector<MetricChoice> choices_from_json(const nlohmann::json& json) {
  std::vector<MetricChoice> choices;
  for (const auto& one : json)
    choices.push_back({one.at("key").get<std::string>(), one.at("names").get<std::vector<std::string>>()});
  return choices;
}

nlohmann::json reading_to_json(const CounterReading& reading) {
  return {{"chip", reading.schedule.chip},
          {"metrics", reading.schedule.metrics},
          {"missing", reading.schedule.missing},
          {"passes", reading.schedule.passes},
          {"values", reading.values}};
}

CounterReading reading_from_json(const nlohmann::json& json) {
  CounterReading reading;
  reading.schedule.chip = json.at("chip").get<std::string>();
  reading.schedule.metrics = json.at("metrics").get<std::map<std::string, std::string>>();
  reading.schedule.missing = json.at("missing").get<std::vector<std::string>>();
  reading.schedule.passes = integer<std::size_t>(json.at("passes"));
  reading.values = json.at("values").get<std::map<std::string, double>>();
  return reading;
}

bool send_frame(int socket, const nlohmann::json& message) {
  const std::string text = message.dump();
  const std::uint32_t header[2] = {kMagic, static_cast<std::uint32_t>(text.size())};
  return send_all(socket, header, sizeof header) && send_all(socket, text.data(), text.size());
}

Received wait_for_frame(int socket, double limit_s, bool interruptible) {
  return wait_for_bytes(socket, deadline_in(limit_s), limit_s >= 0, interruptible);
}

Received receive_frame(int socket, double limit_s, bool interruptible, nlohmann::json& message) {
  const auto deadline = deadline_in(limit_s);
  const bool has_deadline = limit_s >= 0;
  std::uint32_t header[2] = {};
  if (const Received r = receive_all(socket, header, sizeof header, deadline, has_deadline, interruptible);
      r != Received::frame)
    return r;
  if (header[0] != kMagic || header[1] > kMostFrameBytes) return Received::garbage;
  std::string text(header[1], '\0');
  if (const Received r = receive_all(socket, text.data(), text.size(), deadline, has_deadline, interruptible);
      r != Received::frame)
    return r;
  message = parse_json(text);
  return message.is_object() ? Received::frame : Received::garbage;
}

}  // namespace heed::worker
