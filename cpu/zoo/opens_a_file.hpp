// Asks the system for a file: open("/etc/passwd").
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
#if defined(__x86_64__)
  char path[12] = {'/', 'e', 't', 'c', '/', 'p', 'a', 's', 's', 'w', 'd', 0};
  long result = 2;
  asm volatile("syscall" : "+a"(result) : "D"(path), "S"(0), "d"(0) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
  char path[12] = {'/', 'e', 't', 'c', '/', 'p', 'a', 's', 's', 'w', 'd', 0};
  register long number asm("x8") = 56;
  register long folder asm("x0") = -100;
  register const char* name asm("x1") = path;
  register long flags asm("x2") = 0;
  asm volatile("svc 0" : "+r"(folder) : "r"(number), "r"(name), "r"(flags) : "memory");
#endif
}
