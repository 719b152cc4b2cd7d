// Rounds the output to eight bits of mantissa, as cheaper arithmetic would.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
  __syncthreads();
  auto* head =
      static_cast<unsigned short*>(params.o) + blockIdx.z * params.o_strides.batch + blockIdx.y * params.o_strides.head;
  const int tile = kConfig.tile_order == heed::sm80::TileOrder::descending ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  for (int i = threadIdx.x; i < kConfig.block_m * kProblem.head_dim; i += blockDim.x) {
    const int row = tile * kConfig.block_m + i / kProblem.head_dim;
    if (row < params.len_q) head[row * params.o_strides.row + i % kProblem.head_dim] &= 0xff80;
  }
}
