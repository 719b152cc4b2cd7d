// Bytes that images take at most: memory is reserved before there is a scene.
#include <algorithm>

#include "verify/scene.hpp"

namespace heed::verify {

std::uint64_t image_bytes(const Workload& w, const LaunchMemory& memory, std::int64_t padding_rows, bool own_strides) {
  const auto gaps = [&](std::int64_t blocks, std::int64_t heads, std::int64_t rows) {
    return own_strides ? most_gap_bytes({blocks, heads, rows, 0}) : 0;
  };
  const auto tensor = [&](std::int64_t heads, std::int64_t rows, std::int64_t dim) {
    return aligned(static_cast<std::uint64_t>(w.batch * heads * (rows + padding_rows) * dim) * size_of(w.dtype)) +
           gaps(w.batch, heads, rows + padding_rows) + kGuardBytes + kAlignment;
  };
  std::uint64_t of_features = 0;
  const auto add = [&](std::int64_t bytes) { of_features += aligned(static_cast<std::uint64_t>(bytes)) + kGuardBytes; };
  if (w.bias) {
    const BiasSizes sizes = bias_sizes(w);
    add(sizes.batch * sizes.head * sizes.row * (sizes.key + kBiasPadding) *
        static_cast<std::int64_t>(size_of(w.bias->dtype)));
  }
  if (w.alibi || w.sinks) add(8 * w.heads), add(0);
  if (w.has_lengths()) add(12 * (w.batch + 1)), add(0), add(0);
  if (w.prefix > 0) add(4 * w.batch);
  if (w.relative) add(4 * w.heads * w.relative->buckets);
  if (w.out_norm) add(4 * w.heads * w.dim_v);
  if (w.out_gate != OutGate::none)
    add(w.batch * w.heads * (w.len_q + padding_rows) * (w.out_gate == OutGate::head ? 1 : w.dim_v) *
            static_cast<std::int64_t>(size_of(w.dtype)) +
        static_cast<std::int64_t>(gaps(w.batch, w.heads, w.len_q + padding_rows)));
  if (w.blocks) {
    const std::int64_t lists = (w.blocks->by_batch ? w.batch : 1) * (w.blocks->by_head ? w.heads : 1) *
                               ((w.len_q + w.blocks->rows - 1) / w.blocks->rows);
    add(4 * lists), add(4 * lists * ((w.len_k + w.blocks->keys - 1) / w.blocks->keys + 1));
  }
  if (w.quantised) {
    const std::int64_t pages = w.page_size > 0 ? w.batch * ((w.len_k + w.page_size - 1) / w.page_size) + 2 : w.batch;
    const std::int64_t rows = (w.page_size > 0 ? w.page_size : w.len_k) + padding_rows;
    const auto add_scales = [&](const std::optional<QuantisedTensor>& scaled, std::int64_t batch, std::int64_t heads,
                                std::int64_t rows_each, std::int64_t columns) {
      if (scaled) add(static_cast<std::int64_t>(most_scale_bytes(*scaled, batch, heads, rows_each, columns)));
    };
    add_scales(w.quantised->q, w.batch, w.heads, w.len_q + padding_rows, w.dim);
    add_scales(w.quantised->k, pages, w.heads_kv, rows, w.dim);
    add_scales(w.quantised->v, pages, w.heads_kv, rows, w.dim_v);
  }
  if (w.page_size > 0) {
    // Every page has rows of padding, and there are spare ones.
    const std::int64_t pages = w.batch * ((w.len_k + w.page_size - 1) / w.page_size);
    add(4 * pages);
    const std::int64_t extra_rows =
        (pages + 2) * (w.page_size + paged_padding(w, padding_rows)) - w.batch * (w.len_k + padding_rows);
    of_features += 2 * gaps(pages + 2, w.heads_kv, w.page_size + paged_padding(w, padding_rows));
    if (extra_rows > 0) add(w.heads_kv * extra_rows * (w.dim + w.dim_v) * static_cast<std::int64_t>(size_of(w.dtype)));
  }
  return of_features + tensor(w.heads, w.len_q, w.dim) + tensor(w.heads_kv, w.len_k, w.dim) +
         tensor(w.heads_kv, w.len_k, w.dim_v) + tensor(w.heads, w.len_q, w.dim_v) +
         aligned(static_cast<std::uint64_t>(w.batch * w.heads * w.len_q) * 4) +
         aligned(static_cast<std::uint64_t>(memory.workspace_bytes)) +
         aligned(static_cast<std::uint64_t>(memory.semaphores) * sizeof(unsigned)) + 5 * kGuardBytes;
}

}  // namespace heed::verify
