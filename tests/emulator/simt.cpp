#include "simt.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

#include "workload/half.hpp"

namespace heed::emulator {
namespace {

constexpr std::size_t kStackBytes = 512 * 1024;

// The cluster that runs now. One at a time: tests are single-threaded.
struct Machine {
  Dim3 grid;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<std::function<void()>> in_flight;
  std::mt19937_64 random;
  const std::function<void(char*)>* body = nullptr;
  ucontext_t scheduler{};
  Thread* running = nullptr;
  std::exception_ptr failure;
};
Machine* machine = nullptr;

void enter() {
  Thread& t = *machine->running;
  try {
    (*machine->body)(reinterpret_cast<char*>(t.block->shared));
  } catch (...) {
    if (!machine->failure) machine->failure = std::current_exception();
  }
  t.finished = true;
  --t.block->alive;
  swapcontext(&t.context, &machine->scheduler);
}

// Apart from the caller's variables: getcontext may return twice.
[[gnu::noinline]] void prepare(Thread& thread) {
  thread.stack.reset(new char[kStackBytes]);  // not written to before it is used
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.get();
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, enter, 0);
}

void resume(Thread& t) {
  machine->running = &t;
  swapcontext(&machine->scheduler, &t.context);
  machine->running = nullptr;
}

std::string deadlock_text() {
  std::map<std::string, int> places;
  for (const auto& t : machine->threads)
    if (!t->finished)
      ++places[std::string(t->waits_at) + " (block " + std::to_string(t->block->index.x) + ", warp " +
               std::to_string(t->index.x / 32) + ")"];
  std::string text = "the emulated kernel is stuck:";
  for (const auto& [place, count] : places) text += " " + std::to_string(count) + " threads at " + place + ";";
  return text;
}

void run_cluster() {
  for (;;) {
    bool all_finished = true;
    bool progress = false;
    for (const auto& t : machine->threads) {
      if (t->finished) continue;
      all_finished = false;
      if (t->waits_for && !t->waits_for()) continue;
      t->waits_for = nullptr;
      resume(*t);
      if (machine->failure) std::rethrow_exception(machine->failure);
      progress = true;
    }
    if (all_finished) break;
    if (progress) continue;
    if (machine->in_flight.empty()) throw std::logic_error(deadlock_text());
    const std::size_t chosen = machine->random() % machine->in_flight.size();
    std::swap(machine->in_flight[chosen], machine->in_flight.back());
    const std::function<void()> work = std::move(machine->in_flight.back());
    machine->in_flight.pop_back();
    work();
  }
  if (!machine->in_flight.empty())
    throw std::logic_error("the emulated kernel ended with " + std::to_string(machine->in_flight.size()) +
                           " copies in flight that nobody waited for");
}

}  // namespace

void ByteBarrier::settle() {
  if (pending != 0 || bytes != 0) return;
  ++phase;
  pending = expected;
}

Thread& self() {
  return *machine->running;
}
Dim3 grid() {
  return machine->grid;
}

void wait_until(const char* where, const std::function<bool()>& ready) {
  if (ready()) return;
  Thread& t = self();
  t.waits_for = ready;
  t.waits_at = where;
  swapcontext(&t.context, &machine->scheduler);
}

void later(std::function<void()> work) {
  machine->in_flight.push_back(std::move(work));
}

void meet(const char* where, Meeting& meeting, unsigned index, unsigned n, void* mine,
          const std::function<void(std::vector<void*>&)>& together) {
  if (meeting.arguments.size() < n) meeting.arguments.resize(n);
  meeting.arguments[index] = mine;
  const unsigned generation = meeting.generation;
  if (++meeting.arrived == n) {
    meeting.arrived = 0;
    together(meeting.arguments);
    ++meeting.generation;
    return;
  }
  wait_until(where, [&meeting, generation] { return meeting.generation != generation; });
}

unsigned address_of(const void* pointer) {
  return static_cast<unsigned>(static_cast<const std::byte*>(pointer) - self().block->shared) + kSharedStart;
}

std::byte* pointer_to(unsigned address, std::size_t bytes) {
  const unsigned rank = address >> kRankShift;
  Block& block = rank == 0 ? *self().block : *machine->blocks.at(rank - 1);
  const std::size_t offset = (address & ((1U << kRankShift) - 1)) - kSharedStart;
  if (offset + bytes > block.shared_bytes)
    throw std::logic_error("the emulated kernel reaches past its shared memory: offset " + std::to_string(offset));
  return block.shared + offset;
}

ByteBarrier& byte_barrier(unsigned address, bool initialise) {
  const unsigned rank = address >> kRankShift;
  Block& block = rank == 0 ? *self().block : *machine->blocks.at(rank - 1);
  (void)pointer_to(address, 8);
  const unsigned offset = address & ((1U << kRankShift) - 1);
  const auto found = block.byte_barriers.find(offset);
  if (initialise) return block.byte_barriers[offset];
  if (found == block.byte_barriers.end())
    throw std::logic_error("the emulated kernel uses a barrier that nobody initialised");
  return found->second;
}

float load_16(bool bf16, const std::byte* from) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, 2);
  return bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

std::uint16_t round_16(bool bf16, float x) {
  return bf16 ? float_to_bf16(x) : float_to_fp16(x);
}

void run(const Launch& launch, const std::function<void(char*)>& body) {
  for (unsigned z = 0; z < launch.grid.z; ++z)
    for (unsigned y = 0; y < launch.grid.y; ++y)
      for (unsigned x = 0; x < launch.grid.x; x += launch.cluster) {
        Machine here;
        machine = &here;
        here.grid = launch.grid;
        here.body = &body;
        here.random.seed(launch.seed + x + 1000ULL * y + 1'000'000ULL * z);
        for (unsigned rank = 0; rank < launch.cluster; ++rank) {
          auto block = std::make_unique<Block>();
          block->memory.assign(launch.shared_bytes + 1024, std::byte{0xff});
          const auto start = reinterpret_cast<std::uintptr_t>(block->memory.data());
          block->shared = block->memory.data() + ((1024 - start % 1024) % 1024);
          block->shared_bytes = launch.shared_bytes;
          block->index = {x + rank, y, z};
          block->rank = rank;
          block->alive = launch.threads;
          block->warps.resize((launch.threads + 31) / 32);
          block->warpgroups.resize((launch.threads + 127) / 128);
          for (unsigned i = 0; i < launch.threads; ++i) {
            auto thread = std::make_unique<Thread>();
            thread->block = block.get();
            thread->index = {i, 0, 0};
            prepare(*thread);
            here.threads.push_back(std::move(thread));
          }
          here.blocks.push_back(std::move(block));
        }
        try {
          run_cluster();
        } catch (...) {
          machine = nullptr;
          throw;
        }
        machine = nullptr;
      }
}

}  // namespace heed::emulator
