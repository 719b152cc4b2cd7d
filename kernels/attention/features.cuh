/// What features (kernels/attention/features.hpp) do to scores in accumulator fragments
/// (kernels/attention/score_rows.cuh says where each lies) and to finished rows. Scores are in units of log2 once they
/// have been changed, so that the softmax takes them with a scale of 1.
///
/// Every feature that a problem has is one that a launch may lack: pointers are null then, and the softcap is 0.
#pragma once

#include "kernels/attention/bias_tiles.cuh"
#include "kernels/attention/constants.hpp"
#include "kernels/attention/features.hpp"
#include "kernels/attention/mask.hpp"
#include "kernels/attention/softcap.cuh"
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

/// relative_bucket by the special-function unit.
__device__ __forceinline__ int relative_bucket_of(const RelativeBuckets& buckets, int ahead) {
  return relative_bucket(buckets, ahead, [](float x) { return ptx::lg2_approx_ftz(x); });
}

/// A member that is there where `kKept`, else an empty type; kNumber tells empty ones of one class apart, which then
/// take no room ([[no_unique_address]]).
template <int kNumber>
struct Absent {};
template <bool kKept, class T, int kNumber>
struct KeptIf {
  using Type = Absent<kNumber>;
};
template <class T, int kNumber>
struct KeptIf<true, T, kNumber> {
  using Type = T;
};

/// The keys that all rows of the block's entry see. Without the feature an empty type.
template <const Problem& kProblem, bool kPrefix = kProblem.features.prefix>
struct SeenPrefix {};
template <const Problem& kProblem>
struct SeenPrefix<kProblem, true> {
  int prefix = 0;
};

/// The dropout of one head's probabilities.
struct Dropout {
  HeadDropout of_head;

  /// Sets probabilities that are dropped to zero, NaN too: row sums, which have all of them, are NaN then. Of one
  /// fragment, rows `row` and `row` + 8 of this lane.
  /// @tparam kIsAligned the fragment's first key is a multiple of its keys: a call has the numbers of 32 of them. Else
  /// each 8 keys take a call, or two from an odd key on
  /// @param first the key of the lane's first column
  template <bool kIsAligned, int kRegisters>
  __device__ __forceinline__ void drop(float (&e)[kRegisters], const ScoreFeatureParams& p, int row, int first) const {
    constexpr int kTiles = kRegisters / 4;  // of 8 keys
    static_assert(!kIsAligned || kTiles == 2 || kTiles % 4 == 0, "a call has the numbers of half a fragment");
    if (p.dropout_threshold == 0) return;
    Philox4 numbers;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      unsigned bytes;
      if constexpr (kIsAligned) {
        if (t % 4 == 0) numbers = dropout_numbers(of_head, row, first + 8 * t);
        bytes = kTiles == 2 ? dropout_word(numbers, first + 8 * t) : numbers.word[t % 4];
      } else {
        bytes = dropout_of_four(of_head, row, p.dropout_first_key + first + 8 * t);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if ((bytes >> 8 * i & 0xFFU) >= p.dropout_threshold) e[4 * t + i] = 0.0F;
    }
  }
  /// The same of a fragment that is counted by tiles of 8 columns.
  template <bool kIsAligned, int kTiles>
  __device__ __forceinline__ void drop(float (&e)[kTiles][4], const ScoreFeatureParams& p, int row, int first) const {
    drop<kIsAligned>(reinterpret_cast<float(&)[4 * kTiles]>(e), p, row, first);
  }
};

/// What a row's outputs are multiplied with where some of its probabilities are dropped: NaN where its sum is.
__device__ __forceinline__ float dropout_factor(const ScoreFeatureParams& p, float row_sum) {
  return row_sum == row_sum ? dropout_scale(p) : row_sum;
}

/// Whether a block keeps anything of a head beside the list of its blocks of keys.
HEED_HOST_DEVICE constexpr bool keeps_of_head(const Features& features) {
  return changes_scores(features) || features.dropout || features.prefix;
}

/// The changes of one head's scores and probabilities, and the keys that all of its rows see. Of a problem that has
/// none of them an empty type.
template <const Problem& kProblem, bool kKeeps = keeps_of_head(kProblem.features)>
struct ScoreChanges {
  ScoreChanges() = default;
  __device__ __forceinline__ ScoreChanges(const ForwardParams&, int, int) {}
};

template <const Problem& kProblem>
struct ScoreChanges<kProblem, true> {
  static constexpr Features kFeatures = kProblem.features;
  static constexpr bool kChanges = changes_scores(kFeatures);

  [[no_unique_address]] typename KeptIf<kFeatures.prefix, int, 0>::Type prefix{};  ///< keys that all rows see
  [[no_unique_address]] typename KeptIf<kFeatures.dropout, Dropout, 1>::Type dropout{};
  [[no_unique_address]] typename KeptIf<kChanges, const char*, 2>::Type bias{};  ///< of the head's first row and key
  [[no_unique_address]] typename KeptIf<kChanges, const float*, 3>::Type relative{};  ///< of the head's first bucket
  [[no_unique_address]] typename KeptIf<kChanges, float, 4>::Type slope{};            ///< times log2(e)

