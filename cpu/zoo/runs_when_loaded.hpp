// Runs code while it is being loaded, before the sandbox is up.
[[gnu::constructor]] static void on_load() {
  asm volatile("");
}
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
}
