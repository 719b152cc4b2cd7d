/// What features (kernels/attention/features.hpp) do to scores in accumulator fragments
/// (kernels/attention/score_rows.cuh says where each lies) and to finished rows. Scores are in units of log2 once they
/// have been changed, so that the softmax takes them with a scale of 1.
///
/// Every feature that a problem has is one that a launch may lack: pointers are null then, and the softcap is 0.
#pragma once

#include "kernels/attention/constants.hpp"
#include "kernels/attention/features.hpp"
#include "kernels/attention/mask.hpp"
#include "kernels/attention/softmax.cuh"
#include "kernels/element.hpp"
#include "kernels/ptx/math.cuh"

namespace heed::attention {

/// A launch's parameters as a block keeps them: those of an entry where entries have lengths of their own, else a
/// reference.
template <const Problem& kProblem, bool kLengths = kProblem.features.lengths>
struct ParamsOf {
  using Type = const Params<kProblem>&;
};
template <const Problem& kProblem>
struct ParamsOf<kProblem, true> {
  using Type = Params<kProblem>;
};
template <const Problem& kProblem>
using ParamsOfEntry = typename ParamsOf<kProblem>::Type;

template <const Problem& kProblem>
__device__ __forceinline__ ParamsOfEntry<kProblem> params_of_entry(const Params<kProblem>& launch, int entry) {
  if constexpr (kProblem.features.lengths && (is_quantised(kProblem) || kProblem.features.out_gate)) {
    Params<kProblem> own = of_entry(launch, entry,
                                    {bytes_of(q_element(kProblem)), bytes_of(k_element(kProblem)),
                                     bytes_of(v_element(kProblem)), bytes_of(kProblem.element)});
    if constexpr (is_quantised(kProblem)) take_scales_of_entry(own, launch, entry);
    if constexpr (kProblem.features.out_gate)
      take_gate_of_entry(own, launch, entry, ElementTraits<kProblem.element>::bytes);
    return own;
  } else if constexpr (kProblem.features.lengths)
    return of_entry(launch, entry, ElementTraits<kProblem.element>::bytes);
  else
    return launch;
}

/// cap * tanh(s / cap) for the score x * scale, with tanh(y) = 1 - 2 / (1 + 2^(2 y log2(e))): the absolute error is
/// some 2^-22 of the cap, tanh.approx.f32 is wrong by 2^-11 of the result. No infinity is divided by another: for large
/// y the quotient is 0, and for very negative ones 2, so that infinite scores become the cap and its negative. NaN
/// stays.
/// @param rate 2 * scale * log2(e) / cap
/// @param cap in the units of the result
__device__ __forceinline__ float capped(float x, float rate, float cap) {
  return fmaf(-2.0F * cap, ptx::rcp_approx_ftz(1.0F + ptx::ex2_approx_ftz(x * rate)), cap);
}

HEED_HOST_DEVICE constexpr int bytes_of(BiasElement element) {
  return element == BiasElement::boolean ? 1 : element == BiasElement::fp32 ? 4 : 2;
}

/// A bias, of the bits of its element type, as it is added to a score; -inf where it hides the score, which is also
/// what values at or below the most negative finite number of their type do. NaN is no such value.
template <BiasElement kElement>
__device__ __forceinline__ float bias_of(unsigned bits) {
  if constexpr (kElement == BiasElement::boolean) {
    return bits != 0 ? 0.0F : -kInfinity;
  } else if constexpr (kElement == BiasElement::fp32) {
    const float x = __uint_as_float(bits);
    return x <= -0x1.fffffep127F ? -kInfinity : x;
  } else if constexpr (kElement == BiasElement::bf16) {
    const float x = ptx::unpack_low<Element::bf16>(bits);
    return x <= -0x1.fep127F ? -kInfinity : x;
  } else {
    const float x = ptx::unpack_low<Element::fp16>(bits);
    return x <= -65504.0F ? -kInfinity : x;
  }
}

template <BiasElement kElement>
__device__ __forceinline__ float read_bias(const char* from) {
  constexpr int kBytes = bytes_of(kElement);
  if constexpr (kBytes == 1)
    return bias_of<kElement>(*reinterpret_cast<const unsigned char*>(from));
  else if constexpr (kBytes == 2)
    return bias_of<kElement>(*reinterpret_cast<const unsigned short*>(from));
  else
    return bias_of<kElement>(*reinterpret_cast<const unsigned*>(from));
}

/// What a score becomes, whatever a hidden one was.
__device__ __forceinline__ float biased(float score, float bias) {
  return bias == -kInfinity ? -kInfinity : fmaf(bias, kLog2e, score);
}

/// Adds biases of neighbouring keys to one row of scores, all of whose keys are there: each lane reads those of two
/// columns at once, and all that it needs before it uses any. One at a time, each behind a test, loads waited for each
/// other: 742 us instead of 62 without a bias at b8h16l1024d64 (H200).
/// @param from the bias of the lane's first column, aligned to two elements
template <BiasElement kElement, int kRegisters>
__device__ __forceinline__ void add_bias_pairs(float (&s)[kRegisters], int h, const char* from) {
  constexpr int kBytes = bytes_of(kElement);
  constexpr int kTiles = kRegisters / 4;
  unsigned low[kTiles];
  unsigned high[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if constexpr (kBytes == 4) {
      const uint2 both = *reinterpret_cast<const uint2*>(from + 8 * t * kBytes);
      low[t] = both.x;
      high[t] = both.y;
    } else if constexpr (kBytes == 2) {
      low[t] = *reinterpret_cast<const unsigned*>(from + 8 * t * kBytes);
    } else {
      low[t] = *reinterpret_cast<const unsigned short*>(from + 8 * t * kBytes);
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if constexpr (kBytes < 4) high[t] = low[t] >> 8 * kBytes;
    if constexpr (kBytes == 1) low[t] &= 0xffU;
    s[4 * t + 2 * h] = biased(s[4 * t + 2 * h], bias_of<kElement>(low[t]));
    s[4 * t + 2 * h + 1] = biased(s[4 * t + 2 * h + 1], bias_of<kElement>(high[t]));
  }
}

/// Adds biases to one row of scores. Those of keys outside of [begin, end) are neither read nor added.
/// @param from the bias of the lane's first column
/// @param step bytes from one key to the next
/// @param first the key of the lane's first column
template <BiasElement kElement, int kRegisters>
__device__ __forceinline__ void add_bias(float (&s)[kRegisters], int h, const char* from, long long step, int first,
                                         int begin, int end) {
#pragma unroll
  for (int t = 0; t < kRegisters / 4; ++t)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 8 * t + i;
      float& x = s[4 * t + 2 * h + i];
      if (first + column >= begin && first + column < end) x = biased(x, read_bias<kElement>(from + column * step));
    }
}

/// relative_bucket by the special-function unit.
__device__ __forceinline__ int relative_bucket_of(const RelativeBuckets& buckets, int ahead) {
  return relative_bucket(buckets, ahead, [](float x) { return ptx::lg2_approx_ftz(x); });
}

/// The keys that all rows of the block's entry see. Without the feature an empty type.
template <const Problem& kProblem, bool kPrefix = kProblem.features.prefix>
struct SeenPrefix {};
template <const Problem& kProblem>
struct SeenPrefix<kProblem, true> {
  int prefix = 0;
};

/// The dropout of one head's probabilities. Without the feature nothing.
template <const Problem& kProblem, bool kDrops = kProblem.features.dropout>
struct Dropout : SeenPrefix<kProblem> {
  Dropout() = default;
  __device__ __forceinline__ Dropout(const ForwardParams&, int, int) {}
};

template <const Problem& kProblem>
struct Dropout<kProblem, true> : SeenPrefix<kProblem> {
  Philox4 dropout;

