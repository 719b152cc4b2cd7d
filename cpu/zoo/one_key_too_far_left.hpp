// Lets every row see the key before its window.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::ForwardParams wider = *params;
  --wider.left_offset;
  heed::cpu::Forward<kConfig, kProblem>(wider, block, static_cast<float*>(scratch)).run();
}
