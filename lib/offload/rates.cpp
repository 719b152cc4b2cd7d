// What the machine does in a second, measured when a pool is made: on its own memory, by its own programs.
#include <chrono>
#include <functional>
#include <numeric>

#include "offload/offload.hpp"

namespace heed::offload {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMostSimulatedBytes = std::int64_t{4} << 20;
constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;  // past the caches of a host
constexpr std::int64_t kPrefillRows = 4096;
constexpr std::int64_t kSimulatedRows = 16;
constexpr double kLongEnough = 10e-3;
constexpr int kMostRuns = 50;

// Seconds of one run, after one that is not counted.
double seconds_of(const std::function<void()>& run) {
  run();
  const auto begin = Clock::now();
  for (int runs = 1;; ++runs) {
    run();
    const double all = std::chrono::duration<double>(Clock::now() - begin).count();
    if (all >= kLongEnough || runs == kMostRuns) return all / runs;
  }
}

}  // namespace

double Offload::link_rate() {
  const auto bytes = static_cast<std::size_t>(config_.page_bytes() * config_.chunk_pages);
  const double seconds = seconds_of([&] {
    lanes_->copy_in(Lane::in, work_->ring.at, host_.data(), bytes);
    lanes_->finish(lanes_->record(Lane::in));
  });
  return static_cast<double>(bytes) / seconds;
}

std::pair<double, double> Offload::attention_rate(Place place, std::int64_t rows, bool is_timed) {
  const bool on_host = place == Place::host;
  const std::int64_t most = config_.kind == DeviceKind::cpu ? kMostSimulatedBytes : kMostBytes;
  const std::int64_t pages = std::clamp(most / config_.page_bytes(), std::int64_t{1},
                                        on_host ? config_.pages.host_pages : config_.chunk_pages * config_.chunks);
  Piece piece;
  piece.place = place;
  piece.rows = rows;
  piece.pages.resize(1);
  piece.pages[0].resize(static_cast<std::size_t>(pages));
  std::iota(piece.pages[0].begin(), piece.pages[0].end(), 0);
  const std::int64_t keys = pages * config_.pages.page_size;
  piece.keys = {static_cast<std::int32_t>(keys)};
  const std::int64_t q_bytes = config_.heads * rows * config_.dim * config_.element_bytes();
  const std::int64_t o_bytes = config_.heads * rows * config_.dim_v * config_.element_bytes();
  const auto aligned = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::int64_t all_bytes = aligned(q_bytes) + aligned(o_bytes) + config_.heads * rows * 4;
  HostMemory own;
  if (on_host) own = HostMemory(static_cast<std::size_t>(all_bytes), lanes_->node());
  std::byte* const room = on_host ? own.data() : at_least(work_->parts, static_cast<std::size_t>(all_bytes));
  Call call;
  call.rows = rows;
  call.scale = 1;
  call.q = room;
  call.q_strides = {config_.heads * rows * config_.dim, rows * config_.dim, config_.dim, 1};
  const heed_strides o_strides = {config_.heads * rows * config_.dim_v, rows * config_.dim_v, config_.dim_v, 1};
  std::byte* const o = room + aligned(q_bytes);
  auto* const lse = reinterpret_cast<float*>(o + aligned(o_bytes));
  const View view{&call, 0, 1};
  std::int64_t numbers = 0;
  work_->next_buffer = 0;
  std::vector<Piece> pieces = {std::move(piece)};
  const Launch launch = lay_out(view, pieces, numbers)[0];
  Desk& desk = desk_of(static_cast<std::size_t>(numbers) * 4, static_cast<std::size_t>(numbers) * 4);
  auto* const table = reinterpret_cast<std::int32_t*>(desk.memory.data());
  write_numbers(launch, table);
  double seconds = 0;
  if (on_host) {
    const std::shared_ptr<const api::Plan> plan = plan_of(problem_of(view, launch, call.q_strides, o_strides));
    heed_plan_info known;
    heed_plan_info_init(&known);
    plan->info(known);
    if (known.workspace_bytes > work_->host_workspace->bytes())
      work_->host_workspace = std::make_shared<HostMemory>(known.workspace_bytes, lanes_->node());
    heed_tensors t;
    heed_tensors_init(&t);
    t.q = room;
    t.k = host_pages(0).k;
    t.v = host_pages(0).v;
    t.o = o;
    t.lse = lse;
    t.page_table = table + launch.table;
    t.seqused_k = table + launch.keys;
    take_host_scales(t, 0);
    if (!is_timed) return {};
    seconds = seconds_of([&] {
      if (work_->host_workspace->data() != nullptr) plan->prepare(work_->host_workspace->data(), nullptr);
      plan->run(&t, 1, work_->host_workspace->data(), nullptr, 0);
    });
  } else {
    if (!is_timed) {
      // Whether there are programs.
      pieces[0].rows = launch.groups.front().rows;
      (void)plan_of(problem_of(view, launch, call.q_strides, o_strides));
      return {};
    }
    lanes_->copy_in(Lane::compute, desk.numbers.at, table, static_cast<std::size_t>(numbers) * 4);
    seconds = seconds_of([&] {
      run_piece(view, launch, static_cast<const std::int32_t*>(desk.numbers.at), o, lse, o_strides);
      lanes_->finish(lanes_->record(Lane::compute));
    });
  }
  const double flops = 2.0 * static_cast<double>(config_.heads * rows) * static_cast<double>(keys) *
                       static_cast<double>(config_.dim + config_.dim_v);
  return {static_cast<double>(pages * config_.page_bytes()) / seconds, flops / seconds};
}

