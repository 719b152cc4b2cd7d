/// kernels/ptx/memory.cuh on the host.
#pragma once

#include "device.hpp"

namespace heed::ptx {

/// Addresses of shared memory count from its start.
inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(static_cast<const char*>(pointer) - emulated::block().shared());
}
inline void cp_async_cg_16(unsigned shared, const void* global, int bytes) {
  emulated::block().start_copy(shared, global, bytes);
}
inline void cp_async_commit_group() {
  emulated::block().commit_group();
}
template <int kPending>
void cp_async_wait_group() {
  emulated::block().wait_group(kPending);
}
inline void ldmatrix(unsigned (&r)[4], unsigned shared, bool transposed) {
  auto& block = emulated::block();
  block.mine().in[0] = shared;
  block.warp(transposed ? "ldmatrix.trans" : "ldmatrix", [&] {
    for (int matrix = 0; matrix < 4; ++matrix) {
      std::uint16_t values[8][8];
      for (int row = 0; row < 8; ++row)
        std::memcpy(values[row], block.at(block.of_lane(8 * matrix + row).in[0], 16), 16);
      for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4;
        const int column = 2 * (lane % 4);
        const unsigned low = transposed ? values[column][row] : values[row][column];
        const unsigned high = transposed ? values[column + 1][row] : values[row][column + 1];
        block.of_lane(lane).out[matrix] = low | high << 16;
      }
    }
  });
  for (int i = 0; i < 4; ++i) r[i] = block.mine().out[i];
}
inline void ldmatrix_x4(unsigned (&r)[4], unsigned shared) {
  ldmatrix(r, shared, false);
}
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned shared) {
  ldmatrix(r, shared, true);
}
inline void bar_sync(int id, int threads) {
  emulated::block().barrier(id, threads);
}

}  // namespace heed::ptx
