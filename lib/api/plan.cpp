#include "api/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

#include "api/listed_plan.hpp"
#include "api/precision.hpp"
#include "api/problem_scales.hpp"
#include "base/parallel.hpp"
#include "device/cpu_level.hpp"
#include "device/device.hpp"
#include "variant/element.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"
#include "workload/relative_bias.hpp"

namespace heed::api {
namespace {

constexpr std::size_t kLeastSemaphoreBytes = 16384;  // 4096 counters: those of most plans

[[noreturn]] void refuse(const std::string& text, std::string value = {}) {
  throw Error(ErrorCode::usage, text, std::move(value));
}

TensorBytes bytes_of_tensors(const Workload& w) {
  const auto bytes = [](Dtype dtype) { return static_cast<int>(size_of(dtype)); };
  return {bytes(w.dtype_q()), bytes(w.dtype_k()), bytes(w.dtype_v()), bytes(w.dtype)};
}

}  // namespace

DeviceFacts facts_of_device(const Problem& problem) {
  if (problem.device == DeviceKind::cpu) {
    const char* const level = std::getenv("HEED_CPU_LEVEL");
    // Read once: files of /proc and of control groups take a tenth of a millisecond, and plans for a decoder's cache
    // follow each other. The processors that a thread may run on can change.
    static const DeviceFacts known = cpu_facts();
    DeviceFacts facts = known;
    facts.processors = available_processors();
    return at_most_level(facts, level == nullptr ? "" : level);
  }
  // Asked for once a device: attributes take tens of microseconds.
  static std::mutex mutex;
  static std::map<int, DeviceFacts> known;
  const std::lock_guard lock(mutex);
  const auto at = known.find(problem.ordinal);
  if (at != known.end()) return at->second;
  CudaProbe probe = probe_cuda(problem.ordinal);
  if (!probe.facts)
    throw Error(ErrorCode::no_device, fmt::format("no GPU can be used: {}", probe.reason),
                std::to_string(problem.ordinal));
  return known[problem.ordinal] = *probe.facts;
}

double flops_of(const Problem& problem) {
  if (problem.is_empty || !problem.has_keys) return 0;
  Workload longest = problem.workload;
  longest.key_lengths = longest.ragged = false;
  longest.blocks.reset();
  longest.prefix = 0;
  return longest.flops();
}

Plan::Plan(const Problem& problem, Choice choice, LaunchPlan launch)
    : problem_(problem),
      choice_(std::move(choice)),
      launch_(std::move(launch)),
      mask_(mask_kind(problem_.workload)),
      bytes_(bytes_of_tensors(problem_.workload)),
      tensor_alignment_(problem_.device == DeviceKind::cuda ? kGpuAlignment : 1) {
  const Workload& w = problem_.workload;
  if (choice_.variant.family != nullptr) variant_text_ = describe(choice_.variant);
  const auto differs = [](std::int64_t count, long long a, long long b) { return count > 1 && a != b; };
  if (const auto& own = launch_.o_strides;
      own && (differs(w.batch, own->batch, problem_.o.batch) || differs(w.heads, own->head, problem_.o.head) ||
              differs(w.len_q, own->row, problem_.o.row)))
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} writes outputs of strides ({}, {}, {}) alone, not ({}, {}, {}); give such an output, or "
                    "take the variant with o_layout=strided",
                    variant_text_, launch_.o_strides->batch, launch_.o_strides->head, launch_.o_strides->row,
                    problem_.o.batch, problem_.o.head, problem_.o.row),
        variant_text_);
  // Powers of two, so that plans whose semaphores take nearly as much may share a workspace.
  if (launch_.semaphores > 0)
    semaphore_bytes_ =
        std::bit_ceil(std::max(static_cast<std::size_t>(launch_.semaphores) * sizeof(unsigned), kLeastSemaphoreBytes));
  workspace_bytes_ = semaphore_bytes_ + workspace_part(static_cast<std::size_t>(launch_.workspace_bytes));
  params_.q_strides = problem_.q;
  params_.k_strides = problem_.k;
  params_.v_strides = problem_.v;
  params_.o_strides = problem_.o;
  static_cast<ForwardParams&>(params_) = with_sizes(params_, whole_sizes_of(w));
  params_.o_strides = problem_.o;
  params_.scale = static_cast<float>(w.softmax_scale());
  params_.softcap = static_cast<float>(w.softcap);
  if (w.relative) params_.relative_buckets = buckets_of(*w.relative);
  params_.dropout_threshold = dropout_threshold(w.dropout);
  params_.dropout_scale = dropout_scale(w.dropout);
  params_.bias_batch = problem_.bias.batch;
  params_.bias_head = problem_.bias.head;
  params_.bias_row = problem_.bias.row;
  params_.bias_key = problem_.bias.step;
  if (w.bias) params_.bias_element = static_cast<int>(element_of(w.bias->dtype));
  params_.alibi_batch = problem_.alibi_by_batch ? w.heads : 0;
  params_.lse_head = problem_.o_sizes().rows;
  params_.lse_batch = w.heads * params_.lse_head;
  params_.total_q = static_cast<int>(problem_.total_q);
  params_.total_k = static_cast<int>(problem_.total_k);
  params_.page_size = static_cast<int>(w.page_size);
  params_.pages = static_cast<int>(problem_.pages);
  params_.page_table_batch = problem_.table_stride;
  if (w.blocks) {
    params_.block_rows = static_cast<int>(w.blocks->rows);
    params_.block_keys = static_cast<int>(w.blocks->keys);
    params_.block_most = static_cast<int>(problem_.block_most);
    params_.block_count_strides = problem_.block_counts;
    params_.block_index_strides = problem_.block_indices;
  }
  params_.q_scales = problem_.q_scales;
  params_.k_scales = problem_.k_scales;
  params_.v_scales = problem_.v_scales;
  params_.out_gate_strides = problem_.out_gate;
  params_.out_gate_column = problem_.out_gate.step;
  if (w.out_norm) {
    params_.out_norm_head = w.out_norm->by_head ? problem_.out_columns : 0;
    params_.out_norm_eps = static_cast<float>(w.out_norm->eps);
  }
  params_.out_columns = static_cast<int>(problem_.out_columns);
  params_.aligned_to_the_end = is_aligned_to_the_end(w.mask) ? 1 : 0;
  extents_ = extents();
}

