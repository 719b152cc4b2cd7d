/// Features on a CPU: what is done to scores beside scale and mask, and sinks (kernels/attention/features.hpp).
#pragma once

#include "cpu/exp2.hpp"
#include "cpu/rows.hpp"
#include "cpu/simd.hpp"
#include "kernels/attention/features.hpp"

namespace heed::cpu {

inline constexpr float kLog2E = 1.44269504F;

/// The parameters of a block: the launch's own, or, where the program has features, those of the block's entry.
template <Problem kProblem, bool kFeatures = has_features(kProblem.features) || is_quantised(kProblem)>
struct Held {
  using Type = const ForwardParams&;
  static Type of(const ForwardParams& launch, long long) { return launch; }
};
template <Problem kProblem>
struct Held<kProblem, true> {
  using Type = const FeatureParams;
  static FeatureParams of(const ForwardParams& given, long long entry) {
    const auto& launch = static_cast<const FeatureParams&>(given);
    FeatureParams p = of_entry(launch, static_cast<int>(entry),
                               {element_bytes(q_element(kProblem)), element_bytes(k_element(kProblem)),
                                element_bytes(v_element(kProblem)), element_bytes(kProblem.element)});
    if constexpr (is_quantised(kProblem)) take_scales_of_entry(p, launch, static_cast<int>(entry));
    if constexpr (kProblem.features.out_gate)
      take_gate_of_entry(p, launch, static_cast<int>(entry), element_bytes(kProblem.element));
    return p;
  }
};

/// softcap * tanh(x / softcap). Up to kSmallTanh tanh(y) is y times a polynomial of y^2, of least relative error,
/// 2^-26: so many bits are left of scores that are far below their cap. Beyond it is (1 - 2^(-2 |y| log2(e))) / (1 +
/// ..), off by 2^-23 of the cap.
template <Exp2 kExp2>
inline Vec soft_capped(Vec x, float softcap) {
  constexpr float kSmallTanh = 0.5F;
  const Vec share = x * (1.0F / softcap);
  const Vec u = share * share;
  const Vec p = (0.017241685F * u - 0.053045575F) * u + 0.13325880F;
  const Vec of_small = x + x * ((p * u - 0.33333144F) * u);
  const IntVec is_small = u <= kSmallTanh * kSmallTanh;
  if (!any(~is_small)) return of_small;
  const Vec size = select(share < 0.0F, -share, share);
  const Vec power = exp2<kExp2>(size * (-2.0F * kLog2E));
  const Vec capped = softcap * (1.0F - power) / (1.0F + power);
  return select(is_small, of_small, select(share < 0.0F, -capped, capped));
}

/// A bias, with what is at or below the most negative finite number of its type as -infinity.
inline float bias_at(const FeatureParams& p, long long index) {
  switch (static_cast<BiasElement>(p.bias_element)) {
    case BiasElement::boolean:
      return static_cast<const unsigned char*>(p.bias)[index] != 0 ? 0.0F : -kInfinity;
    case BiasElement::fp16: {
      const float x = to_float<Element::fp16>(static_cast<const unsigned short*>(p.bias)[index]);
      return x <= -static_cast<float>(ElementTraits<Element::fp16>::largest) ? -kInfinity : x;
    }
    case BiasElement::bf16: {
      const float x = to_float<Element::bf16>(static_cast<const unsigned short*>(p.bias)[index]);
      return x <= -static_cast<float>(ElementTraits<Element::bf16>::largest) ? -kInfinity : x;
    }
    case BiasElement::fp32:
      break;
  }
  const float x = static_cast<const float*>(p.bias)[index];
  return x <= -static_cast<float>(ElementTraits<Element::fp32>::largest) ? -kInfinity : x;
}

/// Buckets of distances, which lanes hold as floats (kernels/attention/relative_bias.hpp): log2 x of whole numbers, by
/// the series of natural_log.
inline Vec log2_of_whole(Vec x) {
  const IntVec bits = (IntVec)x;
  const IntVec exponent = (bits - 0x3f2aaaab) >> 23;
  const Vec mantissa = (Vec)(bits - (exponent << 23));
  const Vec t = (mantissa - 1.0F) / (mantissa + 1.0F);
  const Vec t2 = t * t;
  const Vec series = t * (1.0F + t2 * (0.333333333F + t2 * (0.2F + t2 * (0.142857143F + t2 * 0.111111111F))));
  return series * (2 * kLog2E) + __builtin_convertvector(exponent, Vec);
}
inline Vec relative_biases(const FeatureParams& p, long long head, IntVec ahead) {
  const RelativeBuckets& b = p.relative_buckets;
  const float* const table = p.relative_bias + head * b.all;
  int first = ahead[0];
  int last = ahead[0];
  for (int i = 1; i < kLanes; ++i) {
    first = ahead[i] < first ? ahead[i] : first;
    last = ahead[i] > last ? ahead[i] : last;
  }
  if (const int bucket = relative_bucket_of_all(b, first, last); bucket >= 0) return broadcast(table[bucket]);
  const Vec distance = __builtin_convertvector(ahead < 0 ? -ahead : ahead, Vec);
  const Vec logarithm = log2_of_whole(max(distance, broadcast(1.0F)));
  Vec biases;
  for (int i = 0; i < kLanes; ++i) biases[i] = table[relative_bucket(b, ahead[i], [&](float) { return logarithm[i]; })];
  return biases;
}

/// Scores after softcap, biases and ALiBi, in powers of two as they come. Lane i is row row[i] and key key[i]; lanes of
/// rows or keys that there are not keep their score.
/// @param reads_bias false where the bias leaves all of these scores as they are
template <Features kFeatures, Exp2 kExp2>
inline Vec changed_scores(const FeatureParams& p, long long entry, long long head, Vec scores, IntVec row, IntVec key,
                          bool reads_bias) {
  if constexpr (kFeatures.softcap)
    if (p.softcap != 0) scores = soft_capped<kExp2>(scores, p.softcap * kLog2E);
  if constexpr (kFeatures.bias)
    if (p.bias != nullptr && reads_bias) {
      const long long base = entry * p.bias_batch + head * p.bias_head;
      for (int i = 0; i < kLanes; ++i)
        if (row[i] < p.len_q && key[i] < p.len_k) {
          const float bias = bias_at(p, base + row[i] * p.bias_row + key[i] * p.bias_key);
          scores[i] = bias == -kInfinity ? bias : scores[i] + bias * kLog2E;  // whatever a hidden score was
        }
    }
  if constexpr (kFeatures.relative)
    if (p.relative_bias != nullptr) scores += relative_biases(p, head, key - (row + (p.len_k - p.len_q))) * kLog2E;
  if constexpr (kFeatures.alibi)
    if (p.alibi_slopes != nullptr) {
      const IntVec ahead = row + (p.len_k - p.len_q) - key;
      const IntVec distance = ahead < 0 ? -ahead : ahead;
      scores -= __builtin_convertvector(distance, Vec) * (p.alibi_slopes[entry * p.alibi_batch + head] * kLog2E);
    }
  return scores;
}

/// Probabilities without those that are dropped. Lane i is row row[i] and key key[i], counted from the launch's first.
/// @param of_head kernels/attention/dropout.hpp
inline Vec without_dropped(const FeatureParams& p, const HeadDropout& of_head, Vec probabilities, IntVec row,
                           IntVec key) {
  // As dropout_byte, lane by lane: the calls of one element each, on all lanes at once.
  unsigned c[4][kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const Philox4 counter = dropout_counter(of_head, row[i], key[i] + p.dropout_first_key);
    for (int word = 0; word < 4; ++word) c[word][i] = counter.word[word];
  }
  auto low = static_cast<unsigned>(of_head.seed);
  auto high = static_cast<unsigned>(of_head.seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const unsigned long long first = static_cast<unsigned long long>(kPhiloxFirst) * c[0][i];
      const unsigned long long second = static_cast<unsigned long long>(kPhiloxSecond) * c[2][i];
      c[0][i] = static_cast<unsigned>(second >> 32) ^ c[1][i] ^ low;
      c[2][i] = static_cast<unsigned>(first >> 32) ^ c[3][i] ^ high;
      c[1][i] = static_cast<unsigned>(second);
      c[3][i] = static_cast<unsigned>(first);
    }
    low += kPhiloxKeyLow;
    high += kPhiloxKeyHigh;
  }
  for (int i = 0; i < kLanes; ++i) {
    const Philox4 numbers = {{c[0][i], c[1][i], c[2][i], c[3][i]}};
    if (dropout_byte(numbers, row[i], key[i] + p.dropout_first_key) >= p.dropout_threshold) probabilities[i] = 0;
  }
  return probabilities;
}

