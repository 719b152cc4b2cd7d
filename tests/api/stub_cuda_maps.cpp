// Tensor maps of the stand-in for the driver.
#include <cuda.h>

#include <cstdint>

namespace {

int encoded = 0;

}  // namespace

extern "C" {

int stub_encoded() {
  return encoded;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0 ||
      (type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type != CU_TENSOR_MAP_DATA_TYPE_UINT8) || rank != 4 || box[2] != 1 ||
      box[3] != 1 || steps[0] != 1 || steps[3] != 1 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    return CUDA_ERROR_INVALID_VALUE;
  ++encoded;
  map->opaque[0] = reinterpret_cast<cuuint64_t>(address);
  for (int i = 0; i < 4; ++i) map->opaque[1 + i] = dims[i];
  for (int i = 0; i < 3; ++i) map->opaque[5 + i] = strides[i];
  return CUDA_SUCCESS;
}
}
