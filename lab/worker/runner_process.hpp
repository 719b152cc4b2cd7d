/// The inside of a runner: what a worker's fork becomes before it runs a candidate, and the memory it shares with the
/// worker.
///
/// Everything here runs in a process whose libraries, heap and first stack are unmapped. The functions lie in a section
/// of their own, which stays mapped, and use nothing beyond it: no library, no thread-local variable, no constant in
/// memory. CMakeLists.txt compiles the file with what that takes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/features.hpp"

namespace heed::worker {

/// Entry of a CPU candidate; see ForwardParams. `scratch` is 64-byte aligned.
using CpuEntry = void (*)(const ForwardParams* params, long long block, void* scratch);

/// One launch: entry(params, block, scratch) for every block in [0, blocks).
struct CpuLaunch {
  FeatureParams params;
  long long blocks = 0;
};

namespace inside {

/// Written by the worker alone; a runner maps it read-only.
struct alignas(64) Command {
  std::uint32_t generation;  ///< changes when the next sequence of launches shall run; futex
  std::uint32_t launches;    ///< how many from the front of the list
  std::uint32_t may_start;   ///< not zero: threads may be started; futex
};

/// Written by the runner, and by a candidate that finds it: claims, to be checked where they matter. What lies between
/// its fields, and between those of Progress, stays zero.
struct alignas(64) Status {
  std::uint32_t finished;       ///< generation whose launches are done; futex
  std::uint32_t threads_ready;  ///< futex
  std::uint32_t confined;       ///< 1: no more system calls, ready for a sequence; futex
  std::uint32_t control_changed;
  std::uint32_t failed_step;  ///< a Step; the process has ended
  std::int32_t failed_errno;
};

/// Progress of one launch, zero before a sequence begins.
struct alignas(64) Progress {
  long long next_block;
  int arrived;  ///< threads that are done with it
};

struct Range {
  std::uintptr_t address;
  std::size_t bytes;
};

/// A part of the worker's shared memory that stays in reach.
struct View {
  std::uintptr_t address;
  std::size_t bytes;
  bool writable;
};

struct Thread {
  std::uintptr_t stack_top;
  std::byte* scratch;
  int processor;  ///< -1: not pinned
};

enum class Step : std::uint32_t {
  none,
  leave_parent,
  unregister_rseq,
  protect_memory,
  close_files,
  unmap_memory,
  pin_thread,
  close_clock,
  no_new_privileges,
  start_thread,
  load_filter,
};

/// What XRSTOR reads to bring registers to their initial state: the legacy region, with MXCSR alone not zero, and a
/// header that names no component (Intel SDM, vol. 1, 13.4). Processors fault where the place of a component that is
/// asked for is not mapped, initial or not: 11,008 bytes with AMX, 2,440 with AVX2.
struct alignas(64) InitialRegisters {
  std::byte bytes[16384];
};
constexpr std::size_t kMxcsrAt = 24;

/// Everything a runner needs to know, in shared memory.
struct Plan {
  Command* command;
  Status* status;
  Progress* progress;
  const CpuLaunch* launches;
  const Thread* threads;
  int thread_count;
  CpuEntry entry;
  int parent;
  std::uintptr_t rseq;  ///< of the forking thread; 0: none
  const View* views;
  std::size_t view_count;
  const Range* unmapped;
  std::size_t unmapped_count;
  const void* filter;  ///< a sock_fprog
  InitialRegisters initial_registers;
  std::uint64_t register_components;  ///< of XCR0, cleared behind each launch; 0: the processor has no XSAVE
  std::uint64_t has_segment_bases;    ///< not zero: programs may write the bases of FS and GS
  std::uint32_t has_protection_keys;  ///< not zero: programs may write PKRU
  std::uint32_t protection_rights;    ///< what PKRU holds outside of candidates
  std::size_t stack_bytes;            ///< of a thread
};

/// Turns the calling process, a fresh fork, into a runner. Does not return.
[[noreturn]] void become_runner(const Plan* plan);

/// Says in the plan which registers of this processor are cleared behind each launch. For the worker.
void describe_registers(Plan& plan);

/// The pages that hold these functions.
Range code_of_the_runner();

}  // namespace inside
}  // namespace heed::worker