  /// Of no head yet.
  __device__ __forceinline__ ScoreChanges() {}
  /// @param p the launch as the entry has it (of_entry)
  /// @param head of the queries
  __device__ __forceinline__ ScoreChanges(const ScoreFeatureParams& p, int entry, int head) {
    if constexpr (kFeatures.dropout) dropout.of_head = dropout_of_head(p, entry, head);
    if constexpr (kFeatures.relative)
      if (p.relative_bias != nullptr) relative = p.relative_bias + head * p.relative_buckets.all;
    if constexpr (kFeatures.bias)
      if (p.bias != nullptr)
        bias = static_cast<const char*>(p.bias) +
               (entry * p.bias_batch + head * p.bias_head) * bytes_of(static_cast<BiasElement>(p.bias_element));
    if constexpr (kFeatures.alibi)
      if (p.alibi_slopes != nullptr) slope = p.alibi_slopes[entry * p.alibi_batch + head] * kLog2e;
  }

  /// Whether products can stay what they are where a launch changes them by a boolean mask alone.
  static constexpr bool kCanKeepProducts =
      kFeatures.bias && !kFeatures.softcap && !kFeatures.relative && !kFeatures.alibi;
  __device__ __forceinline__ static bool scales_products(const ScoreFeatureParams& p) {
    return !kCanKeepProducts || static_cast<BiasElement>(p.bias_element) != BiasElement::boolean;
  }
  /// What the softmax multiplies scores of change_scores<.., .., true> with.
  __device__ __forceinline__ static float softmax_scale(const ScoreFeatureParams& p) {
    return scales_products(p) ? 1.0F : p.scale * kLog2e;
  }