/// What a row ends as: its maximum in powers of two, the sum below it, what its values are multiplied by, and whether
/// it is one of a mask or bias that hide all, which is zeros.
struct RowEnd {
  bool sees;
  float maximum;
  float sum;
  float inverse;
  float log_sum;
};

/// @param sees whether the mask, and the list of blocks where there is one, leave the row a key
template <Features kFeatures, Exp2 kExp2, typename Params>
inline RowEnd end_of_row(const Params& p, long long head, bool sees, float maximum, float sum) {
  // Where a bias may hide all keys; without one such a sum is of scores below fp32, which must show.
  if constexpr (kFeatures.bias) sees = sees && (p.bias == nullptr || !(sum == 0));
  float scale = 1;
  if constexpr (kFeatures.dropout) scale = dropout_scale(p);
  if constexpr (kFeatures.sinks)
    if (p.sinks != nullptr && p.sinks[head] != -kInfinity) {
      const float sink = p.sinks[head] * kLog2E;
      if (sink != sink) return {true, sink, sink, sink, sink};  // NaN changes all
      if (!sees) return {false, sink, 1, 0, p.sinks[head]};
      const float both = sink > maximum ? sink : maximum;
      const float of_keys = exp2<kExp2>(broadcast(maximum - both))[0];
      sum = sum * of_keys + exp2<kExp2>(broadcast(sink - both))[0];
      return {true, both, sum, scale * of_keys * inverse_sum(true, sum), row_log_sum(true, both, sum)};
    }
  return {sees, maximum, sum, scale * inverse_sum(sees, sum), row_log_sum(sees, maximum, sum)};
}

