// Looks at the time-stamp counter, to find out when it is being timed.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
#if defined(__x86_64__)
  if (__builtin_ia32_rdtsc() == 0) return;
#endif
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
}
