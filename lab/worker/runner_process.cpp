#include "worker/runner_process.hpp"

#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

// The bounds of the section; a linker provides them for a section whose name is an identifier.
extern "C" {
[[gnu::visibility("hidden")]] extern const char __start_heed_runner[];
[[gnu::visibility("hidden")]] extern const char __stop_heed_runner[];
}

#define HEED_INSIDE [[gnu::section("heed_runner")]]

namespace heed::worker::inside {
namespace {

constexpr int kSpins = 2000;  // about 50 µs; then the processor is given to others, for they may be what is waited for
constexpr std::uint32_t kRseqSignature =
#if defined(__aarch64__)
    0xd428bc00;
#else
    0x53053053;
#endif

[[gnu::always_inline]] inline long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                                        long f = 0) {
#if defined(__x86_64__)
  long result = number;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall" : "+a"(result) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#else
#error "a runner makes its system calls itself, and knows x86-64 and aarch64"
#endif
}

[[gnu::always_inline]] inline long address_of(const void* p) {
  return static_cast<long>(reinterpret_cast<std::uintptr_t>(p));
}

[[gnu::always_inline]] inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

// The floating-point unit's control bits: rounding, flushing of small numbers, traps. Sticky exception flags are not
// among them, for honest arithmetic sets those.
[[gnu::always_inline]] inline std::uint64_t floating_point_control() {
#if defined(__x86_64__)
  constexpr unsigned kFlags = 0x3f;
  std::uint16_t x87 = 0;
  asm volatile("fnstcw %0" : "=m"(x87));
  return static_cast<std::uint64_t>(x87) << 32 | (__builtin_ia32_stmxcsr() & ~kFlags);
#else
  std::uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#endif
}

[[gnu::always_inline]] inline void set_floating_point_control(std::uint64_t control) {
#if defined(__x86_64__)
  const auto x87 = static_cast<std::uint16_t>(control >> 32);
  asm volatile("fldcw %0" : : "m"(x87));
  __builtin_ia32_ldmxcsr(static_cast<unsigned>(control));
#else
  asm volatile("msr fpcr, %0" : : "r"(control));
#endif
}

struct SegmentBases {
  std::uint64_t fs = 0;
  std::uint64_t gs = 0;
};

[[gnu::always_inline]] inline SegmentBases segment_bases([[maybe_unused]] const Plan* plan) {
  SegmentBases bases;
#if defined(__x86_64__)
  if (plan->has_segment_bases != 0) asm volatile("rdfsbase %0\n\trdgsbase %1" : "=r"(bases.fs), "=r"(bases.gs));
#endif
  return bases;
}

#if defined(__x86_64__)
// In 64-bit mode these select nothing, and zero is what Linux starts a program with: two bits of each can be kept.
[[gnu::always_inline]] inline void clear_segments() {
  constexpr unsigned kNone = 0;
  unsigned ds = 0;
  unsigned es = 0;
  unsigned fs = 0;
  unsigned gs = 0;
  asm volatile("mov %%ds, %0\n\tmov %%es, %1\n\tmov %%fs, %2\n\tmov %%gs, %3" : "=r"(ds), "=r"(es), "=r"(fs), "=r"(gs));
  if (ds != 0) asm volatile("mov %0, %%ds" : : "r"(kNone));
  if (es != 0) asm volatile("mov %0, %%es" : : "r"(kNone));
  if (fs != 0) asm volatile("mov %0, %%fs" : : "r"(kNone));
  if (gs != 0) asm volatile("mov %0, %%gs" : : "r"(kNone));
}

// Rights of memory's protection keys (Intel SDM, vol. 3, 4.6.2), which a program may change without the kernel.
[[gnu::always_inline]] inline void restore_rights(const Plan* plan) {
  if (plan->has_protection_keys == 0) return;
  unsigned rights = 0;
  asm volatile("rdpkru" : "=a"(rights) : "c"(0) : "edx");
  if (rights != plan->protection_rights)
    asm volatile("wrpkru" : : "a"(plan->protection_rights), "c"(0), "d"(0) : "memory");
}
#endif

// A launch finds nothing in registers that are nobody's between calls: those of vectors and masks, x87 and MMX, tiles,
// segments and the bases of FS and GS, the rights of protection keys.
HEED_INSIDE void clear_registers([[maybe_unused]] const Plan* plan, [[maybe_unused]] const SegmentBases* bases) {
#if defined(__x86_64__)
  clear_segments();
  restore_rights(plan);
  if (plan->has_segment_bases != 0) asm volatile("wrfsbase %0\n\twrgsbase %1" : : "r"(bases->fs), "r"(bases->gs));
  if (plan->register_components != 0)
    asm volatile("xrstor64 %0"
                 :
                 : "m"(plan->initial_registers), "a"(static_cast<unsigned>(plan->register_components)),
                   "d"(static_cast<unsigned>(plan->register_components >> 32))
                 : "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                   "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#else
  asm volatile(
      "movi v0.2d, #0\n\tmovi v1.2d, #0\n\tmovi v2.2d, #0\n\tmovi v3.2d, #0\n\tmovi v4.2d, #0\n\tmovi v5.2d, #0\n\t"
      "movi v6.2d, #0\n\tmovi v7.2d, #0\n\tmovi v16.2d, #0\n\tmovi v17.2d, #0\n\tmovi v18.2d, #0\n\t"
      "movi v19.2d, #0\n\tmovi v20.2d, #0\n\tmovi v21.2d, #0\n\tmovi v22.2d, #0\n\tmovi v23.2d, #0\n\t"
      "movi v24.2d, #0\n\tmovi v25.2d, #0\n\tmovi v26.2d, #0\n\tmovi v27.2d, #0\n\tmovi v28.2d, #0\n\t"
      "movi v29.2d, #0\n\tmovi v30.2d, #0\n\tmovi v31.2d, #0"
      :
      :
      : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24",
        "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#endif
}

// What launches left below the caller's frame: 64 KiB take 2 us, behind a replay, not in it.
HEED_INSIDE void wipe_stack(std::uintptr_t bottom) {
  constexpr std::uintptr_t kOwn = 512;  // of this function, and the 128 bytes below it that are a leaf's
  const auto top = (reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) - kOwn) / 8 * 8;
#if defined(__x86_64__)
  std::uintptr_t words = (top - bottom) / 8;
  asm volatile("rep stosq" : "+D"(bottom), "+c"(words) : "a"(0L) : "memory");
#else
  for (; bottom < top; bottom += 8) *reinterpret_cast<volatile std::uint64_t*>(bottom) = 0;
#endif
}

HEED_INSIDE [[noreturn]] void fail(const Plan* plan, Step step, long error) {
  plan->status->failed_errno = static_cast<int>(-error);
  __atomic_store_n(&plan->status->failed_step, static_cast<std::uint32_t>(step), __ATOMIC_RELEASE);
  for (;;) call(SYS_exit_group, 1);
}

[[gnu::always_inline]] inline void must(const Plan* plan, Step step, long result) {
  if (result < 0) fail(plan, step, result);
}

// Spins first, then sleeps until the value changes from `old`.
HEED_INSIDE std::uint32_t wait_for_change(const std::uint32_t* value, std::uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (const std::uint32_t now = __atomic_load_n(value, __ATOMIC_ACQUIRE); now != old) return now;
    pause_briefly();
  }
  for (;;) {
    if (const std::uint32_t now = __atomic_load_n(value, __ATOMIC_ACQUIRE); now != old) return now;
    call(SYS_futex, address_of(value), FUTEX_WAIT, static_cast<long>(old), 0);
  }
}

HEED_INSIDE void wake_all(const std::uint32_t* value) {
  call(SYS_futex, address_of(value), FUTEX_WAKE, 0x7fffffff, 0);
}

// Runs the launches of one command after another. Threads share the blocks of a launch through one counter, with a
// spinning barrier after each launch, because waking threads for every launch would cost as much as a small launch.
HEED_INSIDE [[noreturn]] void serve(const Plan* plan, const Thread* thread) {
  const std::uint64_t control = floating_point_control();
  const SegmentBases bases = segment_bases(plan);
  std::byte* const scratch = thread->scratch;
  const int threads = plan->thread_count;
  Status* const status = plan->status;
  std::uint32_t seen = 0;
  for (;;) {
    seen = wait_for_change(&plan->command->generation, seen);
    const std::uint32_t launches = plan->command->launches;
    for (std::uint32_t i = 0; i < launches; ++i) {
      const CpuLaunch* launch = &plan->launches[i];
      Progress* progress = &plan->progress[i];
      const long long blocks = launch->blocks;
      for (;;) {
        const long long block = __atomic_fetch_add(&progress->next_block, 1, __ATOMIC_RELAXED);
        if (block >= blocks) break;
        plan->entry(&launch->params, block, scratch);
      }
      if (floating_point_control() != control) {
        status->control_changed = 1;
        set_floating_point_control(control);
      }
      clear_registers(plan, &bases);
      if (__atomic_add_fetch(&progress->arrived, 1, __ATOMIC_ACQ_REL) == threads) {
        if (i + 1 == launches) {
          __atomic_store_n(&status->finished, seen, __ATOMIC_RELEASE);
          wake_all(&status->finished);
        }
      }
      // The next sequence may begin, with progress at zero, before the slowest thread has seen this one's end.
      for (int spins = 0; __atomic_load_n(&progress->arrived, __ATOMIC_ACQUIRE) < threads &&
                          __atomic_load_n(&plan->command->generation, __ATOMIC_ACQUIRE) == seen;
           ++spins) {
        if (spins < kSpins)
          pause_briefly();
        else
          call(SYS_sched_yield);
      }
    }
    wipe_stack(thread->stack_top - plan->stack_bytes);
  }
}

HEED_INSIDE void limit_thread(const Plan* plan, const Thread* thread) {
  if (thread->processor >= 0) {
    unsigned long set[CPU_SETSIZE / (8 * sizeof(unsigned long))];
    for (unsigned i = 0; i < sizeof set / sizeof set[0]; ++i) *const_cast<volatile unsigned long*>(&set[i]) = 0;
    const auto bit = static_cast<unsigned>(thread->processor);
    set[bit / (8 * sizeof set[0])] = 1UL << bit % (8 * sizeof set[0]);
    must(plan, Step::pin_thread, call(SYS_sched_setaffinity, 0, sizeof set, address_of(set)));
  }
#if defined(__x86_64__)
  must(plan, Step::close_clock, call(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV));
#elif defined(PR_SET_TSC)
  call(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV);  // aarch64 has it from Linux 6.12 on
#endif
}

struct ThreadStart {
  const Plan* plan;
  const Thread* thread;
};

HEED_INSIDE [[noreturn]] void begin_thread(const ThreadStart* start) {
  const Plan* const plan = start->plan;
  const Thread* const thread = start->thread;
  limit_thread(plan, thread);
  __atomic_fetch_add(&plan->status->threads_ready, 1, __ATOMIC_RELEASE);
  wake_all(&plan->status->threads_ready);
  serve(plan, thread);
}

// A thread on a stack of its own, which begins with what it is given.
HEED_INSIDE long start_thread(const Plan* plan, const Thread* thread) {
  auto* const start = reinterpret_cast<ThreadStart*>(thread->stack_top) - 2;
  start->plan = plan;
  start->thread = thread;
  constexpr long kFlags =
      CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_UNTRACED;
#if defined(__x86_64__)
  long result = SYS_clone;
  register long none10 asm("r10") = 0;
  register long none8 asm("r8") = 0;
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "mov %%rsp, %%rdi\n\t"
      "call *%[begin]\n\t"
      "ud2\n"
      "1:"
      : "+a"(result)
      : "D"(kFlags), "S"(start), "d"(0L), "r"(none10), "r"(none8), [begin] "r"(&begin_thread)
      : "rcx", "r11", "memory");
  return result;
#else
  register long number asm("x8") = SYS_clone;
  register long x0 asm("x0") = kFlags;
  register long x1 asm("x1") = address_of(start);
  register long x2 asm("x2") = 0;
  register long x3 asm("x3") = 0;
  register long x4 asm("x4") = 0;
  register auto begin asm("x9") = &begin_thread;
  asm volatile(
      "svc 0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, xzr\n\t"
      "mov x30, xzr\n\t"
      "mov x0, sp\n\t"
      "blr %[begin]\n\t"
      "brk 1\n"
      "1:"
      : "+r"(x0)
      : "r"(number), "r"(x1), "r"(x2), "r"(x3), "r"(x4), [begin] "r"(begin)
      : "memory");
  return x0;
#endif
}

