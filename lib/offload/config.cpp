// What callers give, read and checked.
#include <fmt/format.h>

#include <cmath>

#include "api/problem_features.hpp"
#include "api/spans.hpp"
#include "offload/offload.hpp"

namespace heed::offload {
namespace {

constexpr std::int64_t kMostLayers = 4096;
constexpr std::int64_t kMostPageSize = std::int64_t{1} << 20;
constexpr std::int64_t kMostDim = 512;
constexpr std::int64_t kMostHeads = std::int64_t{1} << 20;
// 1.2 ms of a link of 55 GB/s. Each chunk of a prefill writes rows that are merged: of 16,384 rows on an H200 chunks of
// 32 MiB reach 0.92 of the speed of all keys on the GPU, 64 MiB 0.975, 128 MiB 1.01; decoding takes 11.2, 10.7 and 11.3
// ms.
constexpr std::int64_t kChunkBytes = std::int64_t{64} << 20;
constexpr double kMostPoolBytes = 0x1p60;
// An element type of pages, or of new keys, that is none.
constexpr const char* kEightBits = "HEED_FP8_E4M3, HEED_FP8_E5M2 or HEED_INT8";

[[noreturn]] void refuse(const std::string& text, std::string value = {}) {
  throw Error(ErrorCode::usage, text, std::move(value));
}

void expect_within(const char* name, std::int64_t given, std::int64_t least, std::int64_t most) {
  if (given < least || given > most)
    throw Error(ErrorCode::invalid_workload, fmt::format("{} is {}; it must be {} to {}", name, given, least, most),
                std::to_string(given));
}
bool is_eight_bits(int dtype) {
  return dtype == HEED_FP8_E4M3 || dtype == HEED_FP8_E5M2 || dtype == HEED_INT8;
}
void expect_rate(const char* name, double given) {
  if (!(given >= 0 && std::isfinite(given)))
    refuse(fmt::format("{} is {}; it must be a positive number, or 0", name, given), std::to_string(given));
}
template <typename Struct>
void expect_size(const Struct* given, const char* name) {
  if (given == nullptr) refuse(fmt::format("{} is null", name), "null");
  if (given->struct_size != sizeof(Struct))
    refuse(fmt::format("{0} has {1} bytes; this library reads {2}: set it with {0}_init", name, given->struct_size,
                       sizeof(Struct)),
           std::to_string(given->struct_size));
  for (const std::uint64_t word : given->reserved)
    if (word != 0) refuse(fmt::format("reserved fields of {} must be 0", name), std::to_string(word));
}

// (layers, heads_kv) factors of what a caller gives.
std::vector<float> factors_of(const char* name, const float* given, std::int64_t count,
                              const heed_offload_config& config) {
  const std::int64_t heads = config.heads_kv;
  const auto all = static_cast<std::size_t>(config.layers * heads);
  if (config.dtype_kv == 0) {
    if (given != nullptr || count != 0)
      refuse(fmt::format("{} is given, and pages are not of 8 bits; give dtype_kv, or leave it null with a count of 0",
                         name),
             std::to_string(count));
    return {};
  }
  if (given == nullptr && count == 0) {
    // Keys of models are some units large: as whole numbers nothing is left of them.
    if (config.dtype_kv == HEED_INT8)
      refuse(fmt::format("{} is null, and elements of HEED_INT8 are whole numbers; give the factors that they are "
                         "multiplied by",
                         name),
             "null");
    return std::vector<float>(all, 1.0F);
  }
  if (given == nullptr) refuse(fmt::format("{} is null, and its count is {}", name, count), "null");
  if (count != 1 && count != heads && count != config.layers * heads)
    refuse(fmt::format("there are {} {}; give 1, heads_kv ({}) or layers * heads_kv ({}) factors", count, name, heads,
                       config.layers * heads),
           std::to_string(count));
  std::vector<float> factors(all);
  for (std::size_t i = 0; i < all; ++i) {
    const auto from = static_cast<std::int64_t>(i) % count;
    factors[i] = given[from];
    if (!(factors[i] > 0 && std::isfinite(factors[i])))
      refuse(fmt::format("{}[{}] is {}; a scale factor must be positive and finite", name, from, factors[i]),
             fmt::format("{}", factors[i]));
  }
  return factors;
}

// Strides that are given, or dense ones; no address behind them overflows.
heed_strides strides_of(const char* name, const heed_strides& given, std::int64_t batch, std::int64_t heads,
                        std::int64_t rows, std::int64_t dim) {
  heed_strides s = given;
  if (s.batch == 0 && s.head == 0 && s.row == 0 && s.dim == 0) s = {heads * rows * dim, rows * dim, dim, 1};
  double last = 0;
  for (const auto& [count, stride] :
       {std::pair{batch, s.batch}, std::pair{heads, s.head}, std::pair{rows, s.row}, std::pair{dim, s.dim}}) {
    if (stride < 0)
      refuse(fmt::format("a stride of {} is {}; it must not be negative", name, stride), std::to_string(stride));
    last += static_cast<double>(std::max<std::int64_t>(0, count - 1)) * static_cast<double>(stride);
  }
  if (last > kMostPoolBytes) refuse(fmt::format("strides of {} reach beyond 2^60 elements", name), name);
  return s;
}

// Bounds of plans, which would refuse the call when its keys are in pages already.
void expect_numbers(const Call& call, const Config& config) {
  Workload w;
  w.batch = w.len_q = w.len_k = 1;
  w.heads = config.heads;
  w.heads_kv = config.heads_kv;
  w.dim = config.dim;
  w.dim_v = config.dim_v;
  w.dtype = config.dtype;
  w.scale = call.scale;
  w.softcap = call.softcap;
  validate(w);
}

// Lanes read and write at the same time.
void expect_outputs_apart(const Call& c, const Config& config) {
  const auto batch = static_cast<std::int64_t>(c.ids.size());
  const auto span = [](const char* name, const void* at, const api::TensorSizes& sizes, const heed_strides& s,
                       int element_bytes) {
    return api::span_of(name, at, sizes, {{s.batch, s.head, s.row}, s.dim}, static_cast<std::size_t>(element_bytes));
  };
  const int bytes = config.element_bytes();
  const int key_bytes = c.is_quantised ? 1 : bytes;
  const api::Span all[] = {
      span("O", c.o, {batch, config.heads, c.rows, config.dim_v}, c.o_strides, bytes),
      api::span_of_numbers("lse", c.lse, batch * config.heads * c.rows, sizeof(float)),
      span("Q", c.q, {batch, config.heads, c.rows, config.dim}, c.q_strides, bytes),
      span("K", c.k, {batch, config.heads_kv, c.new_keys, config.dim}, c.k_strides, key_bytes),
      span("V", c.v, {batch, config.heads_kv, c.new_keys, config.dim_v}, c.v_strides, key_bytes),
      api::span_of_numbers("sinks", c.sinks, config.heads, sizeof(float)),
  };
  constexpr std::size_t kOutputs = 2;
  for (std::size_t written = 0; written < kOutputs; ++written)
    for (std::size_t i = written + 1; i < std::size(all); ++i)
      if (api::reach_each_other(all[written], all[i]))
        refuse(fmt::format("{} overlaps {}; outputs must lie apart from every other tensor", all[written].name,
                           all[i].name),
               all[written].name);
}

}  // namespace

Config read_config(const heed_offload_config* given) {
  expect_size(given, "heed_offload_config");
  if (given->abi_version != HEED_ABI_VERSION)
    refuse(fmt::format("abi_version is {}; this library's is {}", given->abi_version, HEED_ABI_VERSION),
           std::to_string(given->abi_version));
  Config c;
  if (given->device_type != HEED_CPU && given->device_type != HEED_CUDA)
    refuse(fmt::format("{} is no heed_device_type", given->device_type), std::to_string(given->device_type));
  c.kind = given->device_type == HEED_CUDA ? DeviceKind::cuda : DeviceKind::cpu;
  if (given->device < 0) refuse("the number of the device is negative", std::to_string(given->device));
  c.ordinal = given->device;
  if (given->dtype < HEED_FP16 || given->dtype > HEED_FP32)
    throw Error(ErrorCode::unsupported,
                fmt::format("Q and O of heed_dtype {} are not there; there are HEED_FP16, HEED_BF16 and HEED_FP32, and "
                            "dtype_kv for pages of 8 bits",
                            given->dtype),
                std::to_string(given->dtype));
  c.dtype = c.dtype_kv = static_cast<Dtype>(given->dtype);
  if (given->dtype_kv != 0 && !is_eight_bits(given->dtype_kv))
    throw Error(ErrorCode::unsupported,
                fmt::format("dtype_kv is {}; pages are of {}, or of dtype with 0", given->dtype_kv, kEightBits),
                std::to_string(given->dtype_kv));
  if (given->dtype_kv != 0) c.dtype_kv = static_cast<Dtype>(given->dtype_kv);
  if (given->page_layout != HEED_PAGES_HND && given->page_layout != HEED_PAGES_NHD)
    refuse(fmt::format("{} is no heed_page_layout", given->page_layout), std::to_string(given->page_layout));
  c.heads_outer = given->page_layout == HEED_PAGES_HND;
  expect_within("layers", given->layers, 1, kMostLayers);
  expect_within("heads", given->heads, 1, kMostHeads);
  expect_within("heads_kv", given->heads_kv, 1, kMostHeads);
  if (given->heads % given->heads_kv != 0)
    throw Error(ErrorCode::invalid_workload,
                fmt::format("{} query heads cannot share {} heads of keys; heads must be a multiple of heads_kv",
                            given->heads, given->heads_kv),
                std::to_string(given->heads));
  expect_within("dim", given->dim, 1, kMostDim);
  expect_within("dim_v", given->dim_v, 1, kMostDim);
  expect_within("page_size", given->page_size, 8, kMostPageSize);
  if (given->page_size % 8 != 0)
    throw Error(ErrorCode::invalid_workload,
                fmt::format("page_size is {}; it must be a multiple of 8 keys", given->page_size),
                std::to_string(given->page_size));
  c.heads = given->heads;
  c.heads_kv = given->heads_kv;
  c.dim = given->dim;
  c.dim_v = given->dim_v;
  expect_within("host_pages", given->host_pages, 1, api::kMostSize / given->page_size - 1);
  expect_within("device_pages", given->device_pages, 0, given->host_pages);
  expect_within("sink_pages", given->sink_pages, 0, given->host_pages);
  c.k_scales = factors_of("k_scales", given->k_scales, given->k_scale_count, *given);
  c.v_scales = factors_of("v_scales", given->v_scales, given->v_scale_count, *given);
  c.pages = {static_cast<int>(given->layers), given->page_size, given->host_pages, given->device_pages,
             given->sink_pages};
  const double bytes = static_cast<double>(c.page_bytes()) * static_cast<double>(given->layers);
  if (bytes * static_cast<double>(given->host_pages) > kMostPoolBytes)
    throw Error(ErrorCode::invalid_workload, "the host's pages would take more than 2^60 bytes",
                std::to_string(given->host_pages));
  expect_within("chunk_pages", given->chunk_pages, 0, given->host_pages);
  c.chunk_pages = given->chunk_pages > 0
                      ? given->chunk_pages
                      : std::min(given->host_pages, std::max<std::int64_t>(1, kChunkBytes / c.page_bytes()));
  expect_within("chunks", given->chunks, 0, 64);
  c.chunks = given->chunks > 0 ? given->chunks : 3;
  expect_rate("link_rate", given->link_rate);
  expect_rate("host_rate", given->host_rate);
  expect_rate("device_rate", given->device_rate);
  expect_rate("device_flops", given->device_flops);
  expect_rate("link_bandwidth", given->link_bandwidth);
  expect_rate("link_latency", given->link_latency);
  if (c.kind == DeviceKind::cuda && (given->link_bandwidth != 0 || given->link_latency != 0))
    refuse("link_bandwidth and link_latency are of a simulated GPU; leave them 0, or give device_type HEED_CPU");
  constexpr double kMostLatency = 60;
  if (given->link_latency > kMostLatency)
    refuse(fmt::format("link_latency is {} seconds; at most {} are simulated", given->link_latency, kMostLatency));
  c.rates = {given->link_rate, given->host_rate, given->device_rate, given->device_flops};
  if (std::isnan(given->streamed_share) || given->streamed_share > 1)
    refuse(fmt::format("streamed_share is {}; it must be 0 to 1, or negative for the one that follows from the rates",
                       given->streamed_share));
  c.streamed = given->streamed_share;
  c.simulation = {given->link_bandwidth, given->link_latency, -1};
  expect_within("threads", given->threads, 0, 4096);
  c.threads = given->threads;
  if (given->programs != nullptr) c.programs = given->programs;
  return c;
}

Call read_call(const heed_offload_call* given, const Config& config, bool has_rows) {
  expect_size(given, "heed_offload_call");
  Call c;
  expect_within("layer", given->layer, 0, config.pages.layers - 1);
  c.layer = given->layer;
  expect_within("batch", given->batch, 0, kMostHeads);
  if (given->batch > 0 && given->sequences == nullptr) refuse("the numbers of the sequences are null", "null");
  c.ids.assign(given->sequences, given->sequences + given->batch);
  const auto alignment = static_cast<std::uintptr_t>(config.kind == DeviceKind::cuda ? 16 : config.element_bytes());
  const auto expect_address = [&](const char* name, const void* address, std::uintptr_t multiple) {
    if (address == nullptr) refuse(fmt::format("the address of {} is null", name), name);
    if (reinterpret_cast<std::uintptr_t>(address) % multiple != 0)
      refuse(fmt::format("{} lies at {}; its address must be a multiple of {} bytes", name, address, multiple),
             fmt::format("{}", address));
  };
  expect_within("len_k", given->len_k, 0, api::kMostSize - 1);
  c.new_keys = given->batch > 0 ? given->len_k : 0;
  if (given->dtype_kv != 0) {
    if (!config.has_eight_bits() || given->dtype_kv != static_cast<int>(config.dtype_kv))
      throw Error(ErrorCode::unsupported,
                  fmt::format("new keys are of heed_dtype {}; pages are of {}: give dtype_kv 0 and keys of heed_dtype "
                              "{}{}",
                              given->dtype_kv, static_cast<int>(config.dtype_kv), static_cast<int>(config.dtype),
                              config.has_eight_bits() ? ", or keys of the pages' 8 bits" : ""),
                  std::to_string(given->dtype_kv));
    c.is_quantised = true;
  }
  if (c.new_keys > 0) {
    const auto multiple = static_cast<std::uintptr_t>(c.is_quantised ? 1 : config.element_bytes());
    expect_address("K", given->k, multiple);
    expect_address("V", given->v, multiple);
    c.k = static_cast<const std::byte*>(given->k);
    c.v = static_cast<const std::byte*>(given->v);
    c.k_strides = strides_of("K", given->k_strides, given->batch, config.heads_kv, given->len_k, config.dim);
    c.v_strides = strides_of("V", given->v_strides, given->batch, config.heads_kv, given->len_k, config.dim_v);
  }
  if (!has_rows) return c;
  expect_within("len_q", given->len_q, 0, api::kMostSize - 1);
  c.rows = given->batch > 0 ? given->len_q : 0;
  if (given->mask != HEED_MASK_NONE && given->mask != HEED_MASK_CAUSAL_BOTTOM_RIGHT)
    throw Error(ErrorCode::unsupported,
                fmt::format("a call over a pool has no heed_mask {}; give HEED_MASK_NONE or "
                            "HEED_MASK_CAUSAL_BOTTOM_RIGHT, with window_left for a window",
                            given->mask),
                std::to_string(given->mask));
  c.causal = given->mask == HEED_MASK_CAUSAL_BOTTOM_RIGHT;
  if (given->window_left < -1 || given->window_left >= api::kMostSize)
    throw Error(
        ErrorCode::invalid_workload,
        fmt::format("window_left is {}; it must be a number of keys below 2^31, or -1 for all", given->window_left),
        std::to_string(given->window_left));
  c.window_left = given->window_left;
  if (!(given->scale >= 0 && std::isfinite(given->scale)))
    throw Error(ErrorCode::invalid_workload,
                fmt::format("scale is {}; it must be a positive number, or 0 for 1 / sqrt(dim)", given->scale),
                std::to_string(given->scale));
  c.scale = given->scale > 0 ? given->scale : 1 / std::sqrt(static_cast<double>(config.dim));
  if (!(given->softcap >= 0 && std::isfinite(given->softcap)))
    throw Error(ErrorCode::invalid_workload,
                fmt::format("softcap is {}; it must be a positive number, or 0", given->softcap),
                std::to_string(given->softcap));
  c.softcap = given->softcap;
  expect_numbers(c, config);
  if (c.rows == 0) return c;
  expect_address("Q", given->q, alignment);
  expect_address("O", given->o, alignment);
  if (given->lse != nullptr) expect_address("lse", given->lse, sizeof(float));
  if (given->sinks != nullptr) expect_address("sinks", given->sinks, sizeof(float));
  c.q = static_cast<const std::byte*>(given->q);
  c.o = static_cast<std::byte*>(given->o);
  c.lse = given->lse;
  c.sinks = given->sinks;
  c.q_strides = strides_of("Q", given->q_strides, given->batch, config.heads, given->len_q, config.dim);
  c.o_strides = strides_of("O", given->o_strides, given->batch, config.heads, given->len_q, config.dim_v);
  if (c.o_strides.dim != 1)
    throw Error(ErrorCode::unsupported,
                fmt::format("the elements of a row of O are {} apart; they must follow each other", c.o_strides.dim),
                std::to_string(c.o_strides.dim));
  api::expect_apart("O", c.o_strides, {given->batch, config.heads, c.rows, config.dim_v});
  expect_outputs_apart(c, config);
  return c;
}

}  // namespace heed::offload
