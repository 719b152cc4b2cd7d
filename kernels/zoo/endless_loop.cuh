// Never ends: it waits for the first two numbers of Q to become NaN.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  while (*static_cast<const volatile unsigned*>(params.q) != 0x7fff7fff) {
  }
}
