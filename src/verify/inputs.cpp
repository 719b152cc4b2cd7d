#include "verify/inputs.hpp"

#include <algorithm>
#include <cmath>

#include "base/limits.hpp"
#include "base/parallel.hpp"
#include "base/random.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

constexpr std::int64_t kChunk =
    1 << 14;  // values a random stream: makes filling parallel and independent of the thread count

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

}  // namespace

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
  }
  return "?";
}

const std::vector<InputClass>& all_input_classes() {
  static const std::vector<InputClass> all = {InputClass::normal,  InputClass::uniform,    InputClass::large_logits,
                                              InputClass::one_hot, InputClass::outliers,   InputClass::constant_v,
                                              InputClass::zero_k,  InputClass::peaked_late};
  return all;
}

InputValues make_inputs(const Workload& w, InputClass inputs, std::uint64_t seed) {
  const std::int64_t q_count = w.batch * w.heads * w.len_q * w.dim;
  const std::int64_t k_count = w.batch * w.heads_kv * w.len_k * w.dim;
  const std::int64_t v_count = w.batch * w.heads_kv * w.len_k * w.dim_v;
  require_memory(static_cast<double>(q_count + k_count + v_count) * sizeof(float), "a set of inputs");
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
      break;
    case InputClass::large_logits: {
      // A score is scale * sqrt(dim) * N(0, 1) * gain^2; the largest of many is about 4 sigma, and 4 * 15 = 60.
      const double deviation = w.softmax_scale() * std::sqrt(static_cast<double>(w.dim));
      const auto gain = static_cast<float>(std::sqrt(15.0 / deviation));
      const auto scale = [gain](Random&, std::int64_t, float& x) { x *= gain; };
      change_all(values.q, 0, scale);
      change_all(values.k, 0, scale);
      break;
    }
    case InputClass::one_hot: {
      // q = gain * k of the chosen key: its score is scale * gain * |k|^2, about 120 above the others: e^120 is no
      // fp32 number, so a kernel must subtract the maximum. The gain is bounded by what fp16 can hold.
      const double gain = std::min(120.0 / (w.softmax_scale() * static_cast<double>(w.dim)), 1e4);
      const std::int64_t group = w.heads / w.heads_kv;
      Random random(substream(seed, 4));
      for (std::int64_t b = 0; b < w.batch; ++b)
        for (std::int64_t h = 0; h < w.heads; ++h)
          for (std::int64_t i = 0; i < w.len_q; ++i) {
            const std::int64_t visible = w.visible_keys(i);
            const std::int64_t j =
                visible > 0 ? static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(visible))) : 0;
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
    case InputClass::zero_k:
      std::fill(values.k.begin(), values.k.end(), 0.0F);
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
  }
  return values;
}

InputValues values_of(const QkvTensors& tensors) {
  require_memory(sizeof(float) *
                     static_cast<double>(tensors.q.bytes.size() + tensors.k.bytes.size() + tensors.v.bytes.size()) /
                     static_cast<double>(size_of(tensors.workload.dtype)),
                 "a copy of q, k and v in fp32");
  const auto floats = [](const HostTensor& tensor) {
    Values values(tensor.bytes.size() / size_of(tensor.dtype));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = load_element(tensor.dtype, tensor.bytes.data(), i);
    return values;
  };
  // Scenes take (batch, head, row, dim); a blhd file is (batch, row, head, dim).
  const auto to_bhld = [&](const HostTensor& tensor) {
    Values values = floats(tensor);
    if (tensors.workload.layout == Layout::bhld) return values;
    const std::int64_t batch = tensor.shape[0], rows = tensor.shape[1], heads = tensor.shape[2], dim = tensor.shape[3];
    Values moved(values.size());
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t r = 0; r < rows; ++r)
          std::copy_n(values.begin() + ((b * rows + r) * heads + h) * dim, dim,
                      moved.begin() + ((b * heads + h) * rows + r) * dim);
    return moved;
  };
  return {to_bhld(tensors.q), to_bhld(tensors.k), to_bhld(tensors.v)};
}

}  // namespace heed::verify
