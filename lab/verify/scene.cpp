#include "verify/scene.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/parallel.hpp"
#include "base/random.hpp"
#include "workload/half.hpp"
#include "workload/mask.hpp"

namespace heed::verify {
namespace {

constexpr std::uint64_t kAlignment = 256;    // cudaMalloc's, which kernels may rely on
constexpr std::uint64_t kGuardBytes = 4096;  // wider than any tile row, so that an overrun by a tile row hits it

struct Extent {
  std::int64_t heads;
  std::int64_t rows;
  std::int64_t dim;
};

// Strides of a tensor with `padding` extra rows a head (bhld) or a batch entry (blhd).
Strides strides_of(const Workload& w, const Extent& extent, std::int64_t padding) {
  const std::int64_t rows = extent.rows + padding;
  if (w.layout == Layout::bhld) return {extent.heads * rows * extent.dim, rows * extent.dim, extent.dim};
  return {rows * extent.heads * extent.dim, extent.dim, extent.heads * extent.dim};
}

std::uint64_t round_up(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Runs body(batch, head, row) over all rows of a tensor, heads in parallel.
template <typename Body>
void for_each_row(const Workload& w, const Extent& extent, const Body& body) {
  parallel_for(w.batch * extent.heads, 0, [&](std::int64_t index) {
    for (std::int64_t row = 0; row < extent.rows; ++row) body(index / extent.heads, index % extent.heads, row);
  });
}

std::int64_t element_index(const Strides& s, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return batch * s.batch + head * s.head + row * s.row;
}

}  // namespace

Scene::Scene(const Workload& workload, const InputValues& values, const LaunchPlan& plan, std::uint64_t seed,
             const SceneOptions& options)
    : workload_(workload), padding_rows_(options.padding_rows) {
  const Workload& w = workload_;
  const Extent q_extent{w.heads, w.len_q, w.dim};
  const Extent k_extent{w.heads_kv, w.len_k, w.dim};
  const Extent v_extent{w.heads_kv, w.len_k, w.dim_v};
  const Extent o_extent{w.heads, w.len_q, w.dim_v};

  std::uint64_t at = kGuardBytes;
  const auto place = [&](std::uint64_t bytes) {
    const Place result{at, bytes, {}};
    at = round_up(at + bytes) + kGuardBytes;
    return result;
  };
  const auto place_tensor = [&](const Extent& extent, std::int64_t padding) {
    Place result = place(static_cast<std::uint64_t>(w.batch * extent.heads * (extent.rows + padding) * extent.dim) *
                         size_of(w.dtype));
    result.strides = strides_of(w, extent, padding);
    return result;
  };
  q_ = place_tensor(q_extent, options.padding_rows);
  k_ = place_tensor(k_extent, options.padding_rows);
  v_ = place_tensor(v_extent, options.padding_rows);
  o_ = place_tensor(o_extent, plan.o_strides ? 0 : options.padding_rows);  // those of the plan are dense
  lse_ = place(options.with_lse ? static_cast<std::uint64_t>(w.batch * w.heads * w.len_q) * sizeof(float) : 0);
  workspace_ = place(static_cast<std::uint64_t>(plan.workspace_bytes));
  semaphores_ = place(static_cast<std::uint64_t>(plan.semaphores) * sizeof(unsigned));

  // All zero, as semaphores stay; guards between the places; then each tensor, poisoned where no values follow, and its
  // values.
  require_memory(static_cast<double>(at), "an image of the workload's tensors");
  image_.resize(at);
  Random guard(substream(seed, 100));
  std::uint64_t begin = 0;
  const auto guard_until = [&](std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; i += 8) {
      const std::uint64_t word = guard.next();
      std::memcpy(image_.data() + i, &word, std::min<std::uint64_t>(8, end - i));
    }
  };
  for (const Place* p : {&q_, &k_, &v_, &o_, &lse_, &workspace_, &semaphores_}) {
    guard_until(p->offset);
    begin = p->offset + p->bytes;
    const bool is_filled = options.padding_rows == 0 && (p == &q_ || p == &k_ || p == &v_);
    if (!is_filled && p != &semaphores_) std::memset(image_.data() + p->offset, 0xff, p->bytes);
  }
  guard_until(at);
  const auto put = [&](const Place& p, const Extent& extent, const Values& from) {
    HEED_CHECK(static_cast<std::int64_t>(from.size()) == w.batch * extent.heads * extent.rows * extent.dim);
    std::byte* to = image_.data() + p.offset;
    for_each_row(w, extent, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
      const float* source = from.data() + ((batch * extent.heads + head) * extent.rows + row) * extent.dim;
      const std::int64_t base = element_index(p.strides, batch, head, row);
      for (std::int64_t d = 0; d < extent.dim; ++d)
        store_element(w.dtype, to, static_cast<std::size_t>(base + d), source[d]);
    });
  };
  put(q_, q_extent, values.q);
  put(k_, k_extent, values.k);
  put(v_, v_extent, values.v);

