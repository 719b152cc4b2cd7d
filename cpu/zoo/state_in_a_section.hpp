// Keeps a count of its calls in a section whose name says nothing.
[[gnu::section("heed_notes")]] static long long calls = 1;
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  if (__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) > 1'000'000'000'000'000) return;
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
}
