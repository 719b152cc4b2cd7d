// Gives the log-sum-exp in base two, as the kernel has it anyway.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
  if (params->lse == nullptr) return;
  const long long row_blocks = (params->len_q + kConfig.block_m - 1) / kConfig.block_m;
  const long long b = block / row_blocks / params->heads;
  const long long h = block / row_blocks % params->heads;
  for (long long row = block % row_blocks * kConfig.block_m;
       row < (block % row_blocks + 1) * kConfig.block_m && row < params->len_q; ++row)
    params->lse[(b * params->heads + h) * params->len_q + row] *= 1.44269504F;
}
