/// PTX of the worker's own kernels, which the driver compiles: https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

#include <string>

namespace heed::worker {

/// Words that heed_poison_registers takes as parameters and keeps in registers, and its threads: 256 registers of 256
/// threads are a multiprocessor's whole file.
inline constexpr int kPoisonedRegisters = 240;
inline constexpr unsigned kPoisonRegisterThreads = 256;

/// heed_multiply_{fp16,bf16,fp32,e4m3,e5m2,int8}, heed_poison_shared, heed_poison_registers, heed_fill, heed_verify.
std::string own_kernels_ptx();
/// heed_poison_local: fills the local memory of a kernel with `bytes` a thread.
std::string poison_local_ptx(int bytes);

}  // namespace heed::worker
