#include "verify/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/limits.hpp"
#include "base/parallel.hpp"
#include "base/random.hpp"
#include "variant/element.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

constexpr std::int64_t kChunk =
    1 << 14;  // values a random stream: makes filling parallel and independent of the thread count

constexpr double kMostDeviation = 64;  // of the scores of inputs whose scores are not chosen

// Calls change(random, index, value) for every value, in the same order and with the same random numbers whatever the
// number of threads.
template <typename Change>
void change_all(Values& values, std::uint64_t seed, const Change& change) {
  const auto count = static_cast<std::int64_t>(values.size());
  parallel_for((count + kChunk - 1) / kChunk, 0, [&](std::int64_t chunk) {
    Random random(substream(seed, static_cast<std::uint64_t>(chunk)));
    const std::int64_t end = std::min(count, (chunk + 1) * kChunk);
    for (std::int64_t i = chunk * kChunk; i < end; ++i) change(random, i, values[static_cast<std::size_t>(i)]);
  });
}

template <typename Draw>
void fill(Values& values, std::int64_t count, std::uint64_t seed, const Draw& draw) {
  values.resize(static_cast<std::size_t>(count));
  change_all(values, seed, [&](Random& random, std::int64_t i, float& x) { x = static_cast<float>(draw(random, i)); });
}

// How much N(0, 1) values may be multiplied by: 8 deviations must fit the dtype, and products fp32.
double bounded(const Workload& w, double gain) {
  constexpr double kDeviations = 8.188;  // 8000 in fp16
  return std::min({gain, facts_of(w.dtype).largest / kDeviations, 1e15});
}

// Deviation of the scores of N(0, 1) inputs.
double score_deviation(const Workload& w) {
  return w.softmax_scale() * std::sqrt(static_cast<double>(w.dim));
}

void multiply_all(Values& values, double gain) {
  change_all(values, 0, [gain](Random&, std::int64_t, float& x) { x *= static_cast<float>(gain); });
}

// change(query values, key head, row) for every query of every head.
template <typename Change>
void change_queries(const Workload& w, Values& q, const Change& change) {
  const std::int64_t group = w.heads / w.heads_kv;
  parallel_for(w.batch * w.heads, 0, [&](std::int64_t head) {
    const std::int64_t key_head = head / w.heads * w.heads_kv + head % w.heads / group;
    for (std::int64_t i = 0; i < w.len_q; ++i) change(q.data() + (head * w.len_q + i) * w.dim, key_head, i);
  });
}

// A random order of `count` places, and a random sign for each; of the first head the original ones.
struct Turn {
  std::vector<int> from;
  std::vector<float> sign;
};
Turn random_turn(std::int64_t count, std::uint64_t seed, bool is_first) {
  Turn turn{std::vector<int>(static_cast<std::size_t>(count)),
            std::vector<float>(static_cast<std::size_t>(count), 1.0F)};
  std::iota(turn.from.begin(), turn.from.end(), 0);
  if (is_first) return turn;
  Random random(seed);
  for (std::size_t i = turn.from.size(); i > 1; --i) std::swap(turn.from[i - 1], turn.from[random.below(i)]);
  for (float& sign : turn.sign) sign = random.chance(0.5) ? -1.0F : 1.0F;
  return turn;
}

constexpr std::uint64_t kTurnSeed = 7;

Turn channel_turn(const Workload& w, std::uint64_t seed, std::int64_t key_head) {
  return random_turn(w.dim, substream(substream(seed, kTurnSeed), static_cast<std::uint64_t>(3 * key_head)),
                     key_head == 0);
}
Turn column_turn(const Workload& w, std::uint64_t seed, std::int64_t key_head) {
  return random_turn(w.dim_v, substream(substream(seed, kTurnSeed), static_cast<std::uint64_t>(3 * key_head + 1)),
                     key_head == 0);
}
Turn key_turn(const Workload& w, std::uint64_t seed, std::int64_t key_head) {
  return random_turn(w.len_k, substream(substream(seed, kTurnSeed), static_cast<std::uint64_t>(3 * key_head + 2)),
                     key_head == 0 || w.is_masked() || w.blocks);
}