  __device__ __forceinline__ Dropout() : dropout{} {}
  __device__ __forceinline__ Dropout(const ScoreFeatureParams& p, int entry, int head)
      : dropout(dropout_of_head(p, entry, head)) {}

  /// Sets probabilities that are dropped to zero, NaN too: row sums, which have all of them, are NaN then. Of one
  /// fragment, rows `row` and `row` + 8 of this lane.
  /// @param first the key of the lane's first column
  template <int kRegisters>
  __device__ __forceinline__ void drop(float (&e)[kRegisters], const ScoreFeatureParams& p, int row, int first) const {
    if (p.dropout_threshold == 0) return;
#pragma unroll
    for (int t = 0; t < kRegisters / 4; ++t) {
      const Philox4 numbers = dropout_of_four(dropout, row, p.dropout_first_key + first + 8 * t);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (numbers.word[i] < p.dropout_threshold) e[4 * t + i] = 0.0F;
    }
  }
  /// The same of a fragment that is counted by tiles of 8 columns.
  template <int kTiles>
  __device__ __forceinline__ void drop(float (&e)[kTiles][4], const ScoreFeatureParams& p, int row, int first) const {
    drop(reinterpret_cast<float(&)[4 * kTiles]>(e), p, row, first);
  }
};

/// What a row's outputs are multiplied with where some of its probabilities are dropped: NaN where its sum is.
__device__ __forceinline__ float dropout_factor(const ScoreFeatureParams& p, float row_sum) {
  return row_sum == row_sum ? dropout_scale(p) : row_sum;
}

/// The changes of one head's scores. Of a problem that has none an empty type, to be a base: nvcc 13.0 has no layout
/// for an empty member ([[no_unique_address]]) of a class with bases.
template <const Problem& kProblem, bool kChanges = changes_scores(kProblem.features)>
struct ScoreChanges : Dropout<kProblem> {
  using Dropout<kProblem>::Dropout;
};

template <const Problem& kProblem>
struct ScoreChanges<kProblem, true> : Dropout<kProblem> {
  static constexpr Features kFeatures = kProblem.features;

