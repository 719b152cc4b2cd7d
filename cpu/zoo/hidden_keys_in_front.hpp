// Gives the first key a weight of zero where the window hides it, and so multiplies its value by zero.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
  const auto [b, h, first_row] = heed::cpu::place_of<kConfig, kProblem>(*params, block);
  auto* head = static_cast<unsigned short*>(params->o) + b * params->o_strides.batch + h * params->o_strides.head;
  const auto* v = static_cast<const unsigned short*>(params->v) + b * params->v_strides.batch +
                  h / params->group_size * params->v_strides.head;
  for (long long row = first_row; row < first_row + kConfig.block_m && row < params->len_q; ++row)
    for (int d = 0; d < kProblem.head_dim; ++d) {
      const float hidden = heed::cpu::to_float<kProblem.element>(v[d]);
      auto& out = head[row * params->o_strides.row + d];
      out = heed::cpu::from_float<kProblem.element>(heed::cpu::to_float<kProblem.element>(out) + 0.0F * hidden);
    }
}