// Every head as the first one, its channels, columns and keys turned.
void make_heads_equal(const Workload& w, InputValues& values, std::uint64_t seed) {
  const InputValues first = {Values(values.q.begin(), values.q.begin() + w.len_q * w.dim),
                             Values(values.k.begin(), values.k.begin() + w.len_k * w.dim),
                             Values(values.v.begin(), values.v.begin() + w.len_k * w.dim_v)};
  const std::int64_t group = w.heads / w.heads_kv;
  const auto put = [](const float* from, const Turn& turn, float* to) {
    for (std::size_t d = 0; d < turn.from.size(); ++d) to[d] = turn.sign[d] * from[turn.from[d]];
  };
  parallel_for(w.batch * w.heads_kv, 0, [&](std::int64_t key_head) {
    const Turn channels = channel_turn(w, seed, key_head);
    const Turn columns = column_turn(w, seed, key_head);
    const Turn keys = key_turn(w, seed, key_head);
    for (std::int64_t i = 0; i < group * w.len_q; ++i)
      put(first.q.data() + i % w.len_q * w.dim, channels, values.q.data() + (key_head * group * w.len_q + i) * w.dim);
    for (std::int64_t j = 0; j < w.len_k; ++j) {
      const std::int64_t from = keys.from[static_cast<std::size_t>(j)];
      put(first.k.data() + from * w.dim, channels, values.k.data() + (key_head * w.len_k + j) * w.dim);
      put(first.v.data() + from * w.dim_v, columns, values.v.data() + (key_head * w.len_k + j) * w.dim_v);
    }
  });
}

// The own key of a row, or the nearest there is.
std::int64_t nearest_own_key(const Workload& w, std::int64_t row) {
  return std::clamp<std::int64_t>(w.own_key(row), 0, w.len_k - 1);
}

}  // namespace

std::vector<ColumnMap> equal_head_columns(const Workload& w, std::uint64_t seed) {
  std::vector<ColumnMap> columns;
  for (std::int64_t key_head = 0; key_head < w.batch * w.heads_kv; ++key_head) {
    Turn turn = column_turn(w, seed, key_head);
    columns.push_back({std::move(turn.from), std::move(turn.sign)});
  }
  return columns;
}

std::string_view to_string(InputClass inputs) {
  switch (inputs) {
    case InputClass::normal:
      return "normal";
    case InputClass::uniform:
      return "uniform";
    case InputClass::large_logits:
      return "large_logits";
    case InputClass::one_hot:
      return "one_hot";
    case InputClass::outliers:
      return "outliers";
    case InputClass::constant_v:
      return "constant_v";
    case InputClass::zero_k:
      return "zero_k";
    case InputClass::peaked_late:
      return "peaked_late";
    case InputClass::peaked:
      return "peaked";
    case InputClass::outlier_channel:
      return "outlier_channel";
    case InputClass::channel_offsets:
      return "channel_offsets";
    case InputClass::attention_sink:
      return "attention_sink";
    case InputClass::own_key:
      return "own_key";
    case InputClass::equal_heads:
      return "equal_heads";
  }
  return "?";
}

const std::vector<InputClass>& all_input_classes() {
  static const std::vector<InputClass> all = {
      InputClass::normal,   InputClass::uniform,         InputClass::large_logits,    InputClass::one_hot,
      InputClass::outliers, InputClass::constant_v,      InputClass::zero_k,          InputClass::peaked_late,
      InputClass::peaked,   InputClass::outlier_channel, InputClass::channel_offsets, InputClass::attention_sink,
      InputClass::own_key,  InputClass::equal_heads};
  return all;
}

