/// A thread block on the host: every GPU thread is a fiber, and what a warp or a block does together (ldmatrix, mma,
/// shuffles, barriers) is done when the last of them has arrived. Kernels under kernels/ compile against this with the
/// headers beside it in place of kernels/ptx, so that their own code, index arithmetic and waits run without a GPU.
///
/// Asynchronous copies land as early as they may (when they are started) or as late as they may (when their thread
/// waits for them), whichever a test asks for, and threads run in random order, or one warp far ahead of another: a
/// missing wait or barrier shows. Misuse (lanes of a warp in different instructions, addresses outside of shared
/// memory, copies from memory the test did not declare) throws once the block is done.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"

#define __device__
#define __forceinline__ inline

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline float __int_as_float(int bits) {
  float f = 0;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
inline int __float_as_int(float f) {
  int bits = 0;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}
using std::fma;
using std::min;
inline float fmaf(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float fmaxf(float a, float b) {
  return std::fmax(a, b);
}

inline dim3 threadIdx{};
inline dim3 blockIdx{};
inline dim3 gridDim{};

namespace emulated {

enum class Copies { land_early, land_late };

/// What a lane brings to a collective instruction, and what it takes away.
struct Exchange {
  const char* operation = "";
  unsigned in[8] = {};
  float accumulator[4] = {};
  unsigned out[4] = {};
};

class Block {
 public:
  struct Range {
    const char* begin;
    std::size_t bytes;
  };

  Block(int threads, std::size_t shared_bytes, std::vector<Range> readable, Copies copies, std::uint64_t seed)
      : shared_(shared_bytes + 128), readable_(std::move(readable)), copies_(copies), random_(seed) {
    std::memset(shared_.data(), 0xff, shared_.size());  // NaN
    fibers_.resize(static_cast<std::size_t>(threads));
    bytes_ = shared_bytes;
  }

  /// The block's shared memory, aligned to 128.
  char* shared() {
    const auto address = reinterpret_cast<std::uintptr_t>(shared_.data());
    return shared_.data() + (128 - address % 128) % 128;
  }
  char* at(unsigned address, unsigned bytes) {
    if (address + bytes > bytes_ || address % bytes != 0) {
      fail("shared memory at " + std::to_string(address) + " of " + std::to_string(bytes_));
      return shared();
    }
    return shared() + address;
  }

  /// Runs `body` as every thread of the block.
  /// @throws std::runtime_error with the first misuse, or when threads wait for what cannot come
  void run(const std::function<void()>& body) {
    body_ = &body;
    current_block() = this;
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
      Fiber& fiber = fibers_[i];
      fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
      ::getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = &scheduler_;
      ::makecontext(&fiber.context, &Block::enter, 0);
    }
    hasty_ = random_.chance(0.5);
    haste_.resize((fibers_.size() + 31) / 32);
    for (std::uint64_t& haste : haste_) haste = random_.next();
    std::vector<std::size_t> ready(fibers_.size());
    for (std::size_t i = 0; i < ready.size(); ++i) ready[i] = i;
    while (!ready.empty()) {
      std::swap(ready[choose(ready)], ready.back());
      current_ = ready.back();
      ready.pop_back();
      threadIdx.x = static_cast<unsigned>(current_);
      ::swapcontext(&scheduler_, &fibers_[current_].context);
      for (const std::size_t woken : woken_) ready.push_back(woken);
      woken_.clear();
      if (!failure_.empty()) break;
    }
    if (failure_.empty())
      for (const Fiber& fiber : fibers_)
        if (!fiber.done) fail("threads wait for a barrier that not all of them reach");
    if (!failure_.empty()) throw std::runtime_error(failure_);
  }

  static Block*& current_block() {
    static Block* block = nullptr;
    return block;
  }

  const std::vector<Range>& readable() const { return readable_; }

  Exchange& mine() { return fibers_[current_].exchange; }
  Exchange& of_lane(int lane) { return fibers_[current_ / 32 * 32 + static_cast<std::size_t>(lane)].exchange; }
  int lane() const { return static_cast<int>(current_ % 32); }

  /// All 32 lanes meet; the last to arrive runs `work` for all of them.
  template <typename Work>
  void warp(const char* operation, const Work& work) {
    mine().operation = operation;
    meet(static_cast<int>(1000 + current_ / 32), 32, [&] {
      for (int lane = 0; lane < 32; ++lane)
        if (std::strcmp(of_lane(lane).operation, operation) != 0)
          fail(std::string("lanes of a warp are in ") + operation + " and " + of_lane(lane).operation);
      work();
    });
  }
  /// Barrier `id` among `threads` threads; 0: among all of the block.
  void barrier(int id, int threads) {
    meet(id, threads == 0 ? static_cast<int>(fibers_.size()) : threads, [] {});
  }

  void start_copy(unsigned to, const void* from, int bytes) {
    const auto* source = static_cast<const char*>(from);
    bool known = reinterpret_cast<std::uintptr_t>(from) % 16 == 0;
    if (known) {
      known = false;
      for (const Range& range : readable_)
        known = known || (source >= range.begin && source + 16 <= range.begin + range.bytes);
    }
    if (!known) fail("a copy's address is outside of its tensor, or not aligned");
    if (failure_.empty()) fibers_[current_].copies.push_back({at(to, 16), source, bytes, groups_of_thread()});
    if (copies_ == Copies::land_early) land(fibers_[current_].copies.size());
  }
  void commit_group() { ++fibers_[current_].groups; }
  void wait_group(int pending) {
    auto& copies = fibers_[current_].copies;
    std::size_t count = 0;
    while (count < copies.size() && copies[count].group + pending < groups_of_thread()) ++count;
    land(count);
  }

  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

 private:
  static constexpr std::size_t kStackBytes = 64 * 1024;

  struct Copy {
    char* to;
    const char* from;
    int bytes;
    int group;
  };
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    Exchange exchange;
    std::vector<Copy> copies;
    int groups = 0;
    bool done = false;
  };
  struct Meeting {
    int id;
    std::vector<std::size_t> waiting;
  };

  static void enter() {
    Block& block = *current_block();
    (*block.body_)();
    Fiber& fiber = block.fibers_[block.current_];
    if (!fiber.copies.empty()) block.fail("a thread ends with copies under way");
    fiber.done = true;
  }

  /// Index in `ready` of the thread that goes on: any, or one of the hastiest warp, which so runs as far ahead of the
  /// others as barriers let it.
  std::size_t choose(const std::vector<std::size_t>& ready) {
    std::size_t chosen = random_.below(ready.size());
    if (hasty_)
      for (std::size_t i = 0; i < ready.size(); ++i)
        if (haste_[ready[i] / 32] > haste_[ready[chosen] / 32]) chosen = i;
    return chosen;
  }

  int groups_of_thread() const { return fibers_[current_].groups; }

  void land(std::size_t count) {
    auto& copies = fibers_[current_].copies;
    for (std::size_t i = 0; i < count; ++i) {
      std::memset(copies[i].to, 0, 16);
      std::memcpy(copies[i].to, copies[i].from, static_cast<std::size_t>(copies[i].bytes));
    }
    copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(count));
  }

  template <typename Work>
  void meet(int id, int expected, const Work& work) {
    Meeting* meeting = nullptr;
    for (Meeting& m : meetings_)
      if (m.id == id) meeting = &m;
    if (meeting == nullptr) meeting = &meetings_.emplace_back(Meeting{id, {}});
    meeting->waiting.push_back(current_);
    if (static_cast<int>(meeting->waiting.size()) == expected) {
      work();
      woken_.insert(woken_.end(), meeting->waiting.begin(), meeting->waiting.end());
      meeting->waiting.clear();
    }
    ::swapcontext(&fibers_[current_].context, &scheduler_);
  }

  std::vector<char> shared_;
  std::size_t bytes_ = 0;
  std::vector<Range> readable_;
  Copies copies_;
  heed::Random random_;
  bool hasty_ = false;
  std::vector<std::uint64_t> haste_;  // by warp
  std::vector<Fiber> fibers_;
  std::vector<Meeting> meetings_;
  std::vector<std::size_t> woken_;
  ucontext_t scheduler_{};
  std::size_t current_ = 0;
  const std::function<void()>* body_ = nullptr;
  std::string failure_;
};

inline Block& block() {
  return *Block::current_block();
}

}  // namespace emulated

inline void __syncthreads() {
  emulated::block().barrier(0, 0);
}
inline void __syncwarp() {
  emulated::block().warp("__syncwarp", [] {});
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  auto& block = emulated::block();
  block.mine().accumulator[0] = value;
  block.warp("__shfl_xor_sync", [&] {
    for (int lane = 0; lane < 32; ++lane)
      block.of_lane(lane).out[0] = static_cast<unsigned>(__float_as_int(block.of_lane(lane ^ mask).accumulator[0]));
  });
  return __int_as_float(static_cast<int>(block.mine().out[0]));
}
inline int __any_sync(unsigned, bool value) {
  auto& block = emulated::block();
  block.mine().in[0] = value ? 1 : 0;
  block.warp("__any_sync", [&] {
    unsigned any = 0;
    for (int lane = 0; lane < 32; ++lane) any |= block.of_lane(lane).in[0];
    for (int lane = 0; lane < 32; ++lane) block.of_lane(lane).out[0] = any;
  });
  return static_cast<int>(block.mine().out[0]);
}
