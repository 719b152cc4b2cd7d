#include "verify/given_features.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/limits.hpp"
#include "workload/features.hpp"
#include "workload/half.hpp"

namespace heed::verify {
namespace {

using Shape = std::vector<std::int64_t>;

// Rows (rows of all entries, heads, dim) as (batch, heads, most, dim), with zeros past those of an entry.
Values of_entries(const Values& rows, std::int64_t heads, const std::vector<EntryLengths>& lengths,
                  std::int64_t EntryLengths::*length, std::int64_t most) {
  std::int64_t all = 0;
  for (const EntryLengths& entry : lengths) all += entry.*length;
  const std::int64_t dim = static_cast<std::int64_t>(rows.size()) / (all * heads);
  const auto batch = static_cast<std::int64_t>(lengths.size());
  const double count = static_cast<double>(batch * heads) * static_cast<double>(most * dim);
  require_memory(sizeof(float) * count, "a copy of a ragged batch, whose entries all have the rows of the longest");
  Values values(static_cast<std::size_t>(count));
  std::fill(values.begin(), values.end(), 0.0F);
  auto from = rows.begin();
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t r = 0; r < lengths[static_cast<std::size_t>(b)].*length; ++r)
      for (std::int64_t h = 0; h < heads; ++h, from += dim)
        std::copy_n(from, dim, values.begin() + ((b * heads + h) * most + r) * dim);
  return values;
}

// The shape that a feature's tensor has to have; empty where the workload is without it.
Shape shape_of(const std::string& name, const QkvTensors& tensors, const Workload& w) {
  if (name == "bias" && w.bias) {
    const BiasSizes sizes = bias_sizes(w);
    return {sizes.batch, sizes.head, sizes.row, sizes.key};
  }
  if (name == "alibi_slopes" && w.alibi) return {w.heads};
  if (name == "relative_bias" && w.relative) return {w.heads, w.relative->buckets};
  if (name == "sinks" && w.sinks) return {w.heads};
  if (name == "out_norm_weight" && w.out_norm) return w.out_norm->by_head ? Shape{w.heads, w.dim_v} : Shape{w.dim_v};
  if (name == "out_gate" && w.out_gate != OutGate::none) {
    const std::int64_t columns = w.out_gate == OutGate::head ? 1 : w.dim_v;
    if (!tensors.lengths.empty()) return {tensors.q.shape.front(), w.heads, columns};
    return {w.batch, w.heads, w.len_q, columns};
  }
  if (name == "key_lengths" && w.key_lengths) return {w.batch};
  if (name == "prefix_lengths" && w.prefix > 0) return {w.batch};
  return {};
}

void check(const std::string& name, const NamedNumbers& given, const Shape& shape) {
  if (given.shape != shape)
    throw Error(ErrorCode::invalid_input,
                fmt::format("tensor \"{}\" has shape {}; the workload's is {}", name, given.shape, shape), name);
  const auto nan = std::find_if(given.values.begin(), given.values.end(), [](float x) { return std::isnan(x); });
  const auto infinite = std::find_if(given.values.begin(), given.values.end(), [&](float x) {
    const bool hides_keys = x < 0 && (name == "bias" || name == "relative_bias");
    return std::isinf(x) && !hides_keys;
  });
  if (infinite != given.values.end())
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("tensor \"{}\" holds {} at element {}; Heed proves kernels on finite numbers, and on -inf in "
                    "biases, which hides keys",
                    name, *infinite, infinite - given.values.begin()),
        name);
  if (nan != given.values.end())
    throw Error(ErrorCode::invalid_input,
                fmt::format("tensor \"{}\" holds NaN at element {}; Heed proves kernels on numbers", name,
                            nan - given.values.begin()),
                name);
}

std::int64_t length_of(const std::string& name, float value, std::int64_t most) {
  if (value != std::floor(value) || value < 0 || value > static_cast<float>(most))
    throw Error(ErrorCode::invalid_input,
                fmt::format("tensor \"{}\" holds {}; lengths are whole numbers of 0 to {}", name, value, most), name);
  return static_cast<std::int64_t>(value);
}