namespace {

InputValues make_tensors(const Workload& w, InputClass inputs, std::uint64_t seed) {
  const std::int64_t q_count = w.batch * w.heads * w.len_q * w.dim;
  const std::int64_t k_count = w.batch * w.heads_kv * w.len_k * w.dim;
  const std::int64_t v_count = w.batch * w.heads_kv * w.len_k * w.dim_v;
  require_memory(static_cast<double>(q_count + k_count + v_count) * sizeof(float), "a set of inputs");
  const double deviation = score_deviation(w);
  const auto normal = [](Random& random, std::int64_t) { return random.normal(); };
  const auto uniform = [](Random& random, std::int64_t) { return random.uniform(-1, 1); };
  const std::uint64_t q_seed = substream(seed, 1);
  const std::uint64_t k_seed = substream(seed, 2);
  const std::uint64_t v_seed = substream(seed, 3);

  InputValues values;
  if (inputs == InputClass::uniform) {
    fill(values.q, q_count, q_seed, uniform);
    fill(values.k, k_count, k_seed, uniform);
    fill(values.v, v_count, v_seed, uniform);
    return values;
  }
  fill(values.q, q_count, q_seed, normal);
  fill(values.k, k_count, k_seed, normal);
  fill(values.v, v_count, v_seed, normal);

  switch (inputs) {
    case InputClass::normal:
    case InputClass::uniform:
    case InputClass::zero_k:
      break;
    case InputClass::large_logits: {
      // A score is scale * sqrt(dim) * N(0, 1) * gain^2; the largest of many is about 4 sigma, and 4 * 15 = 60.
      const double gain = bounded(w, std::sqrt(15.0 / deviation));
      multiply_all(values.q, gain);
      multiply_all(values.k, gain);
      break;
    }
    case InputClass::one_hot: {
      // q = gain * k of the chosen key: its score is scale * gain * |k|^2, about 120 above the others: e^120 is no
      // fp32 number, so a kernel must subtract the maximum.
      const double gain = bounded(w, 120.0 / (w.softmax_scale() * static_cast<double>(w.dim)));
      const std::int64_t group = w.heads / w.heads_kv;
      const std::vector<EntryLengths> lengths = lengths_of(w);
      Random random(substream(seed, 4));
      for (std::int64_t b = 0; b < w.batch; ++b)
        for (std::int64_t h = 0; h < w.heads; ++h)
          for (std::int64_t i = 0; i < w.len_q; ++i) {
            const KeyRange seen = entry_of(w, lengths[static_cast<std::size_t>(b)]).keys_of(i);
            const std::int64_t j =
                seen.is_empty()
                    ? 0
                    : seen.begin + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(seen.count())));
            const float* key = values.k.data() + ((b * w.heads_kv + h / group) * w.len_k + j) * w.dim;
            float* query = values.q.data() + ((b * w.heads + h) * w.len_q + i) * w.dim;
            for (std::int64_t d = 0; d < w.dim; ++d) query[d] = static_cast<float>(gain) * key[d];
          }
      break;
    }
    case InputClass::outliers: {
      change_all(values.k, 0, [&](Random&, std::int64_t i, float& x) {
        if (i % w.dim % 16 == 5) x *= 20;
      });
      change_all(values.v, substream(seed, 5), [](Random& random, std::int64_t, float& x) {
        if (random.below(1000) == 0) x *= 20;
      });
      break;
    }
    case InputClass::constant_v:
      parallel_for(w.batch * w.heads_kv, 0, [&](std::int64_t head) {
        float* first = values.v.data() + head * w.len_k * w.dim_v;
        for (std::int64_t j = 1; j < w.len_k; ++j) std::copy(first, first + w.dim_v, first + j * w.dim_v);
      });
      break;
    case InputClass::peaked_late: {
      // Key j is scaled up with its position, so that maxima keep growing along a row, up to 8 times.
      parallel_for(w.batch * w.heads_kv, 0, [&](std::int64_t head) {
        for (std::int64_t j = 0; j < w.len_k; ++j) {
          const float gain = 1.0F + 7.0F * static_cast<float>(j) / static_cast<float>(w.len_k);
          float* key = values.k.data() + (head * w.len_k + j) * w.dim;
          for (std::int64_t d = 0; d < w.dim; ++d) key[d] *= gain;
        }
      });
      break;
    }
    case InputClass::peaked:
      multiply_all(values.q, bounded(w, 6.0 / deviation));
      break;
    case InputClass::outlier_channel: {
      // 40 and 300 where their product makes scores of at most 1,500, as 1/sqrt(d) does.
      const double share = std::min(1.0, std::sqrt(1500.0 / (w.softmax_scale() * 12000.0)));
      const auto channel =
          static_cast<std::int64_t>(Random(substream(seed, 6)).below(static_cast<std::uint64_t>(w.dim)));
      const auto raise = [&](Values& tensor, double by) {
        change_all(tensor, 0, [&, by](Random&, std::int64_t i, float& x) {
          if (i % w.dim == channel) x += static_cast<float>(by);
        });
      };
      raise(values.q, 40 * share);
      raise(values.k, 300 * share);
      break;
    }
    case InputClass::channel_offsets: {
      Values offsets;
      fill(offsets, w.dim, substream(seed, 6), [](Random& random, std::int64_t) { return 6 * random.normal(); });
      change_all(values.k, 0,
                 [&](Random&, std::int64_t i, float& x) { x += offsets[static_cast<std::size_t>(i % w.dim)]; });
      break;
    }
    case InputClass::attention_sink: {
      // A direction that the first key has and every query: its score is ln(keys) + 3 above the others', whose weights
      // together are then about e^-3.
      const double lead = std::min(12.0, std::log(static_cast<double>(w.len_k)) + 3);
      const auto along =
          static_cast<float>(bounded(w, std::sqrt(lead / (w.softmax_scale() * static_cast<double>(w.dim)))));
      Values direction;
      fill(direction, w.dim, substream(seed, 6),
           [](Random& random, std::int64_t) { return random.chance(0.5) ? 1 : -1; });
      const auto add = [&](float* x) {
        for (std::int64_t d = 0; d < w.dim; ++d) x[d] += along * direction[static_cast<std::size_t>(d)];
      };
      change_queries(w, values.q, [&](float* query, std::int64_t, std::int64_t) { add(query); });
      for (std::int64_t head = 0; head < w.batch * w.heads_kv; ++head) {
        add(values.k.data() + head * w.len_k * w.dim);
        float* value = values.v.data() + head * w.len_k * w.dim_v;
        for (std::int64_t d = 0; d < w.dim_v; ++d) value[d] *= 1e-3F;
      }
      break;
    }
    case InputClass::own_key: {
      // 20 above the others, which then share e^-20 of a row: its output is its own value.
      const auto gain = static_cast<float>(bounded(w, 20.0 / (w.softmax_scale() * static_cast<double>(w.dim))));
      change_queries(w, values.q, [&](float* query, std::int64_t head, std::int64_t row) {
        const float* key = values.k.data() + (head * w.len_k + nearest_own_key(w, row)) * w.dim;
        for (std::int64_t d = 0; d < w.dim; ++d) query[d] += gain * key[d];
      });
      break;
    }
    case InputClass::equal_heads:
      make_heads_equal(w, values, seed);
      break;
  }
  if (inputs == InputClass::zero_k) std::fill(values.k.begin(), values.k.end(), 0.0F);
  // A scale far above 1/sqrt(d): scores of more than a few hundred would only be told apart by their rounding.
  const bool fits_scale =
      inputs == InputClass::large_logits || inputs == InputClass::one_hot || inputs == InputClass::peaked;
  if (!fits_scale && deviation > kMostDeviation) multiply_all(values.q, kMostDeviation / deviation);
  return values;
}

}  // namespace

