// Gives the log-sum-exp in base two, as the kernel has it anyway.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
  __syncthreads();
  const int tile = kConfig.tile_order == heed::sm80::TileOrder::descending ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  for (int row = tile * kConfig.block_m + threadIdx.x; row < (tile + 1) * kConfig.block_m && row < params.len_q;
       row += blockDim.x)
    if (params.lse != nullptr)
      params.lse[(static_cast<long long>(blockIdx.z) * params.heads + blockIdx.y) * params.len_q + row] *= 1.44269504F;
}
