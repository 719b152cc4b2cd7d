// Counts its launches in a counter that it should leave at zero.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
  if (block == 0) ++params->counters[2];
}
