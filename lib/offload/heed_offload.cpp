// The C interface of page pools.
#include "heed/offload.h"

#include <unistd.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>

#include "api/status.hpp"
#include "offload/offload.hpp"

struct heed_offload {
  std::atomic<std::uint64_t> state{0};
  std::unique_ptr<heed::offload::Offload> pool;
  pid_t process = ::getpid();  // that has the pool's threads, or its GPU
};

namespace heed::offload {
namespace {

constexpr std::uint64_t kLivingPool = 0x68656564'706f6f6c;  // "heedpool"

template <typename Function>
heed_status guarded_call(const Function& function) noexcept {
  heed_status no_room = HEED_OK;
  const heed_status status = api::guarded([&] {
    try {
      function();
    } catch (const OutOfRoom& error) {
      no_room = api::failed(HEED_OUT_OF_MEMORY, error.what());
    }
  });
  return no_room == HEED_OK ? status : no_room;
}

Offload& living(const heed_offload* pool) {
  if (pool == nullptr) throw Error(ErrorCode::usage, "the pool is null; heed_offload_create makes one");
  if (pool->state != kLivingPool) throw Error(ErrorCode::usage, "the pool was destroyed, or is none");
  if (pool->process != ::getpid())
    throw Error(ErrorCode::usage,
                "the pool is of the process that this one was forked from, as are its threads and its GPU; make a pool "
                "in this process");
  return *pool->pool;
}

// Handles of destroyed pools stay for a while, so that a late use of one is told instead of reading freed memory.
void keep_handle(heed_offload* pool) {
  constexpr std::size_t kMost = 256;
  static std::mutex mutex;
  static auto* const held = new std::deque<std::unique_ptr<heed_offload>>;  // outlives static objects
  const std::lock_guard lock(mutex);
  held->emplace_back(pool);
  if (held->size() > kMost) held->pop_front();
}

// A simulated GPU has no stream that a caller could wait for.
void wait_if_simulated(Offload& pool) {
  if (pool.config().kind == DeviceKind::cpu) pool.finish();
}

heed_status attend(heed_offload* pool, const heed_offload_call* call, void* stream, bool is_decoding) {
  return guarded_call([&] {
    Offload& p = living(pool);
    p.attend(read_call(call, p.config(), true), is_decoding, stream);
    wait_if_simulated(p);
  });
}

std::vector<std::int64_t> ids_of(const std::int64_t* sequences, std::int64_t batch) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  if (batch < 0 || batch > kMost || (batch > 0 && sequences == nullptr))
    throw Error(ErrorCode::usage, "the numbers of the sequences are null, or fewer than none", std::to_string(batch));
  return batch == 0 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>(sequences, sequences + batch);
}

}  // namespace
}  // namespace heed::offload

using heed::Error;
using heed::ErrorCode;
using heed::offload::attend;
using heed::offload::guarded_call;
using heed::offload::ids_of;
using heed::offload::keep_handle;
using heed::offload::kLivingPool;
using heed::offload::living;
using heed::offload::Offload;
using heed::offload::PageMemory;
using heed::offload::read_call;
using heed::offload::read_config;
using heed::offload::wait_if_simulated;

