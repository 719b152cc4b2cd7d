#include "offload/pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/check.hpp"
#include "offload/host_memory.hpp"

namespace heed::offload {
namespace {

// Descending, so that pages are taken from the lowest number on and those of a sequence follow each other in memory.
std::vector<std::int32_t> descending(std::int64_t count) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(all.size() - 1 - i);
  return all;
}

void give_back(std::vector<std::int32_t>& free, std::int32_t page) {
  free.insert(std::lower_bound(free.begin(), free.end(), page, std::greater<>()), page);
}

std::int32_t take(std::vector<std::int32_t>& free) {
  const std::int32_t page = free.back();
  free.pop_back();
  return page;
}

// The first page that may leave the device: no sink, and not the newest; -1: none.
std::int64_t first_that_may_leave(const Sequence& s, std::int64_t sinks) {
  for (std::int64_t i = sinks; i + 1 < static_cast<std::int64_t>(s.device.size()); ++i)
    if (s.device[static_cast<std::size_t>(i)] != kNoSlot) return i;
  return -1;
}

void refuse_held(std::int64_t id, const Sequence& s, std::string_view what) {
  if (s.holds == 0) return;
  throw Error(
      ErrorCode::usage,
      fmt::format("sequence {} cannot {}: a graph that was captured reads its pages where they are; destroy the "
                  "graph and what was instantiated from it before",
                  id, what),
      std::to_string(id));
}

}  // namespace

std::int64_t Sequence::resident() const {
  return std::count_if(device.begin(), device.end(), [](std::int32_t slot) { return slot != kNoSlot; });
}

Pages::Pages(const PagesSizes& sizes)
    : sizes_(sizes), free_host_(descending(sizes.host_pages)), free_device_(descending(sizes.device_pages)) {}

std::int64_t Pages::add() {
  Sequence fresh;
  fresh.keys.assign(static_cast<std::size_t>(sizes_.layers), 0);
  sequences_.emplace(next_, std::move(fresh));
  return next_++;
}

void Pages::remove(std::int64_t id) {
  const Sequence& s = of(id);
  refuse_held(id, s, "be removed");
  for (const std::int32_t page : s.host) give_back(free_host_, page);
  for (const std::int32_t slot : s.device)
    if (slot != kNoSlot) give_back(free_device_, slot);
  sequences_.erase(id);
}

void Pages::hold(std::int64_t id) {
  (void)of(id);
  ++sequences_.at(id).holds;
}
void Pages::let_go(std::int64_t id) {
  HEED_CHECK(is_held(id));
  --sequences_.at(id).holds;
}
bool Pages::is_held(std::int64_t id) const {
  const auto at = sequences_.find(id);
  return at != sequences_.end() && at->second.holds > 0;
}

const Sequence& Pages::of(std::int64_t id) const {
  const auto at = sequences_.find(id);
  if (at == sequences_.end())
    throw Error(ErrorCode::usage, fmt::format("the pool has no sequence {}; it was removed, or never added", id),
                std::to_string(id));
  return at->second;
}

std::int32_t Pages::slot_for(std::int64_t id) {
  if (!free_device_.empty()) return take(free_device_);
  Sequence* most = nullptr;
  std::int64_t victim = -1;
  std::int64_t most_pages = 0;
  for (auto& [other, s] : sequences_) {
    if (s.holds > 0) continue;
    const std::int64_t first = first_that_may_leave(s, sizes_.sink_pages);
    const std::int64_t pages = s.resident() + (other == id ? 1 : 0);
    if (first < 0 || pages <= most_pages) continue;
    most = &s;
    victim = first;
    most_pages = pages;
  }
  if (most == nullptr) return kNoSlot;
  std::int32_t& slot = most->device[static_cast<std::size_t>(victim)];
  const std::int32_t taken = slot;
  slot = kNoSlot;
  return taken;
}

void Pages::append(const std::vector<std::int64_t>& ids, int layer, std::int64_t count) {
  HEED_CHECK(layer >= 0 && layer < sizes_.layers && count >= 0);
  const auto l = static_cast<std::size_t>(layer);
  std::int64_t needed = 0;
  std::set<std::int64_t> seen;
  for (const std::int64_t id : ids) {
    const Sequence& s = of(id);
    if (!seen.insert(id).second)
      throw Error(ErrorCode::usage, fmt::format("sequence {} is named twice in one call", id), std::to_string(id));
    if (count > 0) refuse_held(id, s, "have new keys");
    needed += std::max<std::int64_t>(0, pages_of(s.keys[l] + count) - static_cast<std::int64_t>(s.host.size()));
  }
  if (needed > free_host())
    throw OutOfRoom(ErrorCode::unsupported,
                    fmt::format("the pool is full: {} more keys of {} sequences take {} pages of {} keys, and {} of {} "
                                "are free; remove sequences, or make the pool with more host_pages",
                                count, ids.size(), needed, sizes_.page_size, free_host(), sizes_.host_pages),
                    std::to_string(needed));
  for (const std::int64_t id : ids) {
    Sequence& s = sequences_.at(id);
    s.keys[l] += count;
    while (static_cast<std::int64_t>(s.host.size()) < pages_of(s.keys[l])) {
      s.host.push_back(take(free_host_));
      s.device.push_back(kNoSlot);
      s.device.back() = slot_for(id);
    }
  }
}

void Pages::take_back(const std::vector<std::int64_t>& ids, int layer, std::int64_t count) {
  for (const std::int64_t id : ids) {
    Sequence& s = sequences_.at(id);
    s.keys[static_cast<std::size_t>(layer)] -= count;
    const std::int64_t used = pages_of(*std::max_element(s.keys.begin(), s.keys.end()));
    while (static_cast<std::int64_t>(s.host.size()) > used) {
      give_back(free_host_, s.host.back());
      if (s.device.back() != kNoSlot) give_back(free_device_, s.device.back());
      s.host.pop_back();
      s.device.pop_back();
    }
  }
}

std::vector<PageRows> Pages::rows_of(std::int64_t id, std::int64_t first, std::int64_t count) const {
  const Sequence& s = of(id);
  std::vector<PageRows> all;
  for (std::int64_t key = first; key < first + count;) {
    const auto page = static_cast<std::size_t>(key / sizes_.page_size);
    const std::int64_t row = key % sizes_.page_size;
    const std::int64_t rows = std::min(sizes_.page_size - row, first + count - key);
    all.push_back({s.host[page], s.device[page], row, rows, key - first});
    key += rows;
  }
  return all;
}

std::vector<Pages::Moved> Pages::promote(std::int64_t id, std::int64_t most, std::int64_t written) {
  (void)of(id);
  Sequence& s = sequences_.at(id);
  const std::int64_t full = std::min(written, *std::min_element(s.keys.begin(), s.keys.end())) / sizes_.page_size;
  std::vector<Moved> moved;
  for (auto i = static_cast<std::int64_t>(s.host.size()) - 1; i >= 0; --i) {
    if (static_cast<std::int64_t>(moved.size()) >= most || free_device_.empty()) break;
    std::int32_t& slot = s.device[static_cast<std::size_t>(i)];
    if (slot != kNoSlot || i >= full) continue;
    slot = take(free_device_);
    moved.push_back({s.host[static_cast<std::size_t>(i)], slot});
  }
  return moved;
}

std::int64_t Pages::resident() const {
  return sizes_.device_pages - free_device();
}
std::int64_t Pages::remote() const {
  return sizes_.host_pages - free_host() - resident();
}

}  // namespace heed::offload
