// Right within rounding, but other bits each time, although the family declares determinism.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
  // An address inside the arena differs from launch to launch only if something moves; a hardware random bit always
  // does.
  unsigned bit = 0;
#if defined(__x86_64__)
  unsigned char ready = 0;
  asm volatile("rdrand %0; setc %1" : "=r"(bit), "=qm"(ready)::"cc");
#endif
  const long long row_blocks = (params->len_q + kConfig.block_m - 1) / kConfig.block_m;
  auto& out = static_cast<unsigned short*>(params->o)[block / row_blocks / params->heads * params->o_strides.batch +
                                                      block / row_blocks % params->heads * params->o_strides.head +
                                                      block % row_blocks * kConfig.block_m * params->o_strides.row];
  out ^= static_cast<unsigned short>(bit & 1);
}