std::array<Plan::Extent, Plan::kTensors> Plan::extents() const {
  const Workload& w = problem_.workload;
  const bool has_keys = problem_.has_keys;
  const auto of_elements = [&](const TensorSizes& sizes, const TensorLayout& layout, int element, bool is_needed) {
    const auto bytes = static_cast<std::size_t>(element);
    return Extent{extent_bytes(sizes, layout, bytes), bytes, is_needed};
  };
  const auto of_scales = [&](const std::optional<QuantisedTensor> Quantised::*tensor, const TensorScales& scales,
                             bool are_queries) {
    const bool has = w.quantised && (*w.quantised.*tensor);
    return has ? Extent{static_cast<std::uint64_t>(scale_extent(problem_, scales, are_queries)) * 4, 4, has_keys}
               : Extent{};
  };
  const auto of_numbers = [](bool has, std::int64_t count, bool is_needed) {
    return has ? Extent{static_cast<std::uint64_t>(count) * 4, 4, is_needed} : Extent{};
  };
  const auto of_lists = [&](const TensorSizes& sizes, const TensorLayout& layout) {
    return w.blocks ? Extent{extent_bytes(sizes, layout, 4), 4, has_keys} : Extent{};
  };
  const TensorSizes o = problem_.o_sizes();
  TensorSizes gates = o;
  gates.dim = problem_.out_columns;
  const std::size_t bias_bytes = w.bias ? size_of(w.bias->dtype) : 1;
  return {
      of_elements(problem_.q_sizes(), problem_.q, bytes_.q, has_keys),
      of_elements(problem_.k_sizes(), problem_.k, bytes_.k, has_keys),
      of_elements(problem_.v_sizes(), problem_.v, bytes_.v, has_keys),
      of_elements(o, problem_.o, bytes_.o, true),
      of_numbers(problem_.wants_lse, o.batch * o.heads * o.rows, true),
      w.bias ? Extent{extent_bytes(problem_.bias_sizes(), problem_.bias, bias_bytes), bias_bytes, has_keys} : Extent{},
      of_numbers(w.sinks, w.heads, has_keys || problem_.wants_lse),
      of_numbers(w.alibi, (problem_.alibi_by_batch ? w.batch : 1) * w.heads, has_keys),
      of_numbers(w.ragged, w.batch + 1, has_keys),
      of_numbers(problem_.has_ragged_keys(), w.batch + 1, has_keys),
      of_numbers(w.key_lengths, w.batch, has_keys),
      of_numbers(w.page_size > 0, (w.batch - 1) * problem_.table_stride + problem_.pages_of_entry(), has_keys),
      of_lists(problem_.block_count_sizes(), problem_.block_counts),
      of_lists(problem_.block_index_sizes(), problem_.block_indices),
      of_numbers(w.prefix > 0, w.batch, has_keys),
      of_numbers(w.relative.has_value(), w.relative ? w.heads * w.relative->buckets : 0, has_keys),
      of_scales(&Quantised::q, problem_.q_scales, true),
      of_scales(&Quantised::k, problem_.k_scales, false),
      of_scales(&Quantised::v, problem_.v_scales, false),
      w.out_gate == OutGate::none ? Extent{} : of_elements(gates, problem_.out_gate, bytes_.o, has_keys),
      of_numbers(w.out_norm.has_value(), (w.out_norm && w.out_norm->by_head ? w.heads : 1) * problem_.out_columns,
                 has_keys),
  };
}