// On the runner's own stack: what the fork brought along is unmapped, then nothing more can be asked of the kernel.
HEED_INSIDE [[noreturn]] void finish_becoming(const Plan* plan) {
  for (std::size_t i = 0; i < plan->unmapped_count; ++i)
    must(plan, Step::unmap_memory,
         call(SYS_munmap, static_cast<long>(plan->unmapped[i].address), static_cast<long>(plan->unmapped[i].bytes)));
  while (__atomic_load_n(&plan->command->may_start, __ATOMIC_ACQUIRE) == 0)
    call(SYS_futex, address_of(&plan->command->may_start), FUTEX_WAIT, 0, 0);
  must(plan, Step::no_new_privileges, call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1));
  for (int i = 1; i < plan->thread_count; ++i) must(plan, Step::start_thread, start_thread(plan, &plan->threads[i]));
  limit_thread(plan, &plan->threads[0]);
  for (std::uint32_t ready = 0; static_cast<int>(ready) < plan->thread_count - 1;)
    ready = wait_for_change(&plan->status->threads_ready, ready);
  // A positive result is a thread that would not have the filter.
  const long filtered = call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, address_of(plan->filter));
  must(plan, Step::load_filter, filtered > 0 ? -1 : filtered);
  __atomic_store_n(&plan->status->confined, 1, __ATOMIC_RELEASE);
  wake_all(&plan->status->confined);
  serve(plan, &plan->threads[0]);
}

