// May begin before the launch before it has ended, lets the next do the same, and never waits.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  asm volatile("griddepcontrol.launch_dependents;");
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
}
