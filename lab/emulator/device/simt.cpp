#include "emulator/device/simt.hpp"

#include <unwind.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace heed::emulator {
namespace {

constexpr std::size_t kSharedAlignment = 1024;
constexpr std::size_t kBesideShared = 4096;  // bytes past shared memory in which a store is seen

struct Store {
  unsigned* to;
  unsigned word;
};

// The cluster or the blocks that run now. One machine at a time: tests are single-threaded.
struct Machine {
  Dim3 grid;
  std::vector<Dim3> waiting;  // first blocks of clusters that have not begun
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<std::function<void()>> in_flight;
  std::vector<std::function<void()>> writes;  // of copies that have read
  std::vector<Store> stores;
  std::mt19937_64 random;
  const Launch* launch = nullptr;
  const std::function<void(char*)>* body = nullptr;
  Context scheduler;
  Thread* running = nullptr;
  unsigned phase = 0;  // of the cluster's barrier
  std::exception_ptr failure;
};
Machine* machine = nullptr;

/// The cluster's barrier waits for every thread that has not ended.
void end_cluster_phase() {
  for (const auto& t : machine->threads)
    if (!t->finished && !t->is_at_cluster_barrier) return;
  for (const auto& t : machine->threads) t->is_at_cluster_barrier = false;
  ++machine->phase;
}

// A plain pointer reaches past shared memory unseen; a store there shows when the block ends.
void expect_untouched(const Block& block) {
  const std::byte* const past = block.shared + block.shared_bytes;
  const std::byte* const end = block.memory.data() + block.memory.size();
  const auto is_changed = [](std::byte b) { return b != std::byte{0xff}; };
  if (std::any_of(block.memory.data(), static_cast<const std::byte*>(block.shared), is_changed))
    throw std::logic_error("the emulated kernel writes before its shared memory");
  if (const std::byte* const at = std::find_if(past, end, is_changed); at != end)
    throw std::logic_error("the emulated kernel writes past its shared memory: offset " +
                           std::to_string(at - block.shared));
}

void enter() {
  Thread& t = *machine->running;
  try {
    (*machine->body)(reinterpret_cast<char*>(t.block->shared));
    if (t.block->alive == 1) expect_untouched(*t.block);
  } catch (...) {
    if (!machine->failure) machine->failure = std::current_exception();
  }
  t.finished = true;
  --t.block->alive;
  end_cluster_phase();
  switch_context(t.fiber.context, machine->scheduler);
}

void resume(Thread& t) {
  machine->running = &t;
  switch_context(machine->scheduler, t.fiber.context);
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

// Runs the threads of one warp as far as they get without the others.
bool run_warp(const std::vector<Thread*>& warp) {
  bool any = false;
  for (bool progress = true; progress;) {
    progress = false;
    for (Thread* t : warp) {
      if (t->finished || (t->waits_for && !t->waits_for())) continue;
      t->waits_for = nullptr;
      resume(*t);
      if (machine->failure) std::rethrow_exception(machine->failure);
      any = progress = true;
    }
  }
  return any;
}

void land_a_store() {
  std::swap(machine->stores[machine->random() % machine->stores.size()], machine->stores.back());
  *machine->stores.back().to = machine->stores.back().word;
  machine->stores.pop_back();
}

// Any of them, which is then gone.
void do_one_of(std::vector<std::function<void()>>& ready) {
  std::swap(ready[machine->random() % ready.size()], ready.back());
  const std::function<void()> work = std::move(ready.back());
  ready.pop_back();
  work();
}

// Lets the next cluster begin.
void begin_cluster() {
  const Launch& launch = *machine->launch;
  const Dim3 first = machine->waiting.back();
  machine->waiting.pop_back();
  for (unsigned rank = 0; rank < launch.cluster; ++rank) {
    auto block = std::make_unique<Block>();
    block->memory.assign(launch.shared_bytes + kSharedAlignment + kBesideShared, std::byte{0xff});
    const auto start = reinterpret_cast<std::uintptr_t>(block->memory.data());
    block->shared = block->memory.data() + ((kSharedAlignment - start % kSharedAlignment) % kSharedAlignment);
    block->shared_bytes = launch.shared_bytes;
    block->index = {first.x + rank, first.y, first.z};
    block->rank = rank;
    block->alive = launch.threads;
    block->warps.resize((launch.threads + 31) / 32);
    block->warpgroups.resize((launch.threads + 127) / 128);
    for (unsigned i = 0; i < launch.threads; ++i) {
      auto thread = std::make_unique<Thread>();
      thread->block = block.get();
      thread->index = {i, 0, 0};
      thread->fiber.start(enter);
      machine->threads.push_back(std::move(thread));
    }
    machine->blocks.push_back(std::move(block));
  }
}

std::vector<std::vector<Thread*>> warps_that_run() {
  std::vector<std::vector<Thread*>> warps;
  for (const auto& t : machine->threads) {
    if (t->index.x % 32 == 0) warps.emplace_back();
    warps.back().push_back(t.get());
  }
  return warps;
}

// Others take the place of blocks that have ended. Whether one has.
bool replace_ended() {
  if (machine->launch->cluster > 1) return false;
  bool any = false;
  for (std::size_t i = 0; i < machine->blocks.size() && !machine->waiting.empty(); ++i) {
    Block& block = *machine->blocks[i];
    if (block.alive > 0 || block.replaced) continue;
    block.replaced = any = true;  // its memory stays, for copies that it did not wait for
    begin_cluster();
  }
  if (any) std::erase_if(machine->threads, [](const auto& t) { return t->block->replaced; });
  return any;
}

void run_clusters() {
  std::vector<std::vector<Thread*>> warps = warps_that_run();
  for (;;) {
    if (replace_ended()) warps = warps_that_run();
    std::shuffle(warps.begin(), warps.end(), machine->random);
    bool progress = false;
    for (auto& warp : warps) {
      std::shuffle(warp.begin(), warp.end(), machine->random);
      progress = run_warp(warp) || progress;
      for (; !machine->stores.empty() && machine->random() % 2 == 0; progress = true) land_a_store();
    }
    const bool all_finished =
        std::all_of(machine->threads.begin(), machine->threads.end(), [](const auto& t) { return t->finished; });
    if (all_finished && machine->waiting.empty()) break;
    if (progress) continue;
    if (!machine->stores.empty()) {
      land_a_store();
      continue;
    }
    if (machine->in_flight.empty() && machine->writes.empty()) throw std::logic_error(deadlock_text());
    do_one_of(machine->in_flight.empty() ? machine->writes : machine->in_flight);
  }
  if (!machine->in_flight.empty())
    throw std::logic_error("the emulated kernel ended with " + std::to_string(machine->in_flight.size()) +
                           " copies in flight that nobody waited for");
  // The end of a launch waits for what is written.
  while (!machine->stores.empty()) land_a_store();
  while (!machine->writes.empty()) do_one_of(machine->writes);
}

}  // namespace

void ByteBarrier::arrive() {
  if (pending == 0) throw std::logic_error("more arrivals at an mbarrier than its phase expects");
  --pending;
  settle();
}

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
unsigned threads_of_block() {
  return machine->launch->threads;
}
unsigned cluster_size() {
  return machine->launch->cluster;
}

void wait_until(const char* where, const std::function<bool()>& ready) {
  if (ready()) return;
  Thread& t = self();
  t.waits_for = ready;
  t.waits_at = where;
  switch_context(t.fiber.context, machine->scheduler);
}

namespace {
// The calls that are under way, as one number: however much of them was inlined, two places of the program differ.
std::uint64_t place_in_program() {
  std::uint64_t place = 14695981039346656037ULL;  // FNV-1a
  _Unwind_Backtrace(
      [](_Unwind_Context* frame, void* hash) {
        auto& h = *static_cast<std::uint64_t*>(hash);
        h = (h ^ _Unwind_GetIP(frame)) * 1099511628211ULL;
        return _URC_NO_REASON;
      },
      &place);
  return place;
}
}  // namespace

void check_place(NamedBarrier& barrier, const char* where, bool of_block) {
  if (!machine->launch->one_place) return;
  const Thread& t = self();
  if (of_block && t.block->alive < machine->launch->threads)
    throw std::logic_error(std::string(where) + " where threads of the block have ended");
  if (t.index.x % 32 != 0) return;
  const std::uint64_t place = place_in_program();
  const unsigned warp = t.index.x / 32;
  if (barrier.place == 0) {
    barrier.place = place;
    barrier.first_warp = warp;
  } else if (barrier.place != place) {
    throw std::logic_error(std::string("warps meet at ") + where + " from different places of the program: " +
                           std::to_string(barrier.first_warp) + " and " + std::to_string(warp));
  }
}

bool copies_are_early() {
  return machine->launch->early;
}

void check_readable(const void* from, std::size_t bytes) {
  const std::vector<Range>& ranges = machine->launch->readable;
  const auto inside = [&](const Range& range) {
    const auto offset = reinterpret_cast<std::uintptr_t>(from) - reinterpret_cast<std::uintptr_t>(range.begin);
    return offset <= range.bytes && bytes <= range.bytes - offset;
  };
  if (!ranges.empty() && std::none_of(ranges.begin(), ranges.end(), inside))
    throw std::logic_error("the emulated kernel copies from outside of its inputs");
}

void arrive_at_cluster() {
  if (self().is_at_cluster_barrier) throw std::logic_error("a second arrival at the cluster's barrier without a wait");
  self().cluster_phase = machine->phase;
  self().is_at_cluster_barrier = true;
  end_cluster_phase();
}

void wait_for_cluster() {
  wait_until("barrier.cluster.wait", [phase = self().cluster_phase] { return machine->phase != phase; });
}

void later(std::function<void()> work) {
  if (copies_are_early())
    work();
  else
    machine->in_flight.push_back(std::move(work));
}

void write_later(std::function<void()> work) {
  if (copies_are_early())
    work();
  else
    machine->writes.push_back(std::move(work));
}

void store_later(unsigned* to, unsigned word) {
  if (copies_are_early())
    *to = word;
  else
    machine->stores.push_back({to, word});
}

void meet(const char* where, Meeting& meeting, unsigned index, unsigned n, void* mine,
          const std::function<void(std::vector<void*>&)>& together) {
  if (meeting.arguments.size() < n) meeting.arguments.resize(n);
  if (meeting.arrived > 0 && meeting.where != where && std::string_view(meeting.where) != where)
    throw std::logic_error(std::string("threads that should be together are at ") + meeting.where + " and " + where);
  meeting.where = where;
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
  return static_cast<unsigned>(static_cast<const std::byte*>(pointer) - self().block->shared) + kSharedStart +
         (self().block->rank << kRankShift);
}

namespace {
// Blocks of no cluster may run at the same time, and see their own shared memory alone.
Block& block_of(unsigned address) {
  return cluster_size() < 2 ? *self().block : *machine->blocks.at(address >> kRankShift);
}
}  // namespace

std::byte* pointer_to(unsigned address, std::size_t bytes) {
  Block& block = block_of(address);
  const std::size_t offset = (address & ((1U << kRankShift) - 1)) - kSharedStart;
  if (offset + bytes > block.shared_bytes)
    throw std::logic_error("the emulated kernel reaches past its shared memory: offset " + std::to_string(offset));
  return block.shared + offset;
}

ByteBarrier& byte_barrier(unsigned address, bool initialise) {
  Block& block = block_of(address);
  (void)pointer_to(address, 8);
  const unsigned offset = address & ((1U << kRankShift) - 1);
  const auto found = block.byte_barriers.find(offset);
  if (initialise) return block.byte_barriers[offset];
  if (found == block.byte_barriers.end())
    throw std::logic_error("the emulated kernel uses a barrier that nobody initialised");
  return found->second;
}

void run(const Launch& launch, const std::function<void(char*)>& body) {
  std::mt19937_64 random(launch.seed);
  std::vector<Dim3> clusters;
  for (unsigned z = 0; z < launch.grid.z; ++z)
    for (unsigned y = 0; y < launch.grid.y; ++y)
      for (unsigned x = 0; x < launch.grid.x; x += launch.cluster) clusters.push_back({x, y, z});
  std::shuffle(clusters.begin(), clusters.end(), random);
  const std::size_t at_once = launch.cluster > 1 ? 1 : std::max(1U, launch.resident);
  // One after the other without `resident`: each has a machine of its own, so that a failure names few threads.
  while (!clusters.empty()) {
    Machine here;
    here.grid = launch.grid;
    here.launch = &launch;
    here.body = &body;
    here.random.seed(random());
    const std::size_t taken = at_once == 1 ? 1 : clusters.size();
    here.waiting.assign(clusters.end() - static_cast<std::ptrdiff_t>(taken), clusters.end());
    clusters.resize(clusters.size() - taken);
    machine = &here;
    try {
      for (std::size_t i = 0; i < at_once && !here.waiting.empty(); ++i) begin_cluster();
      run_clusters();
    } catch (...) {
      machine = nullptr;
      throw;
    }
    machine = nullptr;
  }
}

}  // namespace heed::emulator
