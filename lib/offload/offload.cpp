#include "offload/offload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "padding/padding.hpp"

namespace heed::offload {
namespace {

constexpr std::size_t kDesks = 32;         // calls that the host may be ahead of the device
constexpr double kMostStepsToPay = 64;     // a page that takes more decoding steps to pay stays where it is
constexpr std::int64_t kMostPromoted = 4;  // pages of one call: a call's copies must not hold up the next

std::byte* bytes_at(void* memory, std::int64_t offset) {
  return static_cast<std::byte*>(memory) + offset;
}

api::Options options_of(const Config& c) {
  api::Options o;
  o.programs = c.programs;
  o.threads = c.threads;
  return o;
}

}  // namespace

void HostFailure::set(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (why_.empty()) why_ = why;
}
void HostFailure::throw_if_set() const {
  const std::lock_guard lock(mutex_);
  if (!why_.empty()) throw Error(ErrorCode::internal, why_);
}

Offload::Offload(const Config& config)
    : config_(config),
      lanes_(config.kind == DeviceKind::cuda
                 ? make_cuda_lanes(config.ordinal, options_of(config), config.has_eight_bits())
                 : make_simulated_lanes(config.simulation)),
      pages_(config.pages) {
  const std::int64_t layers = config_.pages.layers;
  host_ =
      HostMemory(static_cast<std::size_t>(config_.page_bytes() * config_.pages.host_pages * layers), lanes_->node());
  try {
    lanes_->pin(host_.data(), host_.bytes());
    is_pinned_ = true;
    (void)at_least(device_, static_cast<std::size_t>(config_.page_bytes() * config_.pages.device_pages * layers));
    (void)at_least(work_->ring, static_cast<std::size_t>(config_.page_bytes() * config_.chunk_pages * config_.chunks));
    for (std::size_t i = 0; i < kDesks; ++i) work_->desks.push_back(std::make_unique<Desk>());
    work_->read.resize(static_cast<std::size_t>(config_.chunks));
    bring_scales();
    measure();
  } catch (...) {
    let_go();
    throw;
  }
}

Offload::~Offload() {
  let_go();
}

// What is queued may still read and write the memory.
void Offload::let_go() noexcept {
  try {
    lanes_->finish_all();
  } catch (...) {  // of a device that was lost nothing runs any more
  }
  for (Scratch* scratch : {&device_, &scales_, &fresh_})
    if (scratch->at != nullptr) lanes_->release(scratch->at);
  release(own_);
  for (const auto& graph : graphs_) {
    for (const Scratch& scratch : graph->outgrown) lanes_->release(scratch.at);
    release(graph->work);
  }
  if (is_pinned_) lanes_->unpin(host_.data());
  lanes_.reset();
}

std::byte* Offload::at_least(Scratch& scratch, std::size_t bytes) {
  if (bytes <= scratch.bytes) return static_cast<std::byte*>(scratch.at);
  if (scratch.at != nullptr && graph_ != nullptr) {
    graph_->outgrown.push_back(scratch);
    scratch = {};
  }
  if (scratch.at != nullptr) {
    lanes_->finish_all();
    lanes_->release(scratch.at);
    scratch = {};
  }
  scratch.at = lanes_->allocate(bytes);
  scratch.bytes = bytes;
  return static_cast<std::byte*>(scratch.at);
}

Offload::Desk& Offload::desk_of(std::size_t host_bytes, std::size_t number_bytes) {
  if (graph_ != nullptr) {  // every launch of the graph reads what is on it
    work_->desks.push_back(std::make_unique<Desk>());
    work_->next_desk = work_->desks.size() - 1;
  }
  Desk& desk = *work_->desks[work_->next_desk];
  work_->next_desk = (work_->next_desk + 1) % work_->desks.size();
  if (desk.end != nullptr && !lanes_->is_done(desk.end)) lanes_->finish(desk.end);
  if (host_bytes > desk.memory.bytes()) {
    if (desk.memory.data() != nullptr) lanes_->unpin(desk.memory.data());
    desk.memory = HostMemory();
    HostMemory larger(host_bytes + host_bytes / 2, lanes_->node());
    lanes_->pin(larger.data(), larger.bytes());
    desk.memory = std::move(larger);
  }
  // Twice as many, for a context grows and each growth waits for the device.
  if (number_bytes > desk.numbers.bytes) (void)at_least(desk.numbers, 2 * number_bytes);
  return desk;
}

PageMemory Offload::host_pages(int layer) const {
  const std::int64_t pages = config_.pages.host_pages;
  std::byte* const at = host_.data() + layer * pages * config_.page_bytes();
  return {at, at + pages * config_.k_page_bytes(), pages};
}
PageMemory Offload::device_pages(int layer) const {
  const std::int64_t pages = config_.pages.device_pages;
  if (pages == 0) return {};
  std::byte* const at = bytes_at(device_.at, layer * pages * config_.page_bytes());
  return {at, at + pages * config_.k_page_bytes(), pages};
}

std::int64_t Offload::add() {
  const std::lock_guard lock(mutex_);
  return pages_.add();
}
void Offload::remove(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  free_sequences({&id, 1});
  pages_.remove(id);
}
std::int64_t Offload::length(std::int64_t id, int layer) const {
  const std::lock_guard lock(mutex_);
  if (layer < 0 || layer >= config_.pages.layers)
    throw Error(ErrorCode::invalid_workload,
                fmt::format("layer is {}; the pool has layers 0 to {}", layer, config_.pages.layers - 1),
                std::to_string(layer));
  return pages_.of(id).keys[static_cast<std::size_t>(layer)];
}

void Offload::begin() {
  if (!broken_.empty()) throw Error(ErrorCode::driver, broken_);
  host_failure_->throw_if_set();
  (void)end_graphs();
}
// The stream passes a call when all that it queued is done.
void Offload::end() {
  if (graph_ == nullptr) lanes_->wait(Lane::compute, written_);  // a capture comes behind all keys
  work_->last_end = lanes_->record(Lane::compute);
}
void Offload::give_up(const Error& error) {
  if (error.code() == ErrorCode::driver && broken_.empty())
    broken_ = fmt::format(
        "{}; the device is lost to this pool, whose pages in host memory can still be read: destroy it "
        "and make another",
        error.what());
}

// Rows of new keys to where they lie in pages, whole pages that follow each other at a time.
void Offload::copy_pages(const Call& call, std::size_t entry, const std::vector<PageRows>& rows, bool to_host) {
  const PageMemory memory = to_host ? host_pages(call.layer) : device_pages(call.layer);
  const std::int64_t size = config_.pages.page_size;
  const int bytes = call.is_quantised ? 1 : config_.element_bytes();
  const auto number = [&](const PageRows& r) { return to_host ? r.host : r.device; };
  for (std::size_t i = 0; i < rows.size();) {
    const PageRows& first = rows[i];
    std::size_t pages = 1;
    if (first.rows == size && number(first) != kNoSlot)
      while (i + pages < rows.size() && rows[i + pages].rows == size &&
             number(rows[i + pages]) == number(first) + static_cast<std::int32_t>(pages))
        ++pages;
    i += pages;
    if (number(first) == kNoSlot) continue;
    const auto copy = [&](const std::byte* from, const heed_strides& s, std::byte* to, std::int64_t dim) {
      const std::int64_t row = config_.heads_outer ? dim : config_.heads_kv * dim;
      const std::int64_t at = static_cast<std::int64_t>(entry) * s.batch + first.first_key * s.row;
      padding::RowCopy c{.from = from + at * bytes,
                         .to = to + (number(first) * size * config_.heads_kv * dim + first.first_row * row) * bytes,
                         .from_strides = {size * s.row, s.head, s.row},
                         .to_strides = {size * config_.heads_kv * dim, config_.heads_outer ? size * dim : dim, row},
                         .from_step = s.dim,
                         .to_step = 1,
                         .batch = static_cast<long long>(pages),
                         .heads = static_cast<int>(config_.heads_kv),
                         .rows = static_cast<int>(first.rows),
                         .from_dim = static_cast<int>(dim),
                         .to_dim = static_cast<int>(dim),
                         .is_wide = 0,
                         .element_bytes = bytes};
      c.is_wide = padding::is_wide(c) ? 1 : 0;
      return c;
    };
    const padding::RowCopy both[] = {copy(call.k, call.k_strides, memory.k, config_.dim),
                                     copy(call.v, call.v_strides, memory.v, config_.dim_v)};
    lanes_->copy_rows(to_host ? Lane::out : Lane::compute, both);
  }
}

MarkPointer Offload::write_keys(const Call& given, const MarkPointer& start) {
  if (given.new_keys == 0) return written_;
  const bool quantises = config_.has_eight_bits() && !given.is_quantised;
  const Call call = quantises ? with_eight_bits(given) : given;
  lanes_->wait(Lane::out, quantises ? lanes_->record(Lane::compute) : start);
  for (std::size_t entry = 0; entry < call.ids.size(); ++entry) {
    const std::int64_t id = call.ids[entry];
    const std::int64_t keys = pages_.of(id).keys[static_cast<std::size_t>(call.layer)];
    const std::vector<PageRows> rows = pages_.rows_of(id, keys - call.new_keys, call.new_keys);
    copy_pages(call, entry, rows, true);
    copy_pages(call, entry, rows, false);
  }
  written_ = lanes_->record(Lane::out);
  return written_;
}

void Offload::append(const Call& call, void* stream) {
  const std::lock_guard lock(mutex_);
  begin();
  use(call, false, stream);
  lanes_->wait(Lane::compute, work_->last_end);
  free_sequences(call.ids);
  pages_.append(call.ids, call.layer, call.new_keys);
  try {
    (void)write_keys(call, lanes_->record(Lane::compute));
    end();
  } catch (const Error& error) {
    undo(call, &error);
    throw;
  } catch (...) {
    undo(call, nullptr);
    throw;
  }
}

void Offload::attend(const Call& given, bool is_decoding, void* stream) {
  const std::lock_guard lock(mutex_);
  begin();
  use(given, true, stream);
  struct Stop {
    Offload* pool;
    ~Stop() {
      if (pool->graph_ != nullptr) pool->stop_recording();
    }
  } const stop{this};
  if (given.new_keys > 0) free_sequences(given.ids);
  pages_.append(given.ids, given.layer, given.new_keys);
  try {
    lanes_->wait(Lane::compute, work_->last_end);
    const Call call = with_dense_rows(given);
    MarkPointer written;
    if (graph_ == nullptr) {
      const MarkPointer start = lanes_->record(Lane::compute);
      const MarkPointer before = written_;
      written = write_keys(call, start);
      // Copies of pages that were there need not wait for those that this call brings.
      lanes_->wait(Lane::in, before);
      if (is_decoding) promote(call, start);
    }
    Wanted wanted{.entries = {},
                  .layer = call.layer,
                  .rows = call.rows,
                  .page_size = config_.pages.page_size,
                  .causal = call.causal,
                  .window_left = call.window_left,
                  .new_keys = call.new_keys};
    for (const std::int64_t id : call.ids) wanted.entries.push_back(&pages_.of(id));
    if (call.rows > 0 && is_decoding && can_be_counted_anew(wanted)) {
      follow_rates();
      const double share = share_of(bytes_of(call.ids, call.layer));
      attend_view({&call, 0, static_cast<std::int64_t>(call.ids.size())},
                  decode_pieces(wanted, share, config_.chunk_pages), written);
    } else if (call.rows > 0) {
      const std::vector<const Sequence*> all = wanted.entries;
      for (std::size_t entry = 0; entry < all.size(); ++entry) {
        wanted.entries = {all[entry]};
        attend_view({&call, static_cast<std::int64_t>(entry), 1}, prefill_pieces(wanted, config_.chunk_pages), written);
      }
    }
    end();
  } catch (const Error& error) {
    undo(given, &error);
    throw;
  } catch (...) {
    undo(given, nullptr);
    throw;
  }
}

// Of a call that was refused in the middle nothing goes on, and its keys are not there.
void Offload::undo(const Call& call, const Error* error) {
  pages_.take_back(call.ids, call.layer, call.new_keys);
  if (graph_ != nullptr) return stop_recording();  // nothing was queued; what is wrong is the capture
  if (error != nullptr) give_up(*error);
  try {
    lanes_->finish_all();
  } catch (const Error& lost) {
    give_up(lost);
  }
}

// Pages come back to a device that has room again, of the first layer's call for all of them.
void Offload::promote(const Call& call, const MarkPointer& start) {
  if (call.layer != 0 || pages_.free_device() == 0) return;
  DecodeBytes bytes = bytes_of(call.ids, call.layer);
  if (steps_to_pay(config_.rates, bytes, static_cast<double>(config_.page_bytes())) > kMostStepsToPay) return;
  bool is_any = false;
  for (const std::int64_t id : call.ids) {
    const std::int64_t written = pages_.of(id).keys[0] - call.new_keys;
    for (const Pages::Moved& moved : pages_.promote(id, kMostPromoted, written)) {
      if (!is_any) lanes_->wait(Lane::in, start);  // whoever had the slot has read it
      is_any = true;
      for (int layer = 0; layer < config_.pages.layers; ++layer) {
        const PageMemory from = host_pages(layer);
        const PageMemory to = device_pages(layer);
        const std::int64_t k = config_.k_page_bytes();
        const std::int64_t v = config_.v_page_bytes();
        lanes_->copy_in(Lane::in, to.k + moved.device * k, from.k + moved.host * k, static_cast<std::size_t>(k));
        lanes_->copy_in(Lane::in, to.v + moved.device * v, from.v + moved.host * v, static_cast<std::size_t>(v));
      }
    }
  }
  if (is_any) lanes_->wait(Lane::compute, lanes_->record(Lane::in));
}

DecodeBytes Offload::bytes_of(std::span<const std::int64_t> ids, int layer) const {
  DecodeBytes bytes;
  for (const std::int64_t id : ids) {
    const Sequence& s = pages_.of(id);
    const std::int64_t keys = s.keys[static_cast<std::size_t>(layer)];
    for (std::int64_t page = 0; page * config_.pages.page_size < keys; ++page)
      (s.device[static_cast<std::size_t>(page)] == kNoSlot ? bytes.remote : bytes.resident) +=
          static_cast<double>(config_.page_bytes());
  }
  return bytes;
}

double Offload::share_of(const DecodeBytes& bytes) const {
  if (!host_can_) return 1;
  return config_.streamed >= 0 ? config_.streamed : plan_decode(config_.rates, bytes).streamed;
}

void Offload::finish() {
  const std::lock_guard lock(mutex_);
  try {
    lanes_->finish_all();
  } catch (const Error& error) {
    give_up(error);
    throw;
  }
  host_failure_->throw_if_set();
}

void Offload::write_table(std::span<const std::int64_t> ids, std::int32_t* table, std::int64_t stride) const {
  const std::lock_guard lock(mutex_);
  for (const std::int64_t id : ids)
    if (static_cast<std::int64_t>(pages_.of(id).host.size()) > stride)
      throw Error(ErrorCode::usage,
                  fmt::format("sequence {} has {} pages; rows of the table are {} numbers apart", id,
                              pages_.of(id).host.size(), stride),
                  std::to_string(stride));
  for (std::size_t entry = 0; entry < ids.size(); ++entry) {
    const Sequence& s = pages_.of(ids[entry]);
    std::copy(s.host.begin(), s.host.end(), table + static_cast<std::int64_t>(entry) * stride);
  }
}

}  // namespace heed::offload