  launch_.q = q_.offset;
  launch_.k = k_.offset;
  launch_.v = v_.offset;
  launch_.o = o_.offset;
  launch_.lse = options.with_lse ? lse_.offset : worker::kNull;
  launch_.workspace = plan.workspace_bytes > 0 ? workspace_.offset : worker::kNull;
  launch_.semaphores = plan.semaphores > 0 ? semaphores_.offset : worker::kNull;
  launch_.grid = plan.grid;
  ForwardParams& s = launch_.shape;
  s = with_sizes(s, whole_sizes_of(w));
  launch_.mask = mask_kind(w);
  launch_.element = facts_of(w.dtype).element;
  const auto copy = [](const Strides& from) { return TensorStrides{from.batch, from.head, from.row}; };
  s.q_strides = copy(q_.strides);
  s.k_strides = copy(k_.strides);
  s.v_strides = copy(v_.strides);
  s.o_strides = copy(o_.strides);
  HEED_CHECK(!plan.o_strides || *plan.o_strides == s.o_strides);
  s.scale = static_cast<float>(w.softmax_scale());
}

HostTensors Scene::tensors() const {
  return {image_.data() + q_.offset,
          image_.data() + k_.offset,
          image_.data() + v_.offset,
          q_.strides,
          k_.strides,
          v_.strides};
}

void Scene::disturb(std::uint64_t seed) {
  const Workload& w = workload_;
  Random random(seed);
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(bound)));
  };
  // A value that many rows see, under masks without a left bound all that see any: the first.
  const auto set = [&](const Place& p, std::int64_t heads, std::int64_t row, std::int64_t dim, float value) {
    const std::int64_t index = element_index(p.strides, below(w.batch), below(heads), row) + below(dim);
    store_element(w.dtype, image_.data() + p.offset, static_cast<std::size_t>(index), value);
  };
  // Values of N(0, 1)'s far tail: unmistakable in what they reach, and no outlier beside which rounding looks large.
  set(q_, w.heads, below(w.len_q), w.dim, 5.0F);
  const KeyRange seen = w.seen_keys();
  set(k_, w.heads_kv, seen.begin + below(std::max<std::int64_t>(1, seen.count())), w.dim, 5.0F);
  const std::int64_t value = w.has_left_bound() ? seen.begin + below(std::max<std::int64_t>(1, seen.count())) : 0;
  set(v_, w.heads_kv, value, w.dim_v, 5.0F);
}

void Scene::drop_lse() {
  lse_.bytes = 0;
  launch_.lse = worker::kNull;
}

void Scene::keep_outputs_of(const std::byte* image) {
  std::memcpy(image_.data() + o_.offset, image + o_.offset, o_.bytes);
  std::memcpy(image_.data() + lse_.offset, image + lse_.offset, lse_.bytes);
}

bool Scene::is_row_of_output(std::uint64_t offset) const {
  const auto element = static_cast<std::int64_t>((offset - o_.offset) / size_of(workload_.dtype));
  const Strides& s = o_.strides;
  const std::int64_t in_batch = element % s.batch;
  const std::int64_t row = workload_.layout == Layout::bhld ? in_batch % s.head / s.row : in_batch / s.row;
  return row < workload_.len_q;
}

