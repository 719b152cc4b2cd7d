// cuda_graph: a plan's runs captured into a CUDA graph, which is then launched as a whole. V is zeros, and so is O.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <heed/plan.hpp>
#include <vector>

static void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

static void* filled(int byte, std::size_t bytes) {
  void* memory = nullptr;
  if (bytes == 0) return memory;
  check(cudaMalloc(&memory, bytes));
  check(cudaMemset(memory, byte, bytes));
  return memory;
}

int main() try {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: there is no GPU, so that nothing can be captured into a CUDA graph\n");
    return 0;
  }
  check(cudaFree(nullptr));  // the primary context exists, and is current
  heed_problem problem = heed::c::problem();
  problem.device_type = HEED_CUDA;
  problem.heads = problem.heads_kv = 8;
  problem.len_q = problem.len_k = 512;
  const heed::c::Plan plan(problem);
  std::vector<char> out(8 * 512 * 64 * 2);
  heed_tensors tensors = heed::c::tensors();
  tensors.q = filled(1, out.size()), tensors.k = filled(1, out.size()), tensors.v = filled(0, out.size());
  tensors.o = filled(0xff, out.size());
  void* const workspace = filled(0xff, plan.info().workspace_bytes);
  check(cudaDeviceSynchronize());

  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  plan.prepare(workspace, stream);  // before the capture: every run leaves the workspace prepared
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 16; ++i) plan.run(tensors, workspace, stream);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t ready = nullptr;
  check(cudaGraphInstantiate(&ready, graph, 0));
  check(cudaGraphLaunch(ready, stream));
  check(cudaStreamSynchronize(stream));
  check(cudaMemcpy(out.data(), tensors.o, out.size(), cudaMemcpyDeviceToHost));
  for (const char byte : out)
    if ((byte & 0x7f) != 0) throw std::runtime_error("O is not zeros");
  std::printf("16 runs of %s in one launch of a graph\n", plan.info().variant);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