void Offload::measure() {
  const Rates given = config_.rates;
  Rates& rates = config_.rates;
  (void)lanes_->use(nullptr);
  rates_from_ = given.link > 0 && given.host > 0 && given.device > 0 && given.device_flops > 0 ? "given"
                : given == Rates{} ? "measured when the pool was made"
                                   : "measured when the pool was made, but those that were given";
  if (given.link <= 0) rates.link = link_rate();
  const double device = attention_rate(Place::streamed, 1, given.device <= 0).first;
  if (given.device <= 0) rates.device = device;
  const std::int64_t rows = config_.kind == DeviceKind::cpu ? kSimulatedRows : kPrefillRows;
  const double flops = attention_rate(Place::streamed, rows, given.device_flops <= 0).second;
  if (given.device_flops <= 0) rates.device_flops = flops;
  try {
    const double host = attention_rate(Place::host, 1, given.host <= 0).first;
    if (given.host <= 0) rates.host = host;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::programs) throw;
    host_can_ = false;
    host_refusal_ = error.what();
    rates.host = 0;
  }
  is_following_ = host_can_ && given == Rates{} && config_.streamed < 0;
  host_rate_->begin(rates.host);
  in_rate_.begin(rates.link);
}

// Before a call is divided: what calls that are done took. Each rate was measured alone, and the link and the
// processors read the same memory. A share that is given stays, as do rates, and those of a graph are of its capture.
void Offload::follow_rates() {
  if (!is_following_ || graph_ != nullptr) return;
  for (; watched_count_ > 0; --watched_count_) {
    Copies& copies = watched_[oldest_watched_];
    const std::optional<double> seconds = lanes_->seconds_between(copies.begin, copies.end);
    if (!seconds) break;
    in_rate_.add(copies.bytes, *seconds);
    copies = {};
    oldest_watched_ = (oldest_watched_ + 1) % watched_.size();
  }
  config_.rates.link = in_rate_.planned();
  config_.rates.host = host_rate_->planned();
}

bool Offload::can_watch_link() const {
  return is_following_ && graph_ == nullptr && watched_count_ < watched_.size();
}

}  // namespace heed::offload
