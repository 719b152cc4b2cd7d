// Leaves a mark in the padding after each head, where there is some.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
  const long long row_blocks = (params->len_q + kConfig.block_m - 1) / kConfig.block_m;
  const long long b = block / row_blocks / params->heads;
  const long long h = block / row_blocks % params->heads;
  auto* head = static_cast<unsigned short*>(params->o) + b * params->o_strides.batch + h * params->o_strides.head;
  if (params->o_strides.head > params->len_q * params->o_strides.row) head[params->len_q * params->o_strides.row] = 0;
}
