/* attention [cpu|gpu]: fp32, or bf16 in memory that host and GPU share. All keys have one value row: O's rows are it.
 */
#include <heed/heed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef WITH_CUDA
#include <cuda_runtime_api.h>
#endif

static void* take(int gpu, size_t bytes) {
#ifdef WITH_CUDA
  void* shared = NULL;
  if (gpu) return cudaMallocManaged(&shared, bytes, cudaMemAttachGlobal) == cudaSuccess ? shared : NULL;
#endif
  return gpu ? NULL : aligned_alloc(256, (bytes + 255) / 256 * 256);
}
static int failed(const char* what, const char* why) {
  return fprintf(stderr, "%s: %s\n", what, why), 1;
}

int main(int argc, char** argv) {
  const int gpu = argc > 1 && strcmp(argv[1], "gpu") == 0;
  heed_problem problem;
  heed_problem_init(&problem);
  problem.device_type = gpu ? HEED_CUDA : HEED_CPU;
  problem.heads = problem.heads_kv = 4;
  problem.len_q = problem.len_k = 128;
  problem.dtype_q = problem.dtype_k = problem.dtype_v = problem.dtype_o = gpu ? HEED_BF16 : HEED_FP32;
  heed_plan* plan = NULL;
  heed_plan_info info;
  heed_plan_info_init(&info);
  if (heed_plan_create(&problem, NULL, &plan) != HEED_OK || heed_plan_get_info(plan, &info) != HEED_OK)
    return failed("no plan", heed_last_error());
  printf("%s\n%s\n", info.variant, info.reason);
  const size_t count = 4 * 128 * 64, element = gpu ? 2 : 4, skip = 4 - element; /* bf16: half an fp32 */
  char* qkv[] = {take(gpu, count * element), take(gpu, count * element), take(gpu, count * element)};
  char *o = take(gpu, count * element), *workspace = take(gpu, info.workspace_bytes + 1);
  if (!qkv[0] || !qkv[1] || !qkv[2] || !o || !workspace) return failed("no memory", gpu ? "of a GPU" : "of the host");
  for (size_t i = 0; i < count; ++i) {
    const float values[] = {(float)(i % 7) / 8, (float)(i % 5) / 4, (float)(i % 64) / 64};
    for (int t = 0; t < 3; ++t) memcpy(qkv[t] + i * element, (const char*)&values[t] + skip, element);
  }
  heed_tensors tensors;
  heed_tensors_init(&tensors);
  tensors.q = qkv[0], tensors.k = qkv[1], tensors.v = qkv[2], tensors.o = o;
  if (heed_plan_prepare(plan, workspace, NULL) != HEED_OK || heed_plan_run(plan, &tensors, workspace, NULL) != HEED_OK)
    return failed("not run", heed_last_error());
#ifdef WITH_CUDA
  if (gpu && cudaDeviceSynchronize() != cudaSuccess) return failed("not run", "the GPU failed");
#endif
  heed_plan_destroy(plan);
  for (size_t i = 0; i < count; ++i) {
    float out = 0;
    memcpy((char*)&out + skip, o + i * element, element);
    if (!((out -= (float)(i % 64) / 64) < 0.01f && out > -0.01f)) return failed("O", "is wrong");
  }
  return puts("O is right") < 0;
}
