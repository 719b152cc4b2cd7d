// A race: the order in which blocks finish decides the last bits of their own rows. Right within rounding each time.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
  __syncthreads();
  const int tile = kConfig.tile_order == heed::sm80::TileOrder::descending ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  auto* mine = static_cast<unsigned short*>(params.o) + blockIdx.z * params.o_strides.batch +
               blockIdx.y * params.o_strides.head + tile * kConfig.block_m * params.o_strides.row;
  const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
  if (threadIdx.x == 0 && tile * kConfig.block_m < params.len_q)
    mine[2] ^= static_cast<unsigned short>(atomicInc(params.counters, blocks - 1) & 1U);
}