void put(const std::string& name, const NamedNumbers& given, const QkvTensors& tensors, const Workload& w,
         InputValues& values) {
  if (name == "key_lengths") {
    for (std::size_t b = 0; b < given.values.size(); ++b)
      values.lengths[b].len_k = length_of(name, given.values[b], w.len_k);
  } else if (name == "prefix_lengths") {
    for (std::size_t b = 0; b < given.values.size(); ++b)
      values.prefix_lengths[b] =
          static_cast<std::int32_t>(length_of(name, given.values[b], std::min(w.prefix, w.len_k)));
  } else {
    const auto assign = [&](auto& to) { to.assign(given.values.begin(), given.values.end()); };
    if (name == "bias") assign(values.bias);
    if (name == "alibi_slopes") assign(values.alibi_slopes);
    if (name == "relative_bias") assign(values.relative_bias);
    if (name == "sinks") assign(values.sinks);
    if (name == "out_norm_weight") assign(values.out_norm_weight);
    if (name == "out_gate") assign(values.out_gate);
    if (name == "out_gate" && !tensors.lengths.empty())
      values.out_gate = of_entries(values.out_gate, w.heads, tensors.lengths, &EntryLengths::len_q, w.len_q);
  }
}

}  // namespace

std::vector<std::string> take_given_features(const QkvTensors& tensors, const Workload& w, InputValues& values) {
  std::vector<std::string> missing;
  for (const std::string_view view : kFeatureTensors) {
    const std::string name(view);
    const Shape shape = shape_of(name, tensors, w);
    if (shape.empty()) continue;
    const auto found = tensors.features.find(name);
    if (found == tensors.features.end()) {
      missing.push_back(name);
      continue;
    }
    check(name, found->second, shape);
    put(name, found->second, tensors, w, values);
  }
  return missing;
}

InputValues values_of(const QkvTensors& tensors) {
  const Workload& w = tensors.workload;
  require_memory(sizeof(float) *
                     static_cast<double>(tensors.q.bytes.size() + tensors.k.bytes.size() + tensors.v.bytes.size()) /
                     static_cast<double>(size_of(w.dtype)),
                 "a copy of q, k and v in fp32");
  const auto floats = [](const HostTensor& tensor) {
    Values values(tensor.bytes.size() / size_of(tensor.dtype));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = load_element(tensor.dtype, tensor.bytes.data(), i);
    return values;
  };
  // Scenes take (batch, head, row, dim); a blhd file is (batch, row, head, dim): entries of one length.
  const auto to_bhld = [&](const HostTensor& tensor, std::int64_t EntryLengths::*length, std::int64_t most) {
    Values values = floats(tensor);
    if (w.layout == Layout::bhld) return values;
    const std::int64_t heads = tensor.shape[tensor.shape.size() - 2];
    return of_entries(values, heads, tensors.lengths.empty() ? lengths_of(w) : tensors.lengths, length, most);
  };
  InputValues values{to_bhld(tensors.q, &EntryLengths::len_q, w.len_q),
                     to_bhld(tensors.k, &EntryLengths::len_k, w.len_k),
                     to_bhld(tensors.v, &EntryLengths::len_k, w.len_k)};
  values.lengths = lengths_of(w);
  if (w.blocks) values.blocks = block_lists(w);
  values.prefix_lengths = prefix_lengths_of(w);
  return values;
}

GivenInputs given_inputs(const QkvTensors& tensors, const Workload& w, std::uint64_t seed) {
  GivenInputs given{values_of(tensors), {}};
  make_features(w, seed, given.values);
  if (!tensors.lengths.empty()) given.values.lengths = tensors.lengths;
  given.missing = take_given_features(tensors, w, given.values);
  return given;
}

std::vector<std::string> features_without_use(const QkvTensors& tensors, const Workload& w) {
  std::vector<std::string> names;
  for (const auto& [name, numbers] : tensors.features)
    if (shape_of(name, tensors, w).empty()) names.push_back(name);
  return names;
}

}  // namespace heed::verify
