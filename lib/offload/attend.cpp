// One call: launches over parts of the keys, on the device and on the processors at the same time, and their merge.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <limits>

#include "base/check.hpp"
#include "merge/merge.hpp"
#include "offload/offload.hpp"
#include "offload/parts.hpp"
#include "padding/padding.hpp"

namespace heed::offload {
namespace {

// Of partial results that wait to be merged: a merge of four reads and writes the sums once, 2% of the time of chunks
// of 8,192 keys for 16,384 rows.
constexpr std::int64_t kMostPartBytes = std::int64_t{512} << 20;

// Tables of a few sizes, so that a plan serves many steps of decoding: at most an eighth longer than they must be.
std::int64_t table_pages_of(std::int64_t longest, std::int64_t page_size) {
  const auto pages = static_cast<std::uint64_t>(std::max<std::int64_t>(longest, 1));
  const std::uint64_t step = std::max<std::uint64_t>(1, std::bit_ceil(pages) / 8);
  const auto rounded = static_cast<std::int64_t>((pages + step - 1) / step * step);
  return std::min(rounded, std::max(longest, (api::kMostSize - 1) / page_size));
}

heed_strides dense(std::int64_t heads, std::int64_t rows, std::int64_t dim) {
  return {heads * rows * dim, rows * dim, dim, 1};
}
TensorStrides of(const heed_strides& s) {
  return {s.batch, s.head, s.row};
}

}  // namespace

std::vector<Offload::Launch> Offload::lay_out(const View& view, const std::vector<Piece>& pieces,
                                              std::int64_t& numbers) {
  std::vector<Launch> launches;
  for (const Piece& piece : pieces) {
    Launch launch;
    launch.piece = &piece;
    launch.table_pages = table_pages_of(piece.longest(), config_.pages.page_size);
    launch.table = numbers;
    launch.keys = numbers + view.entries * launch.table_pages;
    launch.groups =
        row_groups(piece.mask, piece.rows, piece.place == Place::host ? api::kMostSize : config_.most_rows());
    numbers = launch.keys + view.entries * static_cast<std::int64_t>(launch.groups.size());
    if (piece.place == Place::streamed) launch.buffer = work_->next_buffer++ % config_.chunks;
    launches.push_back(launch);
  }
  return launches;
}

// Pages of a chunk lie in its buffer one behind the other.
void Offload::write_numbers(const Launch& launch, std::int32_t* numbers) const {
  const Piece& piece = *launch.piece;
  auto in_ring = static_cast<std::int32_t>(launch.buffer * config_.chunk_pages);
  for (std::size_t entry = 0; entry < piece.pages.size(); ++entry) {
    std::int32_t* const row = numbers + launch.table + static_cast<std::int64_t>(entry) * launch.table_pages;
    std::fill(row, row + launch.table_pages, 0);
    for (std::size_t i = 0; i < piece.pages[entry].size(); ++i)
      row[i] = piece.place == Place::streamed ? in_ring++ : piece.pages[entry][i];
    std::int32_t* keys = numbers + launch.keys + static_cast<std::int64_t>(entry);
    for (const RowGroup& group : launch.groups) {
      *keys = static_cast<std::int32_t>(std::max<std::int64_t>(0, piece.keys[entry] - group.hidden));
      keys += piece.pages.size();
    }
  }
}

void Offload::copy_queries(const std::byte* from, const heed_strides& strides, std::int64_t entries, std::int64_t rows,
                           std::byte* to) {
  padding::RowCopy copy{.from = from,
                        .to = to,
                        .from_strides = of(strides),
                        .to_strides = of(dense(config_.heads, rows, config_.dim)),
                        .from_step = strides.dim,
                        .to_step = 1,
                        .batch = entries,
                        .heads = static_cast<int>(config_.heads),
                        .rows = static_cast<int>(rows),
                        .from_dim = static_cast<int>(config_.dim),
                        .to_dim = static_cast<int>(config_.dim),
                        .is_wide = 0,
                        .element_bytes = config_.element_bytes()};
  copy.is_wide = padding::is_wide(copy) ? 1 : 0;
  lanes_->copy_rows(Lane::compute, {&copy, 1});
}

// Q goes to the host's memory, the results are read there by the merge: 8 KB of a row of 32 heads of 128 elements.
void Offload::queue_host(const View& view, const Launch& launch, const std::int32_t* numbers, std::byte* q,
                         std::byte* o, float* lse, const MarkPointer& written) {
  const Call& call = *view.call;
  const Piece& piece = *launch.piece;
  const heed_strides q_strides = dense(config_.heads, piece.rows, config_.dim);
  const std::shared_ptr<const api::Plan> plan =
      plan_of(problem_of(view, launch, q_strides, dense(config_.heads, piece.rows, config_.dim_v)));
  copy_queries(call.q + (view.first_entry * call.q_strides.batch) * config_.element_bytes(), call.q_strides,
               view.entries, piece.rows, q);
  lanes_->wait(Lane::host, lanes_->record(Lane::compute));
  if (piece.has_new) lanes_->wait(Lane::host, written);
  heed_plan_info known;
  heed_plan_info_init(&known);
  plan->info(known);
  if (known.workspace_bytes > work_->host_workspace->bytes())
    work_->host_workspace = std::make_shared<HostMemory>(known.workspace_bytes, lanes_->node());
  const PageMemory memory = host_pages(call.layer);
  heed_tensors t;
  heed_tensors_init(&t);
  t.q = q;
  t.k = memory.k;
  t.v = memory.v;
  t.o = o;
  t.lse = lse;
  t.page_table = numbers + launch.table;
  t.seqused_k = numbers + launch.keys;
  take_host_scales(t, call.layer);
  const std::int64_t count = view.entries * config_.heads * piece.rows;
  const auto bytes = static_cast<double>(piece.count() * config_.page_bytes());
  const std::shared_ptr<MovingRate> rate = is_following_ && graph_ == nullptr ? host_rate_ : nullptr;
  lanes_->call([plan, t, count, bytes, rate, workspace = work_->host_workspace, failure = host_failure_] {
    std::string why;
    try {
      const auto begin = std::chrono::steady_clock::now();
      if (workspace->data() != nullptr) plan->prepare(workspace->data(), nullptr);
      plan->run(&t, 1, workspace->data(), nullptr, 0);
      if (rate != nullptr)
        rate->add(bytes, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      return;
    } catch (const std::exception& error) {
      why = error.what();
    }
    // Rows of NaN, not rows without these keys; the next call says why.
    std::fill(t.lse, t.lse + count, std::numeric_limits<float>::quiet_NaN());
    failure->set(fmt::format("the processors' part of an earlier call failed: {}", why));
  });
}

MarkPointer Offload::bring(const Launch& chunk, int layer, const MarkPointer& written, bool is_watched) {
  const Piece& piece = *chunk.piece;
  lanes_->wait(Lane::in, work_->read[static_cast<std::size_t>(chunk.buffer)]);
  if (piece.has_new) lanes_->wait(Lane::in, written);
  const MarkPointer begin = is_watched ? lanes_->record_time(Lane::in) : nullptr;
  std::vector<std::int32_t> pages;
  for (const auto& of_entry : piece.pages) pages.insert(pages.end(), of_entry.begin(), of_entry.end());
  const PageMemory from = host_pages(layer);
  const std::int64_t ring_pages = config_.chunks * config_.chunk_pages;
  std::byte* const ring_k = static_cast<std::byte*>(work_->ring.at);
  std::byte* const ring_v = ring_k + ring_pages * config_.k_page_bytes();
  for (std::size_t i = 0; i < pages.size();) {
    std::size_t run = 1;
    while (i + run < pages.size() && pages[i + run] == pages[i] + static_cast<std::int32_t>(run)) ++run;
    const std::int64_t to = chunk.buffer * config_.chunk_pages + static_cast<std::int64_t>(i);
    const auto copy = [&](std::byte* ring, const std::byte* host, std::int64_t bytes) {
      lanes_->copy_in(Lane::in, ring + to * bytes, host + pages[i] * bytes, run * static_cast<std::size_t>(bytes));
    };
    copy(ring_k, from.k, config_.k_page_bytes());
    copy(ring_v, from.v, config_.v_page_bytes());
    i += run;
  }
  if (is_watched)
    watched_[(oldest_watched_ + watched_count_++) % watched_.size()] = {
        begin, lanes_->record_time(Lane::in), static_cast<double>(piece.count() * config_.page_bytes())};
  return lanes_->record(Lane::in);
}

void Offload::attend_view(const View& view, const std::vector<Piece>& pieces, const MarkPointer& written) {
  const Call& call = *view.call;
  const std::int64_t rows_of_all = view.entries * config_.heads * call.rows;
  const std::int64_t part_o = whole(rows_of_all * config_.dim_v * config_.element_bytes());
  const std::int64_t part_bytes = part_o + whole(rows_of_all * 4);
  const bool has_host =
      std::any_of(pieces.begin(), pieces.end(), [](const Piece& p) { return p.place == Place::host; });

  std::int64_t numbers = 0;
  const std::vector<Launch> launches = lay_out(view, pieces, numbers);
  const std::int64_t number_bytes = whole(numbers * 4);
  const std::int64_t q_bytes = has_host ? whole(rows_of_all * config_.dim * config_.element_bytes()) : 0;
  Desk& desk = desk_of(static_cast<std::size_t>(number_bytes + q_bytes + (has_host ? part_bytes : 0)),
                       static_cast<std::size_t>(number_bytes));
  auto* const on_host = reinterpret_cast<std::int32_t*>(desk.memory.data());
  const auto* const on_device = static_cast<const std::int32_t*>(desk.numbers.at);
  for (const Launch& launch : launches) write_numbers(launch, on_host);
  if (numbers > 0) lanes_->copy_in(Lane::compute, desk.numbers.at, on_host, static_cast<std::size_t>(numbers) * 4);

  std::vector<const Launch*> chunks;
  std::vector<const Launch*> in_order;  // on the device
  const Launch* host = nullptr;
  for (const Launch& launch : launches) {
    if (launch.piece->place == Place::streamed) chunks.push_back(&launch);
    if (launch.piece->place == Place::host)
      host = &launch;
    else
      in_order.push_back(&launch);
  }
  // Without a part of the processors there is no memory for one.
  std::byte* const host_q = host == nullptr ? nullptr : desk.memory.data() + number_bytes;
  std::byte* const host_o = host == nullptr ? nullptr : host_q + q_bytes;
  auto* const host_lse = host == nullptr ? nullptr : reinterpret_cast<float*>(host_o + part_o);
  MarkPointer host_done;
  if (host != nullptr) {
    queue_host(view, *host, on_host, host_q, host_o, host_lse, written);
    host_done = lanes_->record(Lane::host);
  }
  std::vector<MarkPointer> arrived;
  // One chunk of a call beside the processors says what the link does: all of them together wait for kernels, too.
  const std::size_t watched = host != nullptr && can_watch_link() ? chunks.size() / 2 : chunks.size();
  const auto bring_next = [&] {
    const std::size_t next = arrived.size();
    if (next < chunks.size()) arrived.push_back(bring(*chunks[next], call.layer, written, next == watched));
  };
  if (!chunks.empty())
    (void)at_least(work_->ring, static_cast<std::size_t>(config_.page_bytes() * config_.chunk_pages * config_.chunks));
  for (std::int64_t i = 0; i < config_.chunks; ++i) bring_next();

  merge::Merge all{};
  all.o = call.o + view.first_entry * call.o_strides.batch * config_.element_bytes();
  all.lse = call.lse == nullptr ? nullptr : call.lse + view.first_entry * config_.heads * call.rows;
  all.sinks = call.sinks;
  all.o_strides = of(call.o_strides);
  all.lse_strides = {config_.heads * call.rows, call.rows, 1};
  all.batch = view.entries;
  all.heads = static_cast<int>(config_.heads);
  all.rows = static_cast<int>(call.rows);
  all.dim = static_cast<int>(config_.dim_v);
  all.element = static_cast<int>(config_.dtype);

  const bool is_whole = launches.size() == 1 && host == nullptr && in_order[0]->piece->rows == call.rows &&
                        call.sinks == nullptr && writes_in_place(call);
  // Sums and the processors' part take two of those that a launch merges.
  const std::int64_t slots =
      std::clamp<std::int64_t>(kMostPartBytes / std::max<std::int64_t>(part_bytes, 1), 2, merge::kMostPartials - 2);
  const auto needed = std::min(slots, static_cast<std::int64_t>(in_order.size()));
  std::byte* const parts =
      at_least(work_->parts, static_cast<std::size_t>(part_bytes * std::max<std::int64_t>(needed, 1)));
  std::byte* sums = nullptr;
  if (static_cast<std::int64_t>(in_order.size()) > slots)
    sums = at_least(work_->sums,
                    static_cast<std::size_t>(whole(rows_of_all * config_.dim_v * 4) + whole(rows_of_all * 4)));
  Parts results(*lanes_, all, sums, slots);
  std::size_t chunk = 0;
  for (const Launch* const launch : in_order) {
    const Piece& piece = *launch->piece;
    const bool is_streamed = piece.place == Place::streamed;
    std::byte* const part = parts + part_bytes * results.next();
    auto* const part_lse = reinterpret_cast<float*>(part + part_o);
    if (is_streamed) lanes_->wait(Lane::compute, arrived[chunk++]);
    if (is_whole) {
      run_piece(view, *launch, on_device, static_cast<std::byte*>(all.o), all.lse == nullptr ? part_lse : all.lse,
                call.o_strides);
    } else {
      const heed_strides strides = dense(config_.heads, piece.rows, config_.dim_v);
      run_piece(view, *launch, on_device, part, part_lse, strides);
      results.add({part,
                   part_lse,
                   of(strides),
                   {config_.heads * piece.rows, piece.rows, 1},
                   static_cast<int>(config_.dtype),
                   static_cast<int>(piece.first_row),
                   static_cast<int>(piece.rows),
                   1});
    }
    if (!is_streamed) continue;
    work_->read[static_cast<std::size_t>(launch->buffer)] = lanes_->record(Lane::compute);
    bring_next();
  }
  if (host != nullptr) {
    lanes_->wait(Lane::compute, host_done);
    results.add({host_o,
                 host_lse,
                 of(dense(config_.heads, call.rows, config_.dim_v)),
                 {config_.heads * call.rows, call.rows, 1},
                 static_cast<int>(config_.dtype),
                 0,
                 static_cast<int>(call.rows),
                 1});
  }
  if (!is_whole) results.finish();
  desk.end = lanes_->record(Lane::compute);
}

}  // namespace heed::offload
