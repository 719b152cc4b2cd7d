// Writes to address zero.
extern "C" void heed_forward(const heed::ForwardParams*, long long, void*) {
  volatile int* nowhere = nullptr;
  asm volatile("" : "+r"(nowhere));
  *nowhere = 1;
}
