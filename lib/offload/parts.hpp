/// Partial results of a call on their way to the merge.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "merge/merge.hpp"
#include "offload/lanes.hpp"

namespace heed::offload {

inline constexpr std::int64_t kDeskAlignment = 256;
/// Bytes that what follows begins behind.
constexpr std::int64_t whole(std::int64_t bytes) {
  return (bytes + kDeskAlignment - 1) / kDeskAlignment * kDeskAlignment;
}

/// Partial results of one call, which wait for each other so that one launch merges several.
class Parts {
 public:
  Parts(Lanes& lanes, const merge::Merge& all, std::byte* sums, std::int64_t slots)
      : lanes_(lanes), whole_(all), sums_(sums), slots_(slots) {}

  /// The slot that the next partial result of the device goes to.
  [[nodiscard]] std::int64_t next() {
    if (waiting_ == slots_) add_up();
    return waiting_++;
  }
  void add(const merge::Partial& part) {
    HEED_CHECK(count_ < merge::kMostPartials);
    merge_.partials[count_++] = part;
  }
  void finish() {
    merge::Merge m = whole_;
    std::copy(merge_.partials, merge_.partials + count_, m.partials);
    m.count = std::max(count_, 1);  // without any a part that is not read
    lanes_.merge(merge::with_width(m));
  }

 private:
  // What there is becomes one part in fp32.
  void add_up() {
    merge::Merge m = whole_;
    std::copy(merge_.partials, merge_.partials + count_, m.partials);
    m.count = count_;
    const std::int64_t numbers = m.batch * m.heads * m.rows;
    m.o = sums_;
    m.o_strides = {m.heads * static_cast<long long>(m.rows) * m.dim, static_cast<long long>(m.rows) * m.dim, m.dim};
    m.lse = reinterpret_cast<float*>(sums_ + whole(numbers * m.dim * 4));
    m.lse_strides = {static_cast<long long>(m.heads) * m.rows, m.rows, 1};
    m.sinks = nullptr;
    m.element = static_cast<int>(Element::fp32);
    lanes_.merge(merge::with_width(m));
    merge_.partials[0] = {m.o, m.lse, m.o_strides, m.lse_strides, m.element, 0, m.rows, 1};
    count_ = 1;
    waiting_ = 0;
  }

  Lanes& lanes_;
  merge::Merge whole_;
  merge::Merge merge_{};
  std::byte* sums_;
  std::int64_t slots_;
  std::int64_t waiting_ = 0;
  int count_ = 0;
};

}  // namespace heed::offload
