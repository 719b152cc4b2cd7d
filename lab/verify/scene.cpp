#include "verify/scene.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/parallel.hpp"
#include "base/random.hpp"
#include "workload/half.hpp"
#include "workload/mask.hpp"
#include "workload/relative_bias.hpp"

namespace heed::verify {
namespace {

// Of N(0, 1): unmistakable in what it reaches, and no outlier beside which rounding looks large.
constexpr float kFarTail = 5.0F;

}  // namespace

Scene::Scene(const Workload& workload, const InputValues& values, const LaunchPlan& plan, std::uint64_t seed,
             const SceneOptions& options)
    : workload_(workload),
      has_gaps_(options.padding_rows > 0 || options.stride_seed != 0),
      places_(workload, values.lengths, options.page_seed) {
  const Workload& w = workload_;
  const Extent q_extent{places_.query_blocks(), w.heads, places_.query_rows(), w.dim};
  const Extent k_extent{places_.key_blocks(), w.heads_kv, places_.key_rows(), w.dim};
  const Extent v_extent{places_.key_blocks(), w.heads_kv, places_.key_rows(), w.dim_v};
  const Extent o_extent{places_.query_blocks(), w.heads, places_.query_rows(), w.dim_v};

  std::uint64_t at = kGuardBytes;
  const auto place = [&](std::uint64_t bytes) {
    const Place result{at, bytes, {}};
    at = aligned(at + bytes) + kGuardBytes;
    return result;
  };
  const SceneStrides dense(w.layout, 0), own(w.layout, options.stride_seed);
  const auto place_tensor = [&](const SceneStrides& strides, SceneStrides::Tensor tensor, const Extent& extent,
                                std::int64_t padding, Dtype dtype) {
    const Spread spread = strides.of(tensor, extent, padding, size_of(dtype));
    Place result = place(static_cast<std::uint64_t>(spread.elements) * size_of(dtype));
    result.strides = spread.strides;
    return result;
  };
  q_ = place_tensor(own, SceneStrides::q, q_extent, options.padding_rows, w.dtype_q());
  const std::uint64_t repeated =
      static_cast<std::uint64_t>(options.repeated_query_heads * q_.strides.head) * size_of(w.dtype_q());
  HEED_CHECK(repeated <= q_.bytes && (repeated == 0 || !has_gaps_));
  at = aligned(q_.offset + q_.bytes + repeated) + kGuardBytes;
  k_ = place_tensor(own, SceneStrides::k, k_extent, paged_padding(w, options.padding_rows), w.dtype_k());
  v_ = place_tensor(own, SceneStrides::v, v_extent, paged_padding(w, options.padding_rows), w.dtype_v());
  const auto place_array = [&](FeatureInput input, std::size_t numbers) {
    if (numbers > 0) features_[input] = place(numbers * 4);
  };
  if (w.bias) {
    const BiasSizes sizes = bias_sizes(w);
    const std::int64_t row = sizes.key + (has_gaps_ ? kBiasPadding : 0);
    features_[bias] =
        place(static_cast<std::uint64_t>(sizes.batch * sizes.head * sizes.row * row) * size_of(w.bias->dtype));
    features_[bias].strides = {sizes.batch > 1 ? sizes.head * sizes.row * row : 0, sizes.head > 1 ? sizes.row * row : 0,
                               sizes.row > 1 ? row : 0};
  }
  place_array(alibi_slopes, values.alibi_slopes.size());
  place_array(sinks, values.sinks.size());
  place_array(cu_seqlens_q, places_.cu_seqlens_q().size());
  place_array(cu_seqlens_k, places_.cu_seqlens_k().size());
  place_array(seqused_k, places_.seqused_k().size());
  place_array(page_table, places_.page_table().size());
  place_array(block_counts, values.blocks.counts.size());
  place_array(block_indices, values.blocks.numbers.size());
  place_array(prefix_lengths, values.prefix_lengths.size());
  place_array(relative_bias, values.relative_bias.size());
  std::array<std::optional<Scales>, 3> scales;
  for (std::size_t i = 0; i < scales.size(); ++i)
    if (const Input input = inputs()[i]; input.quantised != nullptr && *input.quantised) {
      const std::int64_t padding = input.are_queries ? options.padding_rows : paged_padding(w, options.padding_rows);
      scales[i].emplace(**input.quantised, places_, input.are_queries, values.*(input.values), input.heads, input.rows,
                        input.dim, padding);
      place_array(input.scales_input, scales[i]->factors().size());
    }
  place_array(out_norm_weight, values.out_norm_weight.size());
  if (w.out_gate != OutGate::none) {
    Extent extent = o_extent;
    if (w.out_gate == OutGate::head) extent.dim = 1;
    features_[out_gate] = place_tensor(own, SceneStrides::gate, extent, options.padding_rows, w.dtype);
  }
  // Those of a plan are dense.
  o_ = plan.o_strides ? place_tensor(dense, SceneStrides::o, o_extent, 0, w.dtype)
                      : place_tensor(own, SceneStrides::o, o_extent, options.padding_rows, w.dtype);
  const std::int64_t lse_rows = o_extent.blocks * o_extent.heads * o_extent.rows;
  lse_ = place(options.with_lse ? static_cast<std::uint64_t>(lse_rows) * sizeof(float) : 0);
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
  std::vector<const Place*> in_order = {&q_, &k_, &v_};
  for (const Place& p : features_)
    if (p.bytes > 0) in_order.push_back(&p);
  in_order.insert(in_order.end(), {&o_, &lse_, &workspace_, &semaphores_});
  for (const Place* p : in_order) {
    guard_until(p->offset);
    begin = p->offset + p->bytes;
    const bool is_filled = !has_gaps_ && (p == &q_ || ((p == &k_ || p == &v_) && places_.fills_keys()));
    if (!is_filled && p != &semaphores_) std::memset(image_.data() + p->offset, 0xff, p->bytes);
  }
  guard_until(at);
  for (std::size_t i = 0; i < scales.size(); ++i) put_input(inputs()[i], values, scales[i] ? &*scales[i] : nullptr);
  std::memcpy(image_.data() + q_.offset + q_.bytes, image_.data() + q_.offset, repeated);

  launch_.q = q_.offset;
  launch_.k = k_.offset;
  launch_.v = v_.offset;
  launch_.o = o_.offset;
  launch_.lse = options.with_lse ? lse_.offset : worker::kNull;
  launch_.workspace = plan.workspace_bytes > 0 ? workspace_.offset : worker::kNull;
  launch_.semaphores = plan.semaphores > 0 ? semaphores_.offset : worker::kNull;
  launch_.take(plan);
  FeatureParams& s = launch_.shape;
  static_cast<ForwardParams&>(s) = with_sizes(s, whole_sizes_of(w));
  launch_.mask = mask_kind(w);
  launch_.k_element = facts_of(w.dtype_k()).element;
  launch_.v_element = facts_of(w.dtype_v()).element;
  const auto copy = [](const Strides& from) { return TensorStrides{from.batch, from.head, from.row}; };
  s.q_strides = copy(q_.strides);
  s.k_strides = copy(k_.strides);
  s.v_strides = copy(v_.strides);
  s.o_strides = copy(o_.strides);
  HEED_CHECK(!plan.o_strides || *plan.o_strides == s.o_strides);
  s.scale = static_cast<float>(w.softmax_scale());
  s.lse_head = o_extent.rows;
  s.lse_batch = w.heads * o_extent.rows;
  put_features(values);
  put_output_features(values);
}

void Scene::put_features(const InputValues& values) {
  const Workload& w = workload_;
  FeatureParams& s = launch_.shape;
  const auto put = [&](FeatureInput input, std::uint64_t& at, const auto& numbers) {
    if (numbers.empty()) return;
    std::memcpy(image_.data() + features_[input].offset, numbers.data(), numbers.size() * sizeof(numbers[0]));
    at = features_[input].offset;
  };
  put(alibi_slopes, launch_.alibi_slopes, values.alibi_slopes);
  put(sinks, launch_.sinks, values.sinks);
  put(cu_seqlens_q, launch_.cu_seqlens_q, places_.cu_seqlens_q());
  put(cu_seqlens_k, launch_.cu_seqlens_k, places_.cu_seqlens_k());
  put(seqused_k, launch_.seqused_k, places_.seqused_k());
  put(page_table, launch_.page_table, places_.page_table());
  put(block_counts, launch_.block_counts, values.blocks.counts);
  put(block_indices, launch_.block_indices, values.blocks.numbers);
  put(prefix_lengths, launch_.prefix_lengths, values.prefix_lengths);
  put(relative_bias, launch_.relative_bias, values.relative_bias);
  if (w.relative) s.relative_buckets = buckets_of(*w.relative);
  if (w.blocks) {
    const BlockLists& lists = values.blocks;
    s.block_rows = static_cast<int>(w.blocks->rows);
    s.block_keys = static_cast<int>(w.blocks->keys);
    s.block_most = static_cast<int>(lists.most);
    s.block_count_strides = {lists.batch > 1 ? lists.heads * lists.rows : 0, lists.heads > 1 ? lists.rows : 0, 1};
    const TensorStrides& c = s.block_count_strides;
    s.block_index_strides = {c.batch * lists.most, c.head * lists.most, lists.most};
  }
  s.softcap = static_cast<float>(w.softcap);
  s.dropout_seed = values.dropout_seed;
  s.dropout_offset = values.dropout_offset;
  s.dropout_first_entry = values.dropout_first_entry;
  s.dropout_threshold = dropout_threshold(w.dropout);
  s.dropout_scale = dropout_scale(w.dropout);
  if (w.ragged) {
    s.total_q = static_cast<int>(places_.query_rows());
    if (w.page_size == 0) s.total_k = static_cast<int>(places_.key_rows());
  }
  s.page_size = static_cast<int>(w.page_size);
  s.pages = static_cast<int>(places_.pages());
  s.page_table_batch = places_.pages_of_entry();
  s.aligned_to_the_end = is_aligned_to_the_end(w.mask) ? 1 : 0;
  if (!w.bias) return;
  const Place& p = features_[bias];
  launch_.bias = p.offset;
  s.bias_batch = p.strides.batch;
  s.bias_head = p.strides.head;
  s.bias_row = p.strides.row;
  s.bias_key = w.bias->by_key ? 1 : 0;
  s.bias_element = static_cast<int>(element_of(w.bias->dtype));
  const BiasSizes sizes = bias_sizes(w);
  const std::int64_t rows = sizes.batch * sizes.head * sizes.row;
  const std::int64_t pitch = static_cast<std::int64_t>(p.bytes / size_of(w.bias->dtype)) / rows;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t key = 0; key < sizes.key; ++key) {
      const float value = values.bias[static_cast<std::size_t>(row * sizes.key + key)];
      const auto at = static_cast<std::size_t>(row * pitch + key);
      std::byte* const to = image_.data() + p.offset;
      if (w.bias->dtype == BiasDtype::boolean)
        to[at] = value != 0 ? std::byte{1} : std::byte{0};
      else
        store_element(dtype_of(w.bias->dtype), to, at, value);
    }
}

