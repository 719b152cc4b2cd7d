/// Page pools of libheed in C++: pools that destroy themselves, and exceptions where the C interface has codes.
///
///     heed_offload_config config = heed::c::offload_config();
///     config.device_type = HEED_CUDA;
///     config.host_pages = 16384;
///     config.device_pages = 4096;
///     heed::c::Offload pool(config);
///     const std::int64_t sequence = pool.add();
///     pool.decode(call, stream);
///
/// Header alone, C++17; offload.h documents the structs and every call.
#pragma once

#include <heed/offload.h>
#include <heed/plan.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace heed::c {

/// As heed_offload_config_init sets it.
[[nodiscard]] inline heed_offload_config offload_config() {
  heed_offload_config fresh;
  heed_offload_config_init(&fresh);
  return fresh;
}

/// A call without sequences and addresses.
[[nodiscard]] inline heed_offload_call offload_call() {
  heed_offload_call fresh;
  heed_offload_call_init(&fresh);
  return fresh;
}

/// A heed_offload and its end. Moved, not copied; a pool that was moved from is empty and refuses every call.
class Offload {
 public:
  /// An empty pool.
  Offload() noexcept = default;
  /// @throws Error where the memory cannot be had, or no program runs on the device
  explicit Offload(const heed_offload_config& config) { check(heed_offload_create(&config, &pool_)); }
  Offload(Offload&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
  Offload& operator=(Offload&& other) noexcept {
    std::swap(pool_, other.pool_);
    return *this;
  }
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;
  /// Waits for the calls that are queued.
  ~Offload() { heed_offload_destroy(pool_); }

  /// The number of an empty sequence.
  [[nodiscard]] std::int64_t add() {
    std::int64_t sequence = 0;
    check(heed_offload_add(pool_, &sequence));
    return sequence;
  }
  void remove(std::int64_t sequence) { check(heed_offload_remove(pool_, sequence)); }
  /// Keys of a layer.
  [[nodiscard]] std::int64_t length(std::int64_t sequence, std::int32_t layer = 0) const {
    std::int64_t keys = 0;
    check(heed_offload_length(pool_, sequence, layer, &keys));
    return keys;
  }

  /// Writes new keys and values alone.
  void append(const heed_offload_call& call, void* stream = nullptr) {
    check(heed_offload_append(pool_, &call, stream));
  }
  /// Attention of many rows, entry by entry.
  void prefill(const heed_offload_call& call, void* stream = nullptr) {
    check(heed_offload_prefill(pool_, &call, stream));
  }
  /// Attention of few rows, on the device and on the processors.
  void decode(const heed_offload_call& call, void* stream = nullptr) {
    check(heed_offload_decode(pool_, &call, stream));
  }

  [[nodiscard]] heed_offload_info info() const {
    heed_offload_info known;
    heed_offload_info_init(&known);
    check(heed_offload_get_info(pool_, &known));
    return known;
  }
  /// What the pool is and what calls of these sequences would do.
  [[nodiscard]] std::string explain(const std::vector<std::int64_t>& sequences = {}) const {
    const auto count = static_cast<std::int64_t>(sequences.size());
    std::string text(heed_offload_explain(pool_, sequences.data(), count, nullptr, 0), '\0');
    const std::size_t bytes = heed_offload_explain(pool_, sequences.data(), count, &text[0], text.size() + 1);
    if (bytes < text.size()) text.resize(bytes);
    return text;
  }

  /// For calls of the C interface; null if empty.
  [[nodiscard]] heed_offload* get() const noexcept { return pool_; }
  [[nodiscard]] explicit operator bool() const noexcept { return pool_ != nullptr; }

 private:
  heed_offload* pool_ = nullptr;
};

}  // namespace heed::c
