// Leaves a mark in the padding after each head, where there is some.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
  auto* head =
      static_cast<unsigned short*>(params.o) + blockIdx.z * params.o_strides.batch + blockIdx.y * params.o_strides.head;
  if (threadIdx.x == 0 && params.o_strides.head > params.len_q * params.o_strides.row)
    head[params.len_q * params.o_strides.row] = 0;
}
