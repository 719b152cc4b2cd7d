// Takes every causal mask for top-left: right for square problems.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::ForwardParams square = *params;
  square.right_offset = 0;
  heed::cpu::Forward<kConfig, kProblem>(square, block, static_cast<float*>(scratch)).run();
}
