/// What features (kernels/attention/features.hpp) do to scores of packed rows (kernels/tile/packed_rows.hpp), of which
/// each has a head and a query of its own. As features.cuh says of rows of one head: scores are in units of log2 once
/// they have been changed, and every feature that a problem has is one that a launch may lack.
#pragma once

#include "kernels/attention/features.cuh"
#include "kernels/tile/packed_rows.hpp"

namespace heed::attention {

/// The changes of one packed row's scores. Of a problem that has none an empty type.
template <const Problem& kProblem, bool kChanges = changes_scores(kProblem.features)>
struct PackedRowChanges {};

template <const Problem& kProblem>
struct PackedRowChanges<kProblem, true> {
  static constexpr Features kFeatures = kProblem.features;

  const char* bias = nullptr;       ///< of the row's first key; null for a row that there is not
  const float* relative = nullptr;  ///< of the head's first bucket
  float slope = 0;                  ///< times log2(e)
  int query = 0;

  PackedRowChanges() = default;
  /// @param p the launch as the entry has it (of_entry)
  /// @param row of the packed rows of the key head; it may be past the last
  __device__ __forceinline__ PackedRowChanges(const ScoreFeatureParams& p, int entry, int kv_head, int row) {
    const tile::PackedRow at = tile::packed_row(row, p.group_size);
    const int head = kv_head * p.group_size + at.head;
    query = at.query;
    if constexpr (kFeatures.bias)
      if (p.bias != nullptr && query < p.len_q)
        bias = static_cast<const char*>(p.bias) + (entry * p.bias_batch + head * p.bias_head + query * p.bias_row) *
                                                      bytes_of(static_cast<BiasElement>(p.bias_element));
    if constexpr (kFeatures.relative)
      if (p.relative_bias != nullptr) relative = p.relative_bias + head * p.relative_buckets.all;
    if constexpr (kFeatures.alibi)
      if (p.alibi_slopes != nullptr) slope = p.alibi_slopes[entry * p.alibi_batch + head] * kLog2e;
  }

  /// Products q.k become scores in units of log2. Of hidden keys and of rows past the last they become anything; masks
  /// come afterwards.
  /// @param first the key that columns are counted from
  /// @param end keys that the row sees are before it
  /// @param score a reference to the i-th of kCount scores
  /// @param column the i-th score's, of which the compiler knows the value
  template <int kCount, class ScoreAt, class ColumnAt>
  __device__ __forceinline__ void change(const ScoreFeatureParams& p, int first, int end, const ScoreAt& score,
                                         const ColumnAt& column) const {
    const float scale = p.scale * kLog2e;
    if (kFeatures.softcap && p.softcap != 0.0F) {
      const float rate = 2.0F * scale * ptx::rcp_approx_ftz(p.softcap);
      const float cap = p.softcap * kLog2e;
#pragma unroll
      for (int i = 0; i < kCount; ++i) score(i) = capped(score(i), rate, cap);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) score(i) *= scale;
    }
    if constexpr (kFeatures.bias)
      if (bias != nullptr) {
        switch (static_cast<BiasElement>(p.bias_element)) {
          case BiasElement::boolean:
            add_biases<BiasElement::boolean, kCount>(p, first, end, score, column);
            break;
          case BiasElement::fp16:
            add_biases<BiasElement::fp16, kCount>(p, first, end, score, column);
            break;
          case BiasElement::bf16:
            add_biases<BiasElement::bf16, kCount>(p, first, end, score, column);
            break;
          case BiasElement::fp32:
            add_biases<BiasElement::fp32, kCount>(p, first, end, score, column);
            break;
        }
      }
    if constexpr (kFeatures.relative)
      if (relative != nullptr) {
        const int ahead = first - (query + (p.len_k - p.len_q));
#pragma unroll
        for (int i = 0; i < kCount; ++i)
          score(i) = fmaf(relative[relative_bucket_of(p.relative_buckets, ahead + column(i))], kLog2e, score(i));
      }
    if constexpr (kFeatures.alibi) {
      const int own_key = query + (p.len_k - p.len_q);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        score(i) = fmaf(-slope, fabsf(static_cast<float>(own_key - first - column(i))), score(i));
    }
  }

 private:
  template <BiasElement kElement, int kCount, class ScoreAt, class ColumnAt>
  __device__ __forceinline__ void add_biases(const ScoreFeatureParams& p, int first, int end, const ScoreAt& score,
                                             const ColumnAt& column) const {
    const long long step = p.bias_key * bytes_of(kElement);
    const char* from = bias + first * step;
    const int begin = hidden_keys(kProblem.mask, query, p.left_offset, p.len_k);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (first + column(i) >= begin && first + column(i) < end)
        score(i) = biased(score(i), read_bias<kElement>(from + column(i) * step));
  }
};

}  // namespace heed::attention
