// Writes to address zero.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  volatile int* nowhere = nullptr;
  asm volatile("" : "+l"(nowhere));
  *nowhere = 1;
}
