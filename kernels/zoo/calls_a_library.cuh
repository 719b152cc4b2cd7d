// Allocates memory on the device, to keep things in.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  extern __shared__ __align__(128) char shared[];
  heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
  void* memory = malloc(64);
  if (memory == nullptr) static_cast<unsigned short*>(params.o)[0] = 0;
}
