// Runs code while it is being loaded, by the name of a function.
extern "C" void _init() {
  asm volatile("");
}
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
}