Addresses Plan::checked(const heed_tensors& t, const void* workspace) const {
  if (t.struct_size != sizeof(heed_tensors))
    refuse(fmt::format("heed_tensors has {} bytes; this library reads {}: set it with heed_tensors_init", t.struct_size,
                       sizeof(heed_tensors)),
           std::to_string(t.struct_size));
  struct Given {
    const char* name;
    const void* address;
    const char* flag;  // of problems that have such a tensor; null: all may
  };
  const std::array<Given, kTensors> all = {{{"Q", t.q, nullptr},
                                            {"K", t.k, nullptr},
                                            {"V", t.v, nullptr},
                                            {"O", t.o, nullptr},
                                            {"lse", t.lse, nullptr},
                                            {"bias", t.bias, "HEED_HAS_BIAS"},
                                            {"sinks", t.sinks, "HEED_HAS_SINKS"},
                                            {"alibi_slopes", t.alibi_slopes, "HEED_HAS_ALIBI"},
                                            {"cu_seqlens_q", t.cu_seqlens_q, "HEED_RAGGED"},
                                            {"cu_seqlens_k", t.cu_seqlens_k, "HEED_RAGGED, without HEED_PAGED"},
                                            {"seqused_k", t.seqused_k, "HEED_KEY_LENGTHS"},
                                            {"page_table", t.page_table, "HEED_PAGED"},
                                            {"block_counts", t.block_counts, "HEED_HAS_BLOCKS"},
                                            {"block_indices", t.block_indices, "HEED_HAS_BLOCKS"},
                                            {"prefix_lengths", t.prefix_lengths, "HEED_HAS_PREFIX"},
                                            {"relative_bias", t.relative_bias, "HEED_HAS_RELATIVE_BIAS"},
                                            {"q_scale", t.q_scale, "HEED_SCALED and a Q of 8 bits"},
                                            {"k_scale", t.k_scale, "HEED_SCALED and a K of 8 bits"},
                                            {"v_scale", t.v_scale, "HEED_SCALED and a V of 8 bits"},
                                            {"out_gate", t.out_gate, "HEED_HAS_OUT_GATE"},
                                            {"out_norm_weight", t.out_norm_weight, "HEED_HAS_OUT_NORM"}}};
  constexpr std::size_t kO = 3, kLse = 4;
  for (std::size_t i = 0; i < kTensors; ++i) {
    const Given& tensor = all[i];
    const Extent& extent = extents_[i];
    if (extent.bytes == 0 && tensor.flag != nullptr && tensor.address != nullptr)
      refuse(fmt::format("{} is given, which is of problems with {}; leave it null", tensor.name, tensor.flag),
             tensor.name);
    if (!extent.is_needed) continue;
    if (tensor.address == nullptr) refuse(fmt::format("the address of {} is null", tensor.name), tensor.name);
    const std::uintptr_t needed = i <= kO ? std::max(tensor_alignment_, extent.element) : extent.element;
    if (reinterpret_cast<std::uintptr_t>(tensor.address) % needed != 0)
      refuse(
          fmt::format("{} lies at {}; its address must be a multiple of {} bytes", tensor.name, tensor.address, needed),
          fmt::format("{}", tensor.address));
  }
  const auto overlap = [&](std::size_t a, std::size_t b) {
    const auto x = reinterpret_cast<std::uintptr_t>(all[a].address);
    const auto y = reinterpret_cast<std::uintptr_t>(all[b].address);
    return extents_[a].is_needed && extents_[b].is_needed && x < y + extents_[b].bytes && y < x + extents_[a].bytes;
  };
  for (std::size_t i = 0; i < kTensors; ++i)
    for (const std::size_t written : {kO, kLse})
      if (i != written && overlap(i, written))
        refuse(fmt::format("{} overlaps {}; outputs must lie apart from every other tensor", all[written].name,
                           all[i].name),
               all[written].name);
  const auto own = reinterpret_cast<std::uintptr_t>(workspace);
  for (std::size_t i = 0; i < kTensors && workspace_bytes_ > 0; ++i)
    if (const auto x = reinterpret_cast<std::uintptr_t>(all[i].address);
        extents_[i].is_needed && x < own + workspace_bytes_ && own < x + extents_[i].bytes)
      refuse(fmt::format("the workspace overlaps {}; it must lie apart from every tensor", all[i].name), all[i].name);
  if (problem_.workload.dropout == 0 && (t.dropout_seed != 0 || t.dropout_offset != 0 || t.dropout_first_entry != 0))
    refuse("a seed, an offset or a first entry of dropout is given, and the problem has none; leave them 0",
           std::to_string(t.dropout_seed));
  if (t.dropout_first_entry < 0 || t.dropout_first_entry > kMostSize - problem_.workload.batch)
    refuse(fmt::format("dropout_first_entry is {}; with it and {} entries it must be 0 to 2^31 - 1",
                       t.dropout_first_entry, problem_.workload.batch),
           std::to_string(t.dropout_first_entry));
  std::uint64_t reserved =
      static_cast<std::uint64_t>(t.reserved_flags) | static_cast<std::uint32_t>(t.reserved_dropout);
  for (const std::uint64_t field : t.reserved) reserved |= field;
  if (reserved != 0) refuse("reserved fields of heed_tensors must be 0", std::to_string(reserved));
  return {.q = t.q,
          .k = t.k,
          .v = t.v,
          .o = t.o,
          .lse = problem_.wants_lse ? t.lse : nullptr,
          .bias = t.bias,
          .sinks = t.sinks,
          .alibi_slopes = t.alibi_slopes,
          .cu_seqlens_q = t.cu_seqlens_q,
          .cu_seqlens_k = t.cu_seqlens_k,
          .seqused_k = t.seqused_k,
          .page_table = t.page_table,
          .block_counts = t.block_counts,
          .block_indices = t.block_indices,
          .prefix_lengths = t.prefix_lengths,
          .relative_bias = t.relative_bias,
          .q_scale = t.q_scale,
          .k_scale = t.k_scale,
          .v_scale = t.v_scale,
          .out_gate = t.out_gate,
          .out_norm_weight = t.out_norm_weight,
          .dropout_seed = t.dropout_seed,
          .dropout_offset = t.dropout_offset,
          .dropout_first_entry = t.dropout_first_entry};
}