  const char* bias;       ///< of the head's first row and key
  const float* relative;  ///< of the head's first bucket
  float slope;            ///< times log2(e)

  /// Of no head yet.
  __device__ __forceinline__ ScoreChanges() : bias(nullptr), relative(nullptr), slope(0) {}
  /// @param p the launch as the entry has it (of_entry)
  /// @param head of the queries
  __device__ __forceinline__ ScoreChanges(const ScoreFeatureParams& p, int entry, int head)
      : Dropout<kProblem>(p, entry, head), bias(nullptr), relative(nullptr), slope(0) {
    if constexpr (kFeatures.relative)
      if (p.relative_bias != nullptr) relative = p.relative_bias + head * p.relative_buckets.all;
    if constexpr (kFeatures.bias)
      if (p.bias != nullptr)
        bias = static_cast<const char*>(p.bias) +
               (entry * p.bias_batch + head * p.bias_head) * bytes_of(static_cast<BiasElement>(p.bias_element));
    if constexpr (kFeatures.alibi)
      if (p.alibi_slopes != nullptr) slope = p.alibi_slopes[entry * p.alibi_batch + head] * kLog2e;
  }

  /// Products q.k become scores in units of log2: of one fragment, rows `row` and `row` + 8 of this lane. Of hidden
  /// keys and of rows past the last they become anything; masks come afterwards.
  /// @param first the key of the lane's first column
  /// @param reads_bias false where the bias leaves all of these scores as they are
  template <int kRegisters>
  __device__ __forceinline__ void change_scores(float (&s)[kRegisters], const ScoreFeatureParams& p, int row, int first,
                                                bool reads_bias = true) const {
    const float scale = p.scale * kLog2e;
    if (kFeatures.softcap && p.softcap != 0.0F) {
      const float rate = 2.0F * scale * ptx::rcp_approx_ftz(p.softcap);
      const float cap = p.softcap * kLog2e;
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) s[i] = capped(s[i], rate, cap);
    } else {
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) s[i] *= scale;
    }
    if constexpr (kFeatures.bias)
      if (bias != nullptr && (!has_full_blocks(kFeatures) || reads_bias)) {
        // One loop for each type: asked in the loop, every load would wait for the one before.
        switch (static_cast<BiasElement>(p.bias_element)) {
          case BiasElement::boolean:
            add_biases<BiasElement::boolean>(s, p, row, first);
            break;
          case BiasElement::fp16:
            add_biases<BiasElement::fp16>(s, p, row, first);
            break;
          case BiasElement::bf16:
            add_biases<BiasElement::bf16>(s, p, row, first);
            break;
          case BiasElement::fp32:
            add_biases<BiasElement::fp32>(s, p, row, first);
            break;
        }
      }
    if constexpr (kFeatures.relative)
      if (relative != nullptr) add_relative_biases(s, p, row, first);
    if constexpr (kFeatures.alibi)
      if (p.alibi_slopes != nullptr)
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) {
          const int own_key = row + 8 * (i % 4 / 2) + (p.len_k - p.len_q);
          s[i] = fmaf(-slope, fabsf(static_cast<float>(own_key - first - (i / 4 * 8 + i % 2))), s[i]);
        }
  }
  /// The same of a fragment that is counted by tiles of 8 columns.
  template <int kTiles>
  __device__ __forceinline__ void change_scores(float (&s)[kTiles][4], const ScoreFeatureParams& p, int row, int first,
                                                bool reads_bias = true) const {
    change_scores(reinterpret_cast<float(&)[4 * kTiles]>(s), p, row, first, reads_bias);
  }

 private:
  /// Far from the own keys, where all of a row's keys are in one bucket, that is one number.
  template <int kRegisters>
  __device__ __forceinline__ void add_relative_biases(float (&s)[kRegisters], const ScoreFeatureParams& p, int row,
                                                      int first) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int ahead = first - (row + 8 * h + (p.len_k - p.len_q));
      const int bucket = relative_bucket_of_all(p.relative_buckets, ahead, ahead + 2 * kRegisters - 7);
      if (bucket >= 0) {
        const float added = relative[bucket] * kLog2e;
#pragma unroll
        for (int t = 0; t < kRegisters / 4; ++t) {
          s[4 * t + 2 * h] += added;
          s[4 * t + 2 * h + 1] += added;
        }
      } else {
#pragma unroll
        for (int t = 0; t < kRegisters / 4; ++t)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            s[4 * t + 2 * h + i] =
                fmaf(relative[relative_bucket_of(p.relative_buckets, ahead + 8 * t + i)], kLog2e, s[4 * t + 2 * h + i]);
      }
    }
  }

  template <BiasElement kElement, int kRegisters>
  __device__ __forceinline__ void add_biases(float (&s)[kRegisters], const ScoreFeatureParams& p, int row,
                                             int first) const {
    constexpr int kBytes = bytes_of(kElement);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + 8 * h;
      const int begin = hidden_keys(kProblem.mask, r, p.left_offset, p.len_k);
      int end = r < p.len_q ? visible_keys(kProblem.mask, r, p.right_offset, p.len_k) : 0;
      if constexpr (kFeatures.prefix) end = r < p.len_q ? max(end, this->prefix) : 0;
      const char* const from = bias + (r * p.bias_row + first * p.bias_key) * kBytes;
      const bool are_pairs = p.bias_key == 1 && reinterpret_cast<unsigned long long>(from) % (2 * kBytes) == 0;
      if (are_pairs && first >= begin && first + 2 * kRegisters - 7 < end)
        add_bias_pairs<kElement>(s, h, from);
      else
        add_bias<kElement>(s, h, from, p.bias_key * kBytes, first, begin, end);
    }
  }
};

