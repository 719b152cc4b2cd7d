// long_context.cpp: a context of four times the memory that a device is granted. All keys are the same, so that a row
// is the mean of the values, which are 1 and 3 in turn. The device is simulated; "cuda" takes a GPU.
#include <cstdio>
#include <heed/offload.hpp>
#include <string_view>
#include <vector>
#ifdef WITH_CUDA
#include <cuda_runtime_api.h>
#endif

int main(int argc, char** argv) try {
  constexpr int kTokens = 1024;
  constexpr int kDim = 64;
  heed_offload_config config = heed::c::offload_config();
  config.device_type = argc > 1 && std::string_view(argv[1]) == "cuda" ? HEED_CUDA : HEED_CPU;
  config.dtype = HEED_FP32;
  config.host_pages = kTokens / config.page_size;
  config.device_pages = config.host_pages / 4;
  heed::c::Offload pool(config);
  const std::int64_t sequence = pool.add();

  constexpr std::size_t kElements = std::size_t{kTokens} * kDim;
  std::vector<float> all(2 * kElements + 2 * kDim, 1);  // K, V, a row of Q and one of O
  for (std::size_t i = 0; i < kElements; ++i) all[kElements + i] = i / kDim % 2 == 0 ? 1 : 3;
  float* at = all.data();
#ifdef WITH_CUDA
  const std::size_t bytes = all.size() * sizeof(float);
  if (config.device_type == HEED_CUDA) {
    cudaMalloc(reinterpret_cast<void**>(&at), bytes);
    cudaMemcpy(at, all.data(), bytes, cudaMemcpyHostToDevice);
  }
#endif
  heed_offload_call call = heed::c::offload_call();
  call.batch = 1;
  call.sequences = &sequence;
  call.len_k = kTokens;
  call.k = at;
  call.v = at + kElements;
  call.len_q = 1;
  call.q = at + 2 * kElements;
  call.o = at + 2 * kElements + kDim;
  pool.decode(call);
#ifdef WITH_CUDA
  if (config.device_type == HEED_CUDA) cudaMemcpy(all.data(), at, bytes, cudaMemcpyDeviceToHost);
#endif
  std::printf("%sa row is %g, the mean of 1 and 3\n", pool.explain({sequence}).c_str(), all.back());
  return all.back() > 1.999 && all.back() < 2.001 ? 0 : 1;
} catch (const heed::c::Error& error) {
  std::fprintf(stderr, "%s: %s\n", heed_status_name(error.status()), error.what());
  return 1;
}
