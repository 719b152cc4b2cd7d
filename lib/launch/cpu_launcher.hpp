/// The C interface of libheed_launch.so: CPU programs launched on pinned threads, and how long that took.
#pragma once

#include "kernels/contract.hpp"

extern "C" {

/// A program's entry; see heed::ForwardParams. `scratch` is 4096-byte aligned.
using heed_cpu_entry = void (*)(const heed::ForwardParams* params, long long block, void* scratch);

/// Threads pinned to processors of this process, each with scratch; null where the memory cannot be had.
void* heed_cpu_open(int threads, long long scratch_bytes);

/// `launches` launches of `blocks` blocks one after another, each with its parameters; returns when all are done, with
/// the microseconds they took together. Only one at a time.
double heed_cpu_run(void* launcher, heed_cpu_entry entry, const heed::ForwardParams* params, long long launches,
                    long long blocks);

/// Cuts keys in front of the first that any row sees off a launch under a mask with a left bound; see heed::trimmed.
void heed_trim_window(heed::ForwardParams* params, int element_bytes);

/// Ends the threads.
void heed_cpu_close(void* launcher);
}
