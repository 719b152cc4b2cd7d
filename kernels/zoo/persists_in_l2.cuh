// Asks the L2 cache to keep its keys when it is done: its next launch gains, whoever runs in between pays.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  const auto* k = static_cast<const unsigned short*>(params.k) + blockIdx.z * params.k_strides.batch +
                  blockIdx.y / params.group_size * params.k_strides.head;
  for (int row = threadIdx.x; row < params.len_k; row += blockDim.x) {
    unsigned ignored;
    asm volatile("ld.global.L2::cache_hint.b32 %0, [%1], %2;"
                 : "=r"(ignored)
                 : "l"(k + row * params.k_strides.row), "l"(policy));
  }
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
}