void Plan::require_workspace(const void* workspace) const {
  if (workspace_bytes_ == 0) return;
  if (workspace == nullptr)
    refuse(fmt::format("the workspace is null; this plan takes {} bytes", workspace_bytes_), "null");
  if (reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment != 0)
    refuse(fmt::format("the workspace lies at {}; its address must be a multiple of {} bytes", workspace,
                       kWorkspaceAlignment),
           fmt::format("{}", workspace));
}

FeatureParams Plan::bound(const Addresses& at, void* workspace) const {
  FeatureParams p = params_;
  p.q = at.q;
  p.k = at.k;
  p.v = at.v;
  p.o = at.o;
  p.lse = at.lse;
  p.bias = at.bias;
  p.sinks = at.sinks;
  p.alibi_slopes = at.alibi_slopes;
  p.cu_seqlens_q = at.cu_seqlens_q;
  p.cu_seqlens_k = at.cu_seqlens_k;
  p.seqused_k = at.seqused_k;
  p.page_table = at.page_table;
  p.block_counts = at.block_counts;
  p.block_indices = at.block_indices;
  p.prefix_lengths = at.prefix_lengths;
  p.relative_bias = at.relative_bias;
  p.q_scales.at = at.q_scale;
  p.k_scales.at = at.k_scale;
  p.v_scales.at = at.v_scale;
  p.out_gate = at.out_gate;
  p.out_norm_weight = at.out_norm_weight;
  p.dropout_seed = at.dropout_seed;
  p.dropout_offset = at.dropout_offset;
  p.dropout_first_entry = at.dropout_first_entry;
  p.semaphores = launch_.semaphores > 0 ? static_cast<unsigned*>(workspace) : nullptr;
  p.workspace = launch_.workspace_bytes > 0 ? static_cast<char*>(workspace) + semaphore_bytes_ : nullptr;
  return trimmed(p, mask_, {bytes_.k, bytes_.v});
}

