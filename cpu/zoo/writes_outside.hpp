// Right, but leaves a mark just past the end of the output.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
  if (block == 0) static_cast<unsigned short*>(params->o)[params->batch * params->o_strides.batch + 3] = 0;
}
