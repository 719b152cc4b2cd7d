// What a run must not do: allocate, lock or wait. Allocation and locking are this program's own, which libheed.so then
// calls too.
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>

#include "stub_gpu.hpp"

namespace {

// Counted on the thread that is looked at alone.
thread_local bool is_counting = false;
thread_local int allocations = 0;
thread_local int locks = 0;

void* allocated(std::size_t bytes, std::size_t alignment) {
  if (is_counting) ++allocations;
  void* memory = nullptr;
  if (::posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Inlined, GCC 12 takes them for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return allocated(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocated(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  using Lock = int(pthread_mutex_t*);
  static std::atomic<Lock*> next{nullptr};
  if (next == nullptr) next = reinterpret_cast<Lock*>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  if (is_counting) ++locks;
  return next.load()(mutex);
}

namespace heed {
namespace {

using testing_support::Made;
using testing_support::Memory;
using testing_support::stub_problem;

struct Cost {
  int allocations;
  int locks;
  int of_driver;  ///< memory, copies and waits
};

template <typename Call>
Cost cost_of(const Call& call) {
  const auto of_driver = testing_support::of_driver<int()>("stub_allocated_or_waited");
  const int before = of_driver();
  allocations = locks = 0;
  is_counting = true;
  call();
  is_counting = false;
  return {allocations, locks, of_driver() - before};
}

void expect_free(const heed_plan* plan, Memory& memory, const char* name) {
  // The first run on a thread makes its maps' place; the others are what an engine's loop pays.
  ASSERT_EQ(heed_plan_run(plan, &memory.t, memory.workspace, nullptr), HEED_OK) << name << heed_last_error();
  Memory other;  // maps are encoded again for other addresses, which costs time and nothing else
  heed_status status = HEED_INTERNAL;
  for (const heed_tensors* tensors : {&memory.t, &other.t}) {
    const Cost cost = cost_of([&] { status = heed_plan_run(plan, tensors, memory.workspace, nullptr); });
    EXPECT_EQ(status, HEED_OK) << name << heed_last_error();
    EXPECT_EQ(cost.allocations, 0) << name;
    EXPECT_EQ(cost.locks, 0) << name;
    EXPECT_EQ(cost.of_driver, 0) << name;
  }
}

TEST(GpuRunCost, WhatCountsIsSeen) {
  std::mutex mutex;
  const Cost cost = cost_of([&] {
    const std::lock_guard lock(mutex);
    int* volatile kept = new int(1);  // else the pair is left out
    delete kept;
    (void)testing_support::of_driver<int()>("cuCtxSynchronize")();
  });
  EXPECT_EQ(cost.allocations, 1);
  EXPECT_GE(cost.locks, 1);
  EXPECT_EQ(cost.of_driver, 1);
  // Making a plan allocates and locks: libheed's own calls are counted.
  const Cost of_plan = cost_of([] { const Made made(stub_problem()); });
  EXPECT_GT(of_plan.allocations, 0);
  EXPECT_GT(of_plan.locks, 0);
}

TEST(GpuRunCost, ARunAllocatesNothingLocksNothingAndWaitsForNothing) {
  heed_problem few = stub_problem();
  few.len_q = 1;
  few.len_k = 1024;
  Memory memory;
  for (const char* name : {"fwd_sm90_persistent", "fwd_sm90_split", "fwd_sm80"}) {
    const Made made(stub_problem(), name);
    expect_free(made.plan, memory, name);
  }
  for (const char* name : {"fwd_sm90_decode", "fwd_sm80_decode"}) {
    const Made made(few, name);
    ASSERT_EQ(heed_plan_prepare(made.plan, memory.workspace, nullptr), HEED_OK) << name << heed_last_error();
    expect_free(made.plan, memory, name);
  }
}

using GpuCopyCost = testing_support::StubPrograms;

TEST_F(GpuCopyCost, ARunBetweenCopiesCostsNoMoreThanItsLaunches) {
  heed_problem padded = stub_problem();
  padded.dim = padded.dim_v = 80;
  heed_plan* plan = nullptr;
  ASSERT_EQ(heed_plan_create(&padded, &options_, &plan), HEED_OK) << heed_last_error();
  Memory memory;
  expect_free(plan, memory, "a plan between copies");
  heed_plan_destroy(plan);
}

}  // namespace
}  // namespace heed
