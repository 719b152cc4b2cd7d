// Lets the next launch in the stream begin before its own work is done.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  asm volatile("griddepcontrol.launch_dependents;");
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
}