std::size_t Scene::o_index(const RowIndex& row) const {
  return static_cast<std::size_t>(element_index(o_.strides, places_.query(row.batch, row.row), row.head));
}

std::size_t Scene::lse_index(const RowIndex& row) const {
  const RowPlace at = places_.query(row.batch, row.row);
  const FeatureParams& s = launch_.shape;
  return static_cast<std::size_t>(at.block * s.lse_batch + row.head * s.lse_head + at.row);
}

HostTensors Scene::tensors() const {
  const auto at = [&](const Place& place) { return image_.data() + place.offset; };
  HostTensors t{
      .q = at(q_), .k = at(k_), .v = at(v_), .q_strides = q_.strides, .k_strides = k_.strides, .v_strides = v_.strides};
  const auto feature_at = [&](FeatureInput input) -> const std::byte* {
    return features_[input].bytes > 0 ? at(features_[input]) : nullptr;
  };
  t.bias = feature_at(bias);
  t.bias_strides = features_[bias].strides;
  t.bias_key_stride = launch_.shape.bias_key;
  t.alibi_slopes = reinterpret_cast<const float*>(feature_at(alibi_slopes));
  t.sinks = reinterpret_cast<const float*>(feature_at(sinks));
  t.cu_seqlens_q = reinterpret_cast<const std::int32_t*>(feature_at(cu_seqlens_q));
  t.cu_seqlens_k = reinterpret_cast<const std::int32_t*>(feature_at(cu_seqlens_k));
  t.seqused_k = reinterpret_cast<const std::int32_t*>(feature_at(seqused_k));
  t.page_table = reinterpret_cast<const std::int32_t*>(feature_at(page_table));
  t.page_table_stride = places_.pages_of_entry();
  t.block_counts = reinterpret_cast<const std::int32_t*>(feature_at(block_counts));
  t.block_indices = reinterpret_cast<const std::int32_t*>(feature_at(block_indices));
  t.prefix_lengths = reinterpret_cast<const std::int32_t*>(feature_at(prefix_lengths));
  t.relative_bias = reinterpret_cast<const float*>(feature_at(relative_bias));
  const auto strides_from = [](const TensorStrides& from) { return Strides{from.batch, from.head, from.row}; };
  t.block_count_strides = strides_from(launch_.shape.block_count_strides);
  t.block_index_strides = strides_from(launch_.shape.block_index_strides);
  t.dropout_seed = launch_.shape.dropout_seed;
  t.dropout_offset = launch_.shape.dropout_offset;
  t.dropout_first_entry = launch_.shape.dropout_first_entry;
  t.out_gate = feature_at(out_gate);
  t.out_gate_strides = features_[out_gate].strides;
  t.out_gate_column_stride = launch_.shape.out_gate_column;
  t.out_norm_weight = reinterpret_cast<const float*>(feature_at(out_norm_weight));
  const auto scales = [&](FeatureInput input, const TensorScales& of) {
    return HostScales{reinterpret_cast<const float*>(feature_at(input)), strides_from(of.strides), of.rows, of.channel};
  };
  t.q_scales = scales(q_scales, launch_.shape.q_scales);
  t.k_scales = scales(k_scales, launch_.shape.k_scales);
  t.v_scales = scales(v_scales, launch_.shape.v_scales);
  return t;
}