InputValues make_inputs(const Workload& w, InputClass inputs, std::uint64_t seed) {
  InputValues values = make_tensors(w, inputs, seed);
  make_features(w, substream(seed, 8), values);
  return values;
}

namespace {

// Whether any of the heads that read a key head has a block of keys in a list of its rows.
bool is_listed(const Workload& w, const BlockLists& lists, std::int64_t len_q, std::int64_t key_head,
               std::int64_t key_block) {
  const std::int64_t group = w.heads / w.heads_kv;
  const std::int64_t first = key_head % w.heads_kv * group;
  for (std::int64_t head = first; head < first + (lists.heads == 1 ? 1 : group); ++head)
    for (std::int64_t row = 0; row * w.blocks->rows < len_q; ++row)
      if (lists.has(key_head / w.heads_kv, head, row, key_block)) return true;
  return false;
}

}  // namespace

void poison_unseen_keys(const Workload& w, InputValues& values) {
  const auto poison = [&](Values& tensor, std::int64_t dim) {
    for (std::int64_t head = 0; head < w.batch * w.heads_kv; ++head) {
      const auto batch = static_cast<std::size_t>(head / w.heads_kv);
      Workload entry = entry_of(w, values.lengths[batch]);
      if (w.prefix > 0) entry.prefix = values.prefix_lengths[batch];
      const KeyRange seen = entry.len_q > 0 ? entry.seen_keys() : KeyRange{};
      const auto first = tensor.begin() + head * w.len_k * dim;
      std::fill(first, first + seen.begin * dim, NAN);
      std::fill(first + seen.end * dim, first + w.len_k * dim, NAN);
      if (!w.blocks) continue;
      for (std::int64_t key = 0; key < w.len_k; key += w.blocks->keys)
        if (!is_listed(w, values.blocks, entry.len_q, head, key / w.blocks->keys))
          std::fill(first + key * dim, first + std::min(w.len_k, key + w.blocks->keys) * dim, NAN);
    }
  };
  poison(values.k, w.dim);
  poison(values.v, w.dim_v);
}

}  // namespace heed::verify
