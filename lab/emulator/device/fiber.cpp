#include "emulator/device/fiber.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace heed::emulator {
namespace {

constexpr std::size_t kStackBytes = 512 * 1024;

// One machine at a time: tests are single-threaded.
std::vector<std::unique_ptr<char[]>>& free_stacks() {
  static std::vector<std::unique_ptr<char[]>> stacks;
  return stacks;
}

std::unique_ptr<char[]> take_stack() {
  if (free_stacks().empty()) return std::unique_ptr<char[]>(new char[kStackBytes]);  // not written to before it is used
  std::unique_ptr<char[]> stack = std::move(free_stacks().back());
  free_stacks().pop_back();
  return stack;
}

}  // namespace

#if defined(__x86_64__)

// The registers that a function of the System V ABI (AMD64 supplement, 3.2.1) leaves as they were, and no more: no
// kernel changes how the processor rounds.
asm(R"(
.pushsection .text
.globl heed_emulator_switch_stacks
.hidden heed_emulator_switch_stacks
.type heed_emulator_switch_stacks, @function
heed_emulator_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size heed_emulator_switch_stacks, . - heed_emulator_switch_stacks
.popsection
)");
extern "C" void heed_emulator_switch_stacks(void** from, void* to);

void switch_context(Context& from, Context& to) {
  heed_emulator_switch_stacks(&from, to);
}

void Fiber::start(void (*entry)()) {
  stack_ = take_stack();
  // Six registers, the entry as the address that the switch returns to, and a return address of 0 for it, where
  // unwinding ends. That one lies 8 bytes below a multiple of 16, as the ABI has it where a function begins.
  constexpr std::size_t kRegisters = 6;
  const auto end = (reinterpret_cast<std::uintptr_t>(stack_.get()) + kStackBytes) / 16 * 16;
  auto* const top = reinterpret_cast<std::uintptr_t*>(end) - (kRegisters + 2);
  std::fill_n(top, kRegisters + 2, 0);
  top[kRegisters] = reinterpret_cast<std::uintptr_t>(entry);
  context = top;
}

#else

void switch_context(Context& from, Context& to) {
  swapcontext(&from, &to);
}

// Apart from the caller's variables: getcontext may return twice.
[[gnu::noinline]] void Fiber::start(void (*entry)()) {
  stack_ = take_stack();
  getcontext(&context);
  context.uc_stack.ss_sp = stack_.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}

#endif

Fiber::~Fiber() {
  if (stack_) free_stacks().push_back(std::move(stack_));
}

}  // namespace heed::emulator