void Scene::disturb(std::uint64_t seed) {
  const Workload& w = workload_;
  Random random(seed);
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(bound)));
  };
  // A value that many rows see, under masks without a left bound all that see any: the first. Of an entry that has rows
  // and keys.
  std::vector<std::int64_t> entries;
  for (std::int64_t b = 0; b < w.batch; ++b)
    if (places_.lengths()[static_cast<std::size_t>(b)].len_q > 0 &&
        places_.lengths()[static_cast<std::size_t>(b)].len_k > 0)
      entries.push_back(b);
  if (entries.empty()) return;
  const auto set = [&](const Place& p, std::int64_t heads, bool is_query, const auto& row_of, std::int64_t dim,
                       Dtype dtype) {
    const std::int64_t batch = entries[static_cast<std::size_t>(below(static_cast<std::int64_t>(entries.size())))];
    const std::int64_t head = below(heads);
    const std::int64_t row = row_of(entry_of(w, places_.lengths()[static_cast<std::size_t>(batch)]));
    const RowPlace at = is_query ? places_.query(batch, row) : places_.key(batch, row);
    const auto index = static_cast<std::size_t>(element_index(p.strides, at, head) + below(dim));
    std::byte* const data = image_.data() + p.offset;
    if (!is_quantised(dtype)) return store_element(dtype, data, index, kFarTail);
    // Quantised, the largest element, or where it was that the one of the other sign.
    const float before = load_element(dtype, data, index);
    const auto largest = static_cast<float>(largest_of(dtype));
    store_element(dtype, data, index, before == largest ? -largest : largest);
  };
  set(q_, w.heads, true, [&](const Workload& entry) { return below(entry.len_q); }, w.dim, w.dtype_q());
  const auto seen_key = [&](const Workload& entry) {
    const KeyRange seen = entry.seen_keys();
    return std::min(seen.begin + below(std::max<std::int64_t>(1, seen.count())), entry.len_k - 1);
  };
  set(k_, w.heads_kv, false, seen_key, w.dim, w.dtype_k());
  set(
      v_, w.heads_kv, false, [&](const Workload& entry) { return w.has_left_bound() ? seen_key(entry) : 0; }, w.dim_v,
      w.dtype_v());
}

void Scene::drop_lse() {
  lse_.bytes = 0;
  launch_.lse = worker::kNull;
}

void Scene::keep_outputs_of(const std::byte* image) {
  std::memcpy(image_.data() + o_.offset, image + o_.offset, o_.bytes);
  std::memcpy(image_.data() + lse_.offset, image + lse_.offset, lse_.bytes);
}

}  // namespace heed::verify
