/// Pools and calls that any bytes ask for: every call ends with a status, and one that says no says why.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "heed/offload.h"

namespace heed::testing_support {

/// Bytes that decide, one after another; zeros when there are no more.
class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  [[nodiscard]] bool is_empty() const { return size_ == 0; }
  /// A number that fields are tried with: small ones, limits, and any.
  std::int64_t number() {
    constexpr std::int64_t kTried[] = {0,
                                       1,
                                       2,
                                       3,
                                       4,
                                       7,
                                       8,
                                       16,
                                       24,
                                       64,
                                       -1,
                                       -2,
                                       511,
                                       513,
                                       1 << 20,
                                       INT32_MAX,
                                       std::int64_t{1} << 31,
                                       std::int64_t{1} << 40,
                                       INT64_MAX,
                                       INT64_MIN};
    constexpr std::size_t kCount = sizeof kTried / sizeof kTried[0];
    const std::uint8_t choice = byte();
    if (choice < 250) return kTried[choice % kCount];
    std::int64_t any = 0;
    for (int i = 0; i < 8; ++i) any = static_cast<std::int64_t>(static_cast<std::uint64_t>(any) << 8 | byte());
    return any;
  }
  double real() {
    constexpr double kTried[] = {0, 1, 0.5, -1, 1e-30, 1e9, 1e300, -1e300};
    const std::uint8_t choice = byte();
    if (choice >= 250) return choice >= 253 ? 0.0 / static_cast<double>(choice - choice) : 1.0 / 0.0;
    return kTried[choice % 8];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

inline void require_status(heed_status status) {
  if (status == HEED_OK) return;
  if (status < HEED_OK || status > HEED_INTERNAL || heed_last_error()[0] == '\0' || status == HEED_INTERNAL) {
    std::fprintf(stderr, "status %d: %s\n", status, heed_last_error());
    std::abort();
  }
}

/// @param config of a pool that can be made; some of its fields become what the bytes say. @return whether one was made
inline bool try_any_pool(heed_offload_config config, Choices& choices) {
  std::int64_t* const sizes[] = {&config.layers,     &config.heads,       &config.heads_kv,   &config.dim,
                                 &config.dim_v,      &config.page_size,   &config.host_pages, &config.device_pages,
                                 &config.sink_pages, &config.chunk_pages, &config.chunks};
  double* const reals[] = {&config.link_rate,    &config.host_rate,      &config.device_rate,
                           &config.device_flops, &config.streamed_share, &config.link_bandwidth};
  std::int32_t* const kinds[] = {&config.dtype, &config.page_layout, &config.threads, &config.dtype_kv};
  // Factors: as many as are counted, some that cannot be.
  const auto factors = std::make_unique<float[]>(16);
  for (int i = 0; i < 16; ++i) factors[i] = 0.1F;
  if (choices.byte() % 4 == 0) {
    config.k_scales = config.v_scales = factors.get();
    config.k_scale_count = std::min<std::int64_t>(choices.number(), 16);
    config.v_scale_count = config.heads_kv;
    constexpr float kTried[] = {
        0, -1, 1, 1e-30F, 1e30F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
    factors[choices.byte() % 4] = kTried[choices.byte() % std::size(kTried)];
    if (choices.byte() % 4 == 0) config.v_scales = nullptr;
  }
  for (int changes = choices.byte() % 3; changes > 0; --changes) {
    const std::uint8_t what = choices.byte();
    if (what % 4 < 2)
      *sizes[what / 4 % 11] = choices.number();
    else if (what % 4 == 2)
      *reals[what / 4 % 6] = choices.real();
    else
      *kinds[what / 4 % 4] = static_cast<std::int32_t>(choices.number());
  }
  // Not so large that it takes the memory of the machine, not so slow that it takes a day.
  double bytes = 4;
  for (const double size :
       {static_cast<double>(config.layers), static_cast<double>(config.page_size), static_cast<double>(config.heads_kv),
        static_cast<double>(config.dim) + static_cast<double>(config.dim_v)})
    bytes *= size;
  const double pages = static_cast<double>(config.host_pages) +
                       static_cast<double>(config.chunk_pages) * static_cast<double>(config.chunks);
  constexpr double kMost = 1 << 24;
  if (bytes * pages > kMost && bytes * pages < 1e14) return false;
  if (config.link_bandwidth > 0 && config.link_bandwidth < 1e6) return false;
  if (config.threads > 4) return false;
  heed_offload* pool = nullptr;
  require_status(heed_offload_create(&config, &pool));
  if (pool == nullptr) return false;

  const std::int64_t elements = 3 * 3 * config.heads * (config.dim + config.dim_v);
  std::vector<float> room(static_cast<std::size_t>(6 * elements), 0.5F);
  std::int64_t ids[3] = {0, 0, 0};
  for (std::int64_t& id : ids) require_status(heed_offload_add(pool, &id));
  while (!choices.is_empty()) {
    heed_offload_call call;
    heed_offload_call_init(&call);
    call.sequences = ids;
    call.batch = choices.byte() % 4;
    call.len_k = choices.byte() % 4;
    call.len_q = choices.byte() % 4;
    float* at = room.data();
    call.k = at;
    call.v = at += elements;
    call.q = at += elements;
    call.o = at += elements;
    call.lse = at += elements;
    call.sinks = nullptr;
    call.layer = static_cast<std::int32_t>(choices.byte() % 8 == 0 ? choices.number() : 0);
    if (choices.byte() % 8 == 0) call.batch = choices.number() > 3 ? -1 : choices.number() % 4;
    if (choices.byte() % 8 == 0) call.len_k = std::int64_t{1} << (20 + choices.byte() % 43);
    if (choices.byte() % 8 == 0) call.mask = static_cast<std::int32_t>(choices.number());
    if (choices.byte() % 4 == 0) call.dtype_kv = static_cast<std::int32_t>(choices.number());
    if (choices.byte() % 8 == 0) call.window_left = choices.number();
    if (choices.byte() % 8 == 0) call.scale = choices.real();
    if (choices.byte() % 8 == 0) call.softcap = choices.real();
    if (choices.byte() % 8 == 0) ids[choices.byte() % 3] = choices.number();
    if (choices.byte() % 16 == 0) call.q = nullptr;
    if (choices.byte() % 16 == 0) call.v = nullptr;
    if (choices.byte() % 16 == 0) call.q_strides.head = ~choices.number();
    if (choices.byte() % 16 == 0) call.reserved[0] = choices.byte();
    switch (choices.byte() % 6) {
      case 0:
        require_status(heed_offload_append(pool, &call, nullptr));
        break;
      case 1:
        require_status(heed_offload_prefill(pool, &call, nullptr));
        break;
      case 2:
        require_status(heed_offload_remove(pool, ids[choices.byte() % 3]));
        break;
      case 3: {
        std::int64_t keys = 0;
        require_status(heed_offload_length(pool, ids[0], call.layer, &keys));
        char text[64];
        (void)heed_offload_explain(pool, ids, call.batch, text, sizeof text);
        break;
      }
      case 4:
        require_status(heed_offload_add(pool, &ids[choices.byte() % 3]));
        break;
      default:
        require_status(heed_offload_decode(pool, &call, nullptr));
    }
  }
  heed_offload_destroy(pool);
  return true;
}

}  // namespace heed::testing_support
