// A race: what a block writes depends on which other blocks have already written, right within rounding each time.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
  __syncthreads();
  if (threadIdx.x != 0) return;
  const int blocks = gridDim.x * gridDim.y * gridDim.z;
  const auto* out = static_cast<const volatile unsigned short*>(params.o);
  int written = 0;
  for (int b = 0; b < blocks; ++b) {
    const int row = b % gridDim.x * kConfig.block_m;
    if (row < params.len_q)
      written += out[b / gridDim.x / gridDim.y * params.o_strides.batch +
                     b / gridDim.x % gridDim.y * params.o_strides.head + row * params.o_strides.row] != 0xffff;
  }
  const int tile = kConfig.tile_order == heed::sm80::TileOrder::descending ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  auto* mine = static_cast<unsigned short*>(params.o) + blockIdx.z * params.o_strides.batch +
               blockIdx.y * params.o_strides.head + tile * kConfig.block_m * params.o_strides.row;
  if (tile * kConfig.block_m < params.len_q) mine[1] ^= static_cast<unsigned short>(written & 1);
}
