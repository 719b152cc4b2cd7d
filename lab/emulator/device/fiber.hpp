/// What a thread of the emulated GPU runs on: a stack, and what a processor holds while another thread runs.
#pragma once

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <cstddef>
#include <memory>

namespace heed::emulator {

/// A place in a program to go on from. On x86-64 the stack's top, where the registers lie that a call keeps:
/// swapcontext asks the kernel for the mask of signals at every switch, which took half the time of all emulated tests.
#if defined(__x86_64__)
using Context = void*;
#else
using Context = ucontext_t;
#endif

/// Goes on at `to`, and writes to `from` where the caller will.
void switch_context(Context& from, Context& to);

/// A stack of 512 KiB and where its code goes on. Stacks are used again: a new one costs a mapping, and faults at every
/// page that is touched.
class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  /// `entry` begins when `context` is switched to; it must not return.
  void start(void (*entry)());

  Context context{};

 private:
  std::unique_ptr<char[]> stack_;
};

}  // namespace heed::emulator
