// Right, but leaves a mark just past the end of the output.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
  if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0)
    static_cast<unsigned short*>(params.o)[params.batch * params.o_strides.batch + 3] = 0;
}