  /// Products q.k become scores in units of log2: of one fragment, rows `row` and `row` + 8 of this lane. Of hidden
  /// keys and of rows past the last they become anything; masks come afterwards.
  /// @param first the key of the lane's first column
  /// @param reads_bias false where the bias leaves all of these scores as they are
  /// @param tile of biases, BiasTile in a kernel that copies them
  /// @tparam kSmall softcaps of small scores have a way of their own, which takes registers
  /// @tparam kHides false: biases of whole tiles that are numbers are added alone, and hide_biased has to follow unless
  /// every score turns out to be finite and no row maximum is taken of them
  /// @tparam kKeepsProducts scores stay products where softmax_scale says so
  template <bool kSmall = true, bool kHides = true, bool kKeepsProducts = false, int kRegisters,
            class Tile = NoBiasTile>
  __device__ __forceinline__ void change_scores(float (&s)[kRegisters], const ScoreFeatureParams& p, int row, int first,
                                                bool reads_bias = true, const Tile& tile = {}) const {
    const float scale = p.scale * kLog2e;
    if (kFeatures.softcap && p.softcap != 0.0F) {
      const float rate = p.scale * ptx::rcp_approx_ftz(p.softcap);
      const float cap = p.softcap * kLog2e;
      float largest = 0.0F;
      if constexpr (kSmall)
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) largest = fmaxf(largest, fabsf(s[i]));
      const SmallCap<kProblem.element == Element::fp32, (kProblem.head_dim <= 192)> small(rate, cap);
      if (kSmall && small.is_for(largest * rate)) {
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) s[i] = small(s[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) s[i] = capped(s[i], 2.0F * kLog2e * rate, cap);
      }
    } else if (!kKeepsProducts || scales_products(p)) {
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) s[i] *= scale;
    }
    if constexpr (kFeatures.bias)
      if (bias != nullptr && (!has_full_blocks(kFeatures) || reads_bias)) {
        // One loop for each type: asked in the loop, every load would wait for the one before.
        switch (static_cast<BiasElement>(p.bias_element)) {
          case BiasElement::boolean:
            add_biases<BiasElement::boolean, kHides>(s, p, row, first, tile);
            break;
          case BiasElement::fp16:
            add_biases<BiasElement::fp16, kHides>(s, p, row, first, tile);
            break;
          case BiasElement::bf16:
            add_biases<BiasElement::bf16, kHides>(s, p, row, first, tile);
            break;
          case BiasElement::fp32:
            add_biases<BiasElement::fp32, kHides>(s, p, row, first, tile);
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

  /// Hides what biases hide of scores that change_scores<.., false> has changed, whatever they are: reads them again.
  template <int kRegisters>
  __device__ __forceinline__ void hide_biased(float (&s)[kRegisters], const ScoreFeatureParams& p, int row, int first,
                                              bool reads_bias = true) const {
    const auto element = static_cast<BiasElement>(p.bias_element);
    if (bias == nullptr || (has_full_blocks(kFeatures) && !reads_bias)) return;
    const int last = max(p.len_k - 1, 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (element == BiasElement::fp32)
        hide_biased_columns<BiasElement::fp32>(s, h, bias_of_row<4>(p, row + 8 * h), p.bias_key * 4, first, last);
      else if (element == BiasElement::bf16)
        hide_biased_columns<BiasElement::bf16>(s, h, bias_of_row<2>(p, row + 8 * h), p.bias_key * 2, first, last);
    }
  }

  /// Where a warp will copy biases of 16 rows from, worked out once for all of their tiles.
  /// @param tile of a kernel that copies them; `shared` is where it lies
  /// @param warp_row the warp's first row
  template <int kColumns>
  __device__ __forceinline__ void begin_rows(BiasTile<kColumns>& tile, const ScoreFeatureParams& p, int warp_row,
                                             unsigned shared) const {
    tile.shared = shared;
    tile.row = warp_row;
    const int bytes = bytes_of(static_cast<BiasElement>(p.bias_element));
    const long long row_step = p.bias_row * bytes;
    // The same in all lanes of a warp.
    tile.aligned = p.bias_key == 1 && (reinterpret_cast<unsigned long long>(bias) | row_step) % 16 == 0;
    const int in_row = bytes == 1 ? BiasCopy<1, kColumns>::kInRow : BiasCopy<2, kColumns>::kInRow;
    const int lane = static_cast<int>(threadIdx.x % 32);
    tile.from = bias + (warp_row + lane / in_row) * row_step + lane % in_row * 16;
  }

  /// Asks for the biases of a tile that change_scores will take, so that they come while its products are on their way.
  /// The whole warp, once it has changed the scores of the tile before.
  /// @param key the tile's first
  template <int kColumns>
  __device__ __forceinline__ void ask_for_biases(const BiasTile<kColumns>& tile, const ScoreFeatureParams& p,
                                                 int key) const {
    const auto element = static_cast<BiasElement>(p.bias_element);
    if (bias == nullptr || element == BiasElement::fp32) return;
    // Of a full block nobody has waited for the copies, which could come after those of the next tile.
    if constexpr (has_full_blocks(kFeatures)) ptx::cp_async_wait_all();
    __syncwarp();
    if (element == BiasElement::boolean)
      ask_for_bias_tile<1>(tile, key, bias, p);
    else
      ask_for_bias_tile<2>(tile, key, bias, p);
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

  template <BiasElement kElement, bool kHides, int kRegisters, class Tile>
  __device__ __forceinline__ void add_biases(float (&s)[kRegisters], const ScoreFeatureParams& p, int row, int first,
                                             const Tile& tile) const {
    constexpr int kBytes = bytes_of(kElement);
    if constexpr (Tile::kInShared && kBytes < 4) {
      ptx::cp_async_wait_all();
      __syncwarp();
      add_bias_tile<kElement, kHides>(s, tile.shared, p.bias_row == 0);
      return;
    }
    if (!reads_bias_words<kBytes, 2 * kRegisters>(p, first)) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        add_bias_columns<kElement>(s, h, bias_of_row<kBytes>(p, row + 8 * h), p.bias_key * kBytes, first,
                                   max(p.len_k - 1, 0));
      return;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const char* const from = bias_of_row<kBytes>(p, row + 8 * h) + first_of_words<kBytes>(first);
      if constexpr (kBytes == 4) {
        add_bias_floats<kHides>(s, h, from);
      } else {
        BiasWords<2 * kRegisters> words;
        read_bias_words<kBytes>(words, from);
        add_bias_words<kElement>(s, h, words);
      }
    }
  }

  /// Rows past the last have the last one's.
  template <int kBytes>
  __device__ __forceinline__ const char* bias_of_row(const ScoreFeatureParams& p, int row) const {
    return bias + clamped(row, 0, max(p.len_q - 1, 0)) * p.bias_row * kBytes;
  }
  /// Bytes from a row's first bias to the first that a lane reads of a tile.
  /// @param first the key of the lane's first column
  template <int kBytes>
  __device__ __forceinline__ static long long first_of_words(int first) {
    const int quarter = static_cast<int>(threadIdx.x % 4);
    return static_cast<long long>(first - 2 * quarter) * kBytes + first_bias_byte<kBytes>(quarter);
  }
  /// Whether a tile's keys are all there, next to each other, and rows aligned to what a lane reads at once: the same
  /// in all lanes of a warp. Keys that the mask hides are read as well.
  template <int kBytes, int kColumns>
  __device__ __forceinline__ bool reads_bias_words(const ScoreFeatureParams& p, int first) const {
    if constexpr (kColumns % 16 != 0) return false;
    const int tile = first - 2 * static_cast<int>(threadIdx.x % 4);
    constexpr int kAtOnce = kBytes == 4 ? 8 : 4 * kBytes;
    const unsigned long long places = reinterpret_cast<unsigned long long>(bias) + tile * kBytes;
    return p.bias_key == 1 && ((places | p.bias_row * kBytes) % kAtOnce) == 0 && tile + kColumns <= p.len_k;
  }
};

/// The list of blocks of keys that a block's rows walk, beside the changes of their scores. Without the feature those
/// alone.
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