/// Calls `walk` with the keys of every listed block of a block of rows, of those that lie in `keys`, and with whether
/// the bias may change their scores; with all of these where there are no lists. The rows lie in one block of a list.
template <Features kFeatures, typename Params, typename Walk>
inline void walk_blocks(const Params& p, long long entry, long long head, int first_row, const Span& keys,
                        const Walk& walk) {
  if constexpr (kFeatures.blocks) {
    constexpr bool kHasFull = has_full_blocks(kFeatures);
    const KeyBlocks blocks =
        key_blocks<kHasFull>(p, static_cast<int>(entry), static_cast<int>(head), first_row, keys.end);
    // Blocks that follow each other are walked as one, so that tiles may be longer than a block.
    Span together{0, 0};
    bool are_full = false;
    for (int i = 0; i < blocks.count; ++i) {
      const int first = blocks.first_key(i, takes_full_blocks<kHasFull>(p));
      const Span of_block{first > keys.begin ? first : keys.begin,
                          first + blocks.keys < keys.end ? first + blocks.keys : keys.end};
      if (of_block.begin >= of_block.end) continue;
      const bool is_full = kHasFull && blocks.is_full(i);
      if (together.end == of_block.begin && together.begin < together.end && is_full == are_full) {
        together.end = of_block.end;
        continue;
      }
      if (together.begin < together.end) walk(together, !are_full);
      together = of_block;
      are_full = is_full;
    }
    if (together.begin < together.end) walk(together, !are_full);
  } else {
    walk(keys, true);
  }
}

/// Whether a row sees a key of `keys`, those that the mask leaves it.
template <Features kFeatures, typename Params>
inline bool sees_any(const Params& p, long long entry, long long head, int row, const Span& keys) {
  bool sees = false;
  walk_blocks<kFeatures>(p, entry, head, row, keys,
                         [&](const Span& walked, bool) { sees = sees || walked.begin < walked.end; });
  return sees;
}

/// Where the log-sum-exp of a head's first row lies.
template <bool kHasFeatures, typename Params>
inline float* lse_of(const Params& p, long long batch, long long head) {
  if constexpr (kHasFeatures)
    return p.lse + batch * p.lse_batch + head * p.lse_head;
  else
    return p.lse + (batch * p.heads + head) * p.len_q;
}

/// Where a row of K or V lies, in elements from the tensor's first.
template <bool kPages, typename Params>
inline long long row_of_keys(const Params& p, const TensorStrides& strides, long long batch, long long kv_head,
                             long long key) {
  if constexpr (kPages)
    return kv_head * strides.head + key_offset(p, strides, static_cast<int>(batch), static_cast<int>(key));
  else
    return batch * strides.batch + kv_head * strides.head + key * strides.row;
}

}  // namespace heed::cpu