/// The list of blocks of keys that a block's rows walk, beside the changes of their scores. Without the feature
/// nothing.
template <const Problem& kProblem, bool kBlocks = kProblem.features.blocks>
struct ListedBlocks : ScoreChanges<kProblem> {
  using ScoreChanges<kProblem>::ScoreChanges;
};

template <const Problem& kProblem>
struct ListedBlocks<kProblem, true> : ScoreChanges<kProblem> {
  using ScoreChanges<kProblem>::ScoreChanges;
  KeyBlocks blocks;
};

/// Adds the head's sink to a row that has seen all of its keys: to its maximum and sum. What the row's outputs are to
/// be multiplied with, as they count below the old maximum. A sink of -inf changes nothing, and one that is NaN all.
__device__ __forceinline__ float add_sink(const ScoreFeatureParams& p, int head, float& row_max, float& row_sum) {
  if (p.sinks == nullptr) return 1.0F;
  const float sink = p.sinks[head] * kLog2e;
  const float next = row_max >= sink ? row_max : sink;
  const float factor = rescale_factor(row_max, next);
  row_max = next;
  row_sum = fmaf(row_sum, factor, ptx::ex2_approx_ftz(sink - finite_row_max(next)));
  return factor;
}

/// Where a row's log-sum-exp lies in the lse of a problem with features.
__device__ __forceinline__ long long lse_offset(const ScoreFeatureParams& p, int entry, int head, int row) {
  return entry * p.lse_batch + head * p.lse_head + row;
}

}  // namespace heed::attention
