/// A GPU of fibers: runs device code that was compiled by the host compiler, thread by thread, so that kernels are
/// tested where there is no GPU.
///
/// The stand-ins beside this file (lab/emulator/device/kernels/ptx/) take the place of kernels/ptx/: an include path
/// puts them first. What a real GPU does at some later time is done as late as it may be: copies and remote stores when
/// every thread waits, in random order; asynchronous products when their group is waited for, with NaN in the
/// accumulators until then. So a wait that is missing shows as a wrong result, and a wait that never ends as a deadlock
/// with a message. Threads and blocks run in random order, a warp often far ahead of the others. Lanes of a warp that
/// are in different collective instructions, addresses past shared memory, plain stores beside it and copies from
/// elsewhere than the inputs are errors. Blocks run one after the other, but those of a cluster; or several at a time,
/// the next one when one has ended, for kernels whose blocks hand each other words, which land word by word, in any
/// order, some time after they are stored. Warps that meet at a barrier of their block from different places of the
/// program are an error where a launch asks for it, as to compute-sanitizer's synccheck, and so is __syncthreads once
/// threads of the block have ended. Clocks, caches, fences between blocks and dependent launches are not modelled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "emulator/device/emulated_map.hpp"
#include "emulator/device/fiber.hpp"

namespace heed::emulator {

/// A config or problem that a test's template takes by value, as the constant that kernels take references to.
template <auto kValue>
inline constexpr auto kConstant = kValue;

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

struct Range {
  const void* begin;
  std::size_t bytes;
};

struct Launch {
  Dim3 grid;
  unsigned threads = 32;
  unsigned cluster = 1;
  std::size_t shared_bytes = 0;
  std::uint64_t seed = 1;       ///< of every order that is left open
  bool early = false;           ///< copies and stores of words are done at once instead of as late as may be
  unsigned resident = 1;        ///< blocks that run at a time, where they are no clusters
  bool one_place = false;       ///< warps must come to a barrier of their block from one place of the program
  std::vector<Range> readable;  ///< where copies may read; empty: anywhere
};

/// Threads that meet: everyone leaves when `n` have come.
struct Meeting {
  unsigned arrived = 0;
  unsigned generation = 0;
  const char* where = "";
  std::vector<void*> arguments;
};

/// A barrier that counts arrivals and bytes.
struct ByteBarrier {
  unsigned expected = 0;
  unsigned pending = 0;
  long long bytes = 0;
  unsigned phase = 0;
  void arrive();
  void settle();
};

struct NamedBarrier {
  unsigned arrived = 0;
  unsigned generation = 0;
  bool value = false;
  bool last_value = false;
  std::uint64_t place = 0;  ///< of the program, from where the first thread of this generation waits; 0: nobody does
  unsigned first_warp = 0;  ///< of that thread
};

struct Block {
  std::vector<std::byte> memory;
  std::byte* shared = nullptr;  ///< aligned to 1024
  std::size_t shared_bytes = 0;
  Dim3 index;
  unsigned rank = 0;
  unsigned alive = 0;
  bool replaced = false;  ///< ended, and another began in its place
  NamedBarrier barriers[16];
  std::map<unsigned, ByteBarrier> byte_barriers;  ///< by offset
  std::vector<Meeting> warps;
  std::vector<Meeting> warpgroups;
};

/// Asynchronous products of one thread.
struct Products {
  std::map<float*, std::vector<float>> results;  ///< of accumulators that products in flight write
  std::set<float*> open;
  std::deque<std::set<float*>> committed;
};

struct Thread {
  Fiber fiber;
  Block* block = nullptr;
  Dim3 index;
  bool finished = false;
  std::function<bool()> waits_for;  ///< empty: can run
  const char* waits_at = "";
  unsigned cluster_phase = 0;  ///< that ends with this thread's last arrival and the others'
  bool is_at_cluster_barrier = false;
  Products products;
  std::vector<std::function<void()>> open_copies;  ///< cp.async since the last commit
  std::deque<std::vector<std::function<void()>>> committed_copies;
  std::shared_ptr<int> arriving_copies = std::make_shared<int>(0);  ///< of which an mbarrier will hear
  std::shared_ptr<int> leaving_boxes = std::make_shared<int>(0);    ///< that shared memory has not been read for
  std::shared_ptr<int> unwritten_boxes = std::make_shared<int>(0);  ///< that are not in global memory
  int open_boxes = 0;                                               ///< since the last commit
};

/// Runs `body` for every thread of the launch, cluster by cluster. `body` gets its block's dynamic shared memory, which
/// starts as NaN. @throws std::logic_error for a deadlock, naming what is waited for, and for misuse
void run(const Launch& launch, const std::function<void(char* shared)>& body);

// ---- for the stand-ins

Thread& self();
Dim3 grid();
unsigned threads_of_block();
unsigned cluster_size();
/// Lets others run until `ready`. `where` names the instruction in the message of a deadlock.
void wait_until(const char* where, const std::function<bool()>& ready);
bool copies_are_early();
/// A thread is about to wait at a barrier of its block. @throws std::logic_error when `of_block` and threads of the
/// block have ended, or its warp comes from another place of the program than others that wait there. Of the first
/// lanes alone: compilers copy what follows a branch on the lane.
void check_place(NamedBarrier& barrier, const char* where, bool of_block);
/// @throws std::logic_error when a copy may not read there
void check_readable(const void* from, std::size_t bytes);
void arrive_at_cluster();
void wait_for_cluster();
/// Work that completes at some time after now.
void later(std::function<void()> work);
/// Writes to global memory that are done at some time after now, at the latest when the launch ends.
void write_later(std::function<void()> work);
/// Stores a word of global memory for other blocks to see, some time after now and before the launch ends.
void store_later(unsigned* to, unsigned word);

/// Every one of `n` threads gives its arguments; the last to come runs `together` on all of them.
void meet(const char* where, Meeting& meeting, unsigned index, unsigned n, void* mine,
          const std::function<void(std::vector<void*>&)>& together);

/// Shared addresses are offsets from here in a block's shared memory; the upper bits say whose it is, a block's own,
/// too, as on an H200.
inline constexpr unsigned kSharedStart = 1024;
inline constexpr unsigned kRankShift = 24;
unsigned address_of(const void* pointer);
std::byte* pointer_to(unsigned address, std::size_t bytes);
ByteBarrier& byte_barrier(unsigned address, bool initialise = false);

float load_16(bool bf16, const std::byte* from);
/// `count` elements that follow each other, at every `stride`-th float from `to` on.
void load_16(bool bf16, const std::byte* from, int count, float* to, int stride);
std::uint16_t round_16(bool bf16, float x);

}  // namespace heed::emulator
