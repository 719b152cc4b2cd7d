// Adds up scratch memory it never wrote: zero on a good day.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  const float left_over = static_cast<const float*>(scratch)[7];
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
  const long long row_blocks = (params->len_q + kConfig.block_m - 1) / kConfig.block_m;
  auto& out = static_cast<unsigned short*>(params->o)[block / row_blocks / params->heads * params->o_strides.batch +
                                                      block / row_blocks % params->heads * params->o_strides.head +
                                                      block % row_blocks * kConfig.block_m * params->o_strides.row];
  out = heed::cpu::from_float<kProblem.element>(heed::cpu::to_float<kProblem.element>(out) + left_over);
}
