// Stand-ins for kernels/ptx/bulk_tensor.cuh.
#pragma once

#include <cstring>

#include "device.hpp"
#include "kernels/contract.hpp"

namespace heed::ptx {

inline void cp_async_bulk_tensor_4d(unsigned shared, const TensorMap& map, unsigned barrier, int column, int row,
                                    int head, int batch) {
  emulator::EmulatedMap m{};
  std::memcpy(&m, map.opaque, sizeof(m));
  std::byte* to = emulator::pointer_to(shared, static_cast<std::size_t>(m.box_rows) * 128);
  if ((shared - emulator::kSharedStart) % 1024 != 0)
    throw std::logic_error("a bulk copy with the 128-byte swizzle needs an address that is a multiple of 1024");
  emulator::ByteBarrier* b = &emulator::byte_barrier(barrier);
  emulator::later([=] {
    for (int r = 0; r < m.box_rows; ++r)
      for (int c = 0; c < 64; ++c) {
        const long long at[4] = {column + c, row + r, head, batch};
        bool inside = true;
        long long offset = 0;
        for (int d = 0; d < 4; ++d) {
          inside = inside && at[d] >= 0 && at[d] < m.sizes[d];
          offset += at[d] * m.strides[d];
        }
        std::byte* element = to + r * 128 + ((c / 8) ^ (r % 8)) * 16 + c % 8 * 2;
        if (inside)
          std::memcpy(element, m.base + 2 * offset, 2);
        else
          std::memset(element, 0, 2);
      }
    b->bytes -= static_cast<long long>(m.box_rows) * 128;
    b->settle();
  });
}
inline void cp_async_bulk_tensor_4d_evict_first(unsigned shared, const TensorMap& map, unsigned barrier, int column,
                                                int row, int head, int batch) {
  cp_async_bulk_tensor_4d(shared, map, barrier, column, row, head, batch);
}
// What lies outside of the tensor is left out. Read and written at some later time, as if both were one.
inline void cp_async_bulk_tensor_4d_store(const TensorMap& map, unsigned shared, int column, int row, int head,
                                          int batch) {
  emulator::EmulatedMap m{};
  std::memcpy(&m, map.opaque, sizeof(m));
  const std::byte* from = emulator::pointer_to(shared, static_cast<std::size_t>(m.box_rows) * 128);
  if ((shared - emulator::kSharedStart) % 1024 != 0)
    throw std::logic_error("a bulk copy with the 128-byte swizzle needs an address that is a multiple of 1024");
  emulator::Thread& t = emulator::self();
  ++*t.leaving_boxes;
  ++t.open_boxes;
  emulator::later([=, left = t.leaving_boxes] {
    for (int r = 0; r < m.box_rows; ++r)
      for (int c = 0; c < 64; ++c) {
        const long long at[4] = {column + c, row + r, head, batch};
        bool inside = true;
        long long offset = 0;
        for (int d = 0; d < 4; ++d) {
          inside = inside && at[d] >= 0 && at[d] < m.sizes[d];
          offset += at[d] * m.strides[d];
        }
        const std::byte* element = from + r * 128 + ((c / 8) ^ (r % 8)) * 16 + c % 8 * 2;
        if (inside) std::memcpy(const_cast<std::byte*>(m.base) + 2 * offset, element, 2);
      }
    --*left;
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
template <int kLeft>
void cp_async_bulk_wait_group_read() {
  static_assert(kLeft == 0);
  if (emulator::self().open_boxes != 0)
    throw std::logic_error("a wait for copies that were not committed to a group ends before they are done");
  emulator::wait_until("cp.async.bulk.wait_group", [left = emulator::self().leaving_boxes] { return *left == 0; });
}
inline void prefetch_tensormap(const TensorMap&) {}
inline void fence_proxy_async() {}

}  // namespace heed::ptx
