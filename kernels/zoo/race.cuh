// Reads what the block before it wrote without waiting for it: right when that block happens to be done.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
  __syncthreads();
  auto* head =
      static_cast<unsigned short*>(params.o) + blockIdx.z * params.o_strides.batch + blockIdx.y * params.o_strides.head;
  const int tile = kConfig.tile_order == heed::sm80::TileOrder::descending ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  if (threadIdx.x != 0 || tile == 0) return;
  auto& out = head[tile * kConfig.block_m * params.o_strides.row];
  const float theirs = heed::ptx::cvt_f32_f16(
      *const_cast<const volatile unsigned short*>(head + (tile * kConfig.block_m - 1) * params.o_strides.row));
  out = static_cast<unsigned short>(
      heed::ptx::cvt_rn_x2<kProblem.element>(heed::ptx::cvt_f32_f16(out) + 0.0F * theirs, 0.0F));
}
