// Never ends.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  for (volatile int spin = params.len_q; spin != 0;) spin = params.len_q;
}
