// The C interface of appends to a cache.
#include "heed/append.h"

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>

#include "api/append_run.hpp"
#include "api/status.hpp"

struct heed_append {
  std::atomic<std::uint64_t> state{0};
  std::unique_ptr<heed::api::AppendRun> run;
};

namespace heed::api {
namespace {

constexpr std::uint64_t kLivingAppend = 0x68656564'61707064;  // "heedappd"

const AppendRun& living_append(const heed_append* append) {
  if (append == nullptr) throw Error(ErrorCode::usage, "the append is null; heed_append_create makes one");
  if (append->state != kLivingAppend) throw Error(ErrorCode::usage, "the append was destroyed, or is none");
  return *append->run;
}

// Handles of destroyed appends stay for a while, so that a late use of one is told instead of reading freed memory.
void keep_append(heed_append* append) {
  constexpr std::size_t kMost = 256;
  static std::mutex mutex;
  static auto* const held = new std::deque<std::unique_ptr<heed_append>>;  // outlives static objects
  const std::lock_guard lock(mutex);
  held->emplace_back(append);
  if (held->size() > kMost) held->pop_front();
}

}  // namespace
}  // namespace heed::api

extern "C" {

void heed_append_rows_init(heed_append_rows* rows) {
  if (rows == nullptr) return;
  *rows = heed_append_rows{};
  rows->struct_size = sizeof(heed_append_rows);
}

void heed_append_tensors_init(heed_append_tensors* tensors) {
  if (tensors == nullptr) return;
  *tensors = heed_append_tensors{};
  tensors->struct_size = sizeof(heed_append_tensors);
}

heed_status heed_append_create(const heed_problem* problem, const heed_append_rows* rows, const heed_options* options,
                               heed_append** append) {
  return heed::api::guarded([&] {
    if (append == nullptr)
      throw heed::Error(heed::ErrorCode::usage, "there is nowhere to put the append: the fourth argument is null");
    *append = nullptr;
    auto made = std::make_unique<heed_append>();
    made->run = heed::api::make_append(problem, rows, heed::api::read_options(options));
    made->state = heed::api::kLivingAppend;
    *append = made.release();
  });
}

heed_status heed_append_run(const heed_append* append, const heed_append_tensors* tensors, void* stream,
                            uint32_t flags) {
  return heed::api::guarded([&] {
    const heed::api::AppendRun& run = heed::api::living_append(append);
    if (tensors == nullptr) throw heed::Error(heed::ErrorCode::usage, "the tensors are null");
    run.run(*tensors, stream, flags);
  });
}

int heed_append_can_be_dependent(const heed_append* append) {
  int can = 0;
  (void)heed::api::guarded([&] { can = heed::api::living_append(append).can_be_dependent() ? 1 : 0; });
  return can;
}

void heed_append_destroy(heed_append* append) {
  if (append == nullptr) return;
  std::uint64_t living = heed::api::kLivingAppend;
  if (!append->state.compare_exchange_strong(living, 0)) return;
  append->run.reset();
  (void)heed::api::guarded([&] { heed::api::keep_append(append); });
}
}
