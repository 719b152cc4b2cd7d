// Stand-ins for kernels/ptx/bulk_tensor.cuh.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/device/device.hpp"
#include "kernels/contract.hpp"
#include "kernels/ptx/cluster.cuh"

namespace heed::ptx {

/// A box in shared memory, in the swizzle of its rows' bytes, and where its elements are in global memory.
class Box {
 public:
  Box(const TensorMap& map, unsigned shared, int column, int row, int head, int batch) : at_{column, row, head, batch} {
    std::memcpy(&map_, map.opaque, sizeof(map_));
    shared_ = emulator::pointer_to(shared, static_cast<std::size_t>(bytes()));
    if (((shared & ((1U << emulator::kRankShift) - 1)) - emulator::kSharedStart) %
            static_cast<unsigned>(8 * row_bytes()) !=
        0)
      throw std::logic_error(
          "a bulk copy needs an address that is a multiple of eight rows, where its swizzle repeats");
  }
  [[nodiscard]] long long bytes() const { return map_.box_rows * row_bytes(); }
  [[nodiscard]] int element_bytes() const { return map_.element_bytes; }

  /// Calls `copy` with every element in shared memory and in global memory, null where that is outside of the tensor.
  template <class Copy>
  void for_each(const Copy& copy) const {
    for (int r = 0; r < map_.box_rows; ++r)
      for (int c = 0; c < map_.box_columns; ++c) {
        const long long at[4] = {at_[0] + c, at_[1] + r, at_[2], at_[3]};
        bool inside = true;
        long long offset = 0;
        for (int d = 0; d < 4; ++d) {
          inside = inside && at[d] >= 0 && at[d] < map_.sizes[d];
          offset += at[d] * map_.strides[d];
        }
        const long long plain = r * row_bytes() + element_bytes() * c;
        copy(shared_ + (plain ^ ((plain >> 7 & (row_bytes() / 16 - 1)) << 4)),
             inside ? const_cast<std::byte*>(map_.base) + element_bytes() * offset : nullptr);
      }
  }

 private:
  [[nodiscard]] long long row_bytes() const { return static_cast<long long>(map_.element_bytes) * map_.box_columns; }

  emulator::EmulatedMap map_{};
  std::byte* shared_;
  long long at_[4];
};

inline void cp_async_bulk_tensor_4d(unsigned shared, const TensorMap& map, unsigned barrier, int column, int row,
                                    int head, int batch) {
  const Box box(map, shared, column, row, head, batch);
  emulator::ByteBarrier* b = &emulator::byte_barrier(barrier);
  emulator::later([=] {
    const auto size = static_cast<std::size_t>(box.element_bytes());
    box.for_each([size](std::byte* to, const std::byte* from) {
      if (from != nullptr)
        std::memcpy(to, from, size);
      else
        std::memset(to, 0, size);
    });
    b->bytes -= box.bytes();
    b->settle();
  });
}
inline void cp_async_bulk_tensor_4d_multicast(unsigned shared, const TensorMap& map, unsigned barrier, int column,
                                              int row, int head, int batch, unsigned short ranks) {
  require_cluster();
  if (ranks == 0 || ranks >> emulator::cluster_size() != 0)
    throw std::logic_error("a multicast to no block, or to one that the cluster does not have");
  for (unsigned rank = 0; rank < emulator::cluster_size(); ++rank)
    if ((ranks >> rank & 1U) != 0)
      cp_async_bulk_tensor_4d(mapa(shared, rank), map, mapa(barrier, rank), column, row, head, batch);
}
inline void cp_async_bulk_tensor_4d_evict_first(unsigned shared, const TensorMap& map, unsigned barrier, int column,
                                                int row, int head, int batch) {
  cp_async_bulk_tensor_4d(shared, map, barrier, column, row, head, batch);
}
// Read at some later time, and written at another, in any order.
inline void cp_async_bulk_tensor_4d_store(const TensorMap& map, unsigned shared, int column, int row, int head,
                                          int batch) {
  const Box box(map, shared, column, row, head, batch);
  emulator::Thread& t = emulator::self();
  ++*t.leaving_boxes;
  ++*t.unwritten_boxes;
  ++t.open_boxes;
  emulator::later([=, left = t.leaving_boxes, unwritten = t.unwritten_boxes] {
    std::vector<std::pair<std::byte*, std::array<std::byte, 2>>> elements;
    box.for_each([&](const std::byte* from, std::byte* to) {
      if (to != nullptr) elements.push_back({to, {from[0], from[1]}});
    });
    --*left;
    emulator::write_later([elements = std::move(elements), unwritten] {
      for (const auto& [to, bytes] : elements) std::memcpy(to, bytes.data(), 2);
      --*unwritten;
    });
  });
}
inline void cp_async_bulk_tensor_4d_store_evict_first(const TensorMap& map, unsigned shared, int column, int row,
                                                      int head, int batch) {
  cp_async_bulk_tensor_4d_store(map, shared, column, row, head, batch);
}
inline void cp_async_bulk_commit_group() {
  emulator::self().open_boxes = 0;
}
// Waits for all groups, whatever may be left: kernels leave none.
inline void wait_for_boxes(const char* where, const std::shared_ptr<int>& left) {
  if (emulator::self().open_boxes != 0)
    throw std::logic_error("a wait for copies that were not committed to a group ends before they are done");
  emulator::wait_until(where, [left] { return *left == 0; });
}
template <int kLeft>
void cp_async_bulk_wait_group_read() {
  static_assert(kLeft == 0);
  wait_for_boxes("cp.async.bulk.wait_group.read", emulator::self().leaving_boxes);
}
template <int kLeft>
void cp_async_bulk_wait_group() {
  static_assert(kLeft == 0);
  wait_for_boxes("cp.async.bulk.wait_group", emulator::self().unwritten_boxes);
}
inline void prefetch_tensormap(const TensorMap&) {}
inline void fence_proxy_async() {}

}  // namespace heed::ptx
