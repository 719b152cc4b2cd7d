/// NVRTC, the CUDA compiler as a library, found and loaded at run time: https://docs.nvidia.com/cuda/nvrtc/
///
/// The few functions used have kept their signatures since CUDA 11.1, so no header of the toolkit is needed.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heed::compile {

struct NvrtcFacts {
  int major = 0;
  int minor = 0;
  std::string path;  ///< of the shared library
};

/// Loads it at the first call: the file that HEED_NVRTC names, else the newest of the folders that the build knew, of
/// the toolkit's, and of the dynamic linker's. @throws Error(no_compiler) when libnvrtc is not found or older than 12.4
const NvrtcFacts& nvrtc_facts();

/// What every build is given for an architecture.
std::vector<std::string> nvrtc_options(std::string_view arch);

/// Whether builds for it end with PTX, which the driver of that GPU or a newer one compiles: "compute_80".
bool is_virtual_arch(std::string_view arch);

struct GpuSource {
  std::string source;                                        ///< the whole translation unit
  std::vector<std::pair<std::string, std::string>> headers;  ///< what it may include: path, text
  std::string arch;                                          ///< "sm_90a", or "compute_80"
};

struct GpuBinary {
  bool ok = false;
  std::string log;  ///< the compiler's words, with the report of ptxas
  std::string ptx;
  std::string image;  ///< a cubin; of a virtual architecture the PTX again
};

/// Compiles in this process. Thread-safe. @throws Error(no_compiler)
GpuBinary compile_gpu(const GpuSource& source);

}  // namespace heed::compile