HEED_INSIDE void close_files() {
#if defined(SYS_close_range)
  if (call(SYS_close_range, 0, ~0U, 0) == 0) return;
#endif
  // Where a container refuses the call: a worker has five files and a few counters.
  for (int i = 0; i < 1024; ++i) call(SYS_close, i);
}

}  // namespace

HEED_INSIDE void become_runner(const Plan* plan) {
  call(SYS_setpgid, 0, 0);
  must(plan, Step::leave_parent, call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL));
  if (call(SYS_getppid) != plan->parent) fail(plan, Step::leave_parent, -1);
  if (plan->rseq != 0) {
    // The kernel writes there whenever a thread is interrupted. The length must be the one it was registered with: 32
    // up to glibc 2.39, then what the kernel has features for, rounded up.
    long result = -1;
    for (long bytes = 32; bytes <= 512 && result != 0; bytes += 32)
      result = call(SYS_rseq, static_cast<long>(plan->rseq), bytes, 1 /* unregister */, kRseqSignature);
    must(plan, Step::unregister_rseq, result);
  }
  for (std::size_t i = 0; i < plan->view_count; ++i) {
    const View* view = &plan->views[i];
    const auto address = static_cast<long>(view->address);
    const auto bytes = static_cast<long>(view->bytes);
    if (!view->writable) must(plan, Step::protect_memory, call(SYS_mprotect, address, bytes, PROT_READ));
    // Saves faults in what is timed; a kernel that is too old for it lets them happen.
    call(SYS_madvise, address, bytes, view->writable ? 23 /* MADV_POPULATE_WRITE */ : 22 /* MADV_POPULATE_READ */);
  }
  close_files();
  const std::uintptr_t stack = plan->threads[0].stack_top;
#if defined(__x86_64__)
  asm volatile(
      "mov %[stack], %%rsp\n\t"
      "xor %%ebp, %%ebp\n\t"
      "call *%[next]\n\t"
      "ud2"
      :
      : [stack] "r"(stack), [next] "r"(&finish_becoming), "D"(plan)
      : "memory");
#else
  register const Plan* first asm("x0") = plan;
  asm volatile(
      "mov sp, %[stack]\n\t"
      "mov x29, xzr\n\t"
      "mov x30, xzr\n\t"
      "blr %[next]\n\t"
      "brk 1"
      :
      : [stack] "r"(stack), [next] "r"(&finish_becoming), "r"(first)
      : "memory");
#endif
  __builtin_unreachable();
}

Range code_of_the_runner() {
  return {reinterpret_cast<std::uintptr_t>(__start_heed_runner),
          static_cast<std::size_t>(__stop_heed_runner - __start_heed_runner)};
}

}  // namespace heed::worker::inside