extern "C" {

void heed_offload_config_init(heed_offload_config* config) {
  if (config == nullptr) return;
  *config = heed_offload_config{};
  config->struct_size = sizeof(heed_offload_config);
  config->abi_version = HEED_ABI_VERSION;
  config->layers = config->heads = config->heads_kv = 1;
  config->dim = config->dim_v = 64;
  config->page_size = 64;
  config->streamed_share = -1;
}
void heed_offload_call_init(heed_offload_call* call) {
  if (call == nullptr) return;
  *call = heed_offload_call{};
  call->struct_size = sizeof(heed_offload_call);
  call->window_left = -1;
}
void heed_offload_info_init(heed_offload_info* info) {
  if (info == nullptr) return;
  *info = heed_offload_info{};
  info->struct_size = sizeof(heed_offload_info);
}

heed_status heed_offload_create(const heed_offload_config* config, heed_offload** pool) {
  return guarded_call([&] {
    if (pool == nullptr) throw Error(ErrorCode::usage, "there is nowhere to put the pool: the second argument is null");
    *pool = nullptr;
    auto made = std::make_unique<heed_offload>();
    made->pool = std::make_unique<Offload>(read_config(config));
    made->state = kLivingPool;
    *pool = made.release();
  });
}

void heed_offload_destroy(heed_offload* pool) {
  if (pool == nullptr) return;
  std::uint64_t expected = kLivingPool;
  if (!pool->state.compare_exchange_strong(expected, 1)) return;
  if (pool->process == ::getpid())
    pool->pool.reset();
  else
    (void)pool->pool.release();  // whose threads this child of fork does not have
  (void)guarded_call([&] { keep_handle(pool); });
}

heed_status heed_offload_get_info(const heed_offload* pool, heed_offload_info* info) {
  return guarded_call([&] {
    if (info == nullptr || info->struct_size != sizeof(heed_offload_info))
      throw Error(ErrorCode::usage, "the info is null, or was not set with heed_offload_info_init");
    living(pool).info(*info);
  });
}

heed_status heed_offload_add(heed_offload* pool, int64_t* sequence) {
  return guarded_call([&] {
    if (sequence == nullptr) throw Error(ErrorCode::usage, "there is nowhere to put the sequence's number: it is null");
    *sequence = living(pool).add();
  });
}

heed_status heed_offload_remove(heed_offload* pool, int64_t sequence) {
  return guarded_call([&] { living(pool).remove(sequence); });
}

heed_status heed_offload_length(const heed_offload* pool, int64_t sequence, int32_t layer, int64_t* keys) {
  return guarded_call([&] {
    if (keys == nullptr) throw Error(ErrorCode::usage, "there is nowhere to put the number of keys: it is null");
    *keys = living(pool).length(sequence, layer);
  });
}

heed_status heed_offload_append(heed_offload* pool, const heed_offload_call* call, void* stream) {
  return guarded_call([&] {
    Offload& p = living(pool);
    p.append(read_call(call, p.config(), false), stream);
    wait_if_simulated(p);
  });
}
heed_status heed_offload_prefill(heed_offload* pool, const heed_offload_call* call, void* stream) {
  return attend(pool, call, stream, false);
}
heed_status heed_offload_decode(heed_offload* pool, const heed_offload_call* call, void* stream) {
  return attend(pool, call, stream, true);
}

heed_status heed_offload_pages(const heed_offload* pool, int32_t layer, const void** k, const void** v) {
  return guarded_call([&] {
    const Offload& p = living(pool);
    if (k == nullptr || v == nullptr)
      throw Error(ErrorCode::usage, "there is nowhere to put the addresses: one is null");
    if (layer < 0 || layer >= p.config().pages.layers)
      throw Error(ErrorCode::invalid_workload, "the pool has no such layer", std::to_string(layer));
    const PageMemory memory = p.host_pages(layer);
    *k = memory.k;
    *v = memory.v;
  });
}

heed_status heed_offload_table(const heed_offload* pool, const int64_t* sequences, int64_t batch, int32_t* table,
                               int64_t stride) {
  return guarded_call([&] {
    const Offload& p = living(pool);
    const std::vector<std::int64_t> ids = ids_of(sequences, batch);
    if (stride < 0 || (table == nullptr && !ids.empty()))
      throw Error(ErrorCode::usage, "the table is null, or its stride is negative", std::to_string(stride));
    p.write_table(ids, table, stride);
  });
}

size_t heed_offload_explain(const heed_offload* pool, const int64_t* sequences, int64_t batch, char* text,
                            size_t bytes) {
  std::string all;
  const heed_status status = guarded_call([&] { all = living(pool).explain(ids_of(sequences, batch)); });
  if (status != HEED_OK) all = std::string("refused   ") + heed_status_name(status) + ": " + heed_last_error() + "\n";
  heed::api::copy_text(all, text, bytes);
  return all.size();
}
}