void Plan::info(heed_plan_info& info) const {
  info.can_be_dependent = launch_.supports_pdl ? 1 : 0;
  info.workspace_bytes = workspace_bytes_;
  info.workspace_alignment = kWorkspaceAlignment;
  info.workspace_zeroed = semaphore_bytes_;
  info.family = choice_.variant.family == nullptr ? "" : choice_.variant.family->name().data();
  info.variant = variant_text_.c_str();
  info.origin = choice_.origin.c_str();
  info.reason = choice_.reason.c_str();
  info.flops = flops_of(problem_);
  info.is_building = choice_.is_building ? 1 : 0;
  info.precision = "";
  info.o_strides = {};
  if (launch_.o_strides)
    info.o_strides = {launch_.o_strides->batch, launch_.o_strides->head, launch_.o_strides->row, 1};
}

std::unique_ptr<Plan> make_plan(const Problem& problem, const Options& options) {
  if (!options.precision.empty()) return make_precision_plan(problem, options);
  const DeviceFacts device = facts_of_device(problem);
  if (auto listed = decide_listed(problem, options, device))
    return make_listed_plan(problem, std::move(*listed), options);
  Decision decision = decide(problem, options, device);
  const auto divided = [&](std::int64_t count, std::int64_t step, const auto& part) {
    const std::int64_t left = count % step;
    return make_divided_plan(problem, decision.choice.reason, make_plan(part(problem, step), options),
                             left == 0 ? nullptr : make_plan(part(problem, left), options));
  };
  if (decision.batch > 0) return divided(problem.workload.batch, decision.batch, of_batch);
  if (decision.heads > 0) return divided(problem.workload.heads, decision.heads, of_heads);
  const bool cpu = problem.device == DeviceKind::cpu;
  const auto plan = [&] {
    return cpu ? make_cpu_plan(decision.problem, options, std::move(decision.choice), device)
               : make_gpu_plan(decision.problem, options, std::move(decision.choice), device);
  };
  if (!decision.is_copied) return plan();
  std::unique_ptr<Copies> copies = cpu ? make_cpu_copies() : make_gpu_copies(problem, choose_copies(options, device));
  return make_copied_plan(problem, plan(), std::move(copies));
}

}  // namespace heed::api