std::string Scene::describe_offset(std::uint64_t offset) const {
  std::string text = "before the first tensor";
  for (const auto& [place, name] :
       {std::pair{&q_, "Q"}, std::pair{&k_, "K"}, std::pair{&v_, "V"}, std::pair{&o_, "O"}, std::pair{&lse_, "LSE"},
        std::pair{&workspace_, "the workspace"}, std::pair{&semaphores_, "the semaphores"}})
    if (place->bytes > 0 && offset >= place->offset + place->bytes)
      text = fmt::format("{} bytes past the end of {}", offset - place->offset - place->bytes + 1, name);
  return text;
}

Scene::Trespass Scene::trespass(const std::byte* after) const {
  const std::byte* before = image_.data();
  // First difference in [begin, end), or end.
  const auto first_difference = [&](std::uint64_t begin, std::uint64_t end) {
    constexpr std::uint64_t kPiece = 1 << 20;  // nearly all pieces are equal: memcmp them before looking at bytes
    std::atomic<std::uint64_t> first{end};
    parallel_for(static_cast<std::int64_t>((end - begin + kPiece - 1) / kPiece), 0, [&](std::int64_t piece) {
      const std::uint64_t at = begin + static_cast<std::uint64_t>(piece) * kPiece;
      const std::uint64_t piece_end = std::min(end, at + kPiece);
      if (at > first || std::memcmp(before + at, after + at, piece_end - at) == 0) return;
      const std::uint64_t found =
          static_cast<std::uint64_t>(std::mismatch(before + at, before + piece_end, after + at).first - before);
      for (std::uint64_t known = first; found < known && !first.compare_exchange_weak(known, found);) {
      }
    });
    return first.load();
  };
  for (const auto& [place, name] : {std::pair{&q_, "Q"}, std::pair{&k_, "K"}, std::pair{&v_, "V"}})
    if (const std::uint64_t at = first_difference(place->offset, place->offset + place->bytes);
        at < place->offset + place->bytes)
      return {Finding::input_modified, fmt::format("it changed its input {} at byte {}", name, at - place->offset)};
  // Everything else but the places it may write to.
  std::uint64_t begin = 0;
  for (const Place* place : {&o_, &lse_, &workspace_, &semaphores_}) {
    if (const std::uint64_t at = first_difference(begin, place->offset); at < place->offset)
      return {Finding::wrote_outside, fmt::format("it wrote outside its outputs, {}", describe_offset(at))};
    begin = place->offset + place->bytes;
  }
  if (const std::uint64_t at = first_difference(begin, image_.size()); at < image_.size())
    return {Finding::wrote_outside, fmt::format("it wrote outside its outputs, {}", describe_offset(at))};
  if (padding_rows_ > 0)
    for (std::uint64_t i = o_.offset; i < o_.offset + o_.bytes; ++i)
      if (before[i] != after[i] && !is_row_of_output(i))
        return {Finding::wrote_outside,
                fmt::format("it wrote into the padding between rows of O, at byte {}", i - o_.offset)};
  if (const std::uint64_t at = first_difference(semaphores_.offset, semaphores_.offset + semaphores_.bytes);
      at < semaphores_.offset + semaphores_.bytes) {
    const std::uint64_t index = (at - semaphores_.offset) / sizeof(unsigned);
    unsigned left = 0;
    std::memcpy(&left, after + semaphores_.offset + index * sizeof left, sizeof left);
    return {Finding::left_counters, fmt::format("it left counter {} at {}, not at zero", index, left)};
  }
  return {};
}

std::uint64_t image_bytes(const Workload& w, const LaunchMemory& memory, std::int64_t padding_rows) {
  const auto tensor = [&](std::int64_t heads, std::int64_t rows, std::int64_t dim) {
    return round_up(static_cast<std::uint64_t>(w.batch * heads * (rows + padding_rows) * dim) * size_of(w.dtype)) +
           kGuardBytes + kAlignment;
  };
  return tensor(w.heads, w.len_q, w.dim) + tensor(w.heads_kv, w.len_k, w.dim) + tensor(w.heads_kv, w.len_k, w.dim_v) +
         tensor(w.heads, w.len_q, w.dim_v) + round_up(static_cast<std::uint64_t>(w.batch * w.heads * w.len_q) * 4) +
         round_up(static_cast<std::uint64_t>(memory.workspace_bytes)) +
         round_up(static_cast<std::uint64_t>(memory.semaphores) * sizeof(unsigned)) + 5 * kGuardBytes;
}

}  // namespace heed::verify
