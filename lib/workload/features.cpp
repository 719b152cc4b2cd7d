#include "workload/features.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.hpp"
#include "base/text.hpp"
#include "workload/blocks.hpp"
#include "workload/output.hpp"
#include "workload/quantised.hpp"
#include "workload/refusal.hpp"
#include "workload/relative_bias.hpp"

namespace heed {
namespace {

constexpr std::uint64_t kOrderSeed = 46;

struct BiasDimension {
  char letter;
  bool Bias::*member;
};
constexpr BiasDimension kBiasDimensions[] = {
    {'b', &Bias::by_batch}, {'h', &Bias::by_head}, {'l', &Bias::by_row}, {'k', &Bias::by_key}};

Bias parse_bias(std::string_view whole, std::string_view text) {
  Bias bias;
  const std::size_t slash = text.find('/');
  const std::string_view dtype = text.substr(0, slash);
  bool known = false;
  for (const BiasDtype one : {BiasDtype::boolean, BiasDtype::fp16, BiasDtype::bf16, BiasDtype::fp32})
    if (dtype == to_string(one)) bias.dtype = one, known = true;
  if (!known)
    refuse_workload(whole, fmt::format("\"{}\" is no dtype of a bias; it is bool, fp16, bf16 or fp32", dtype));
  if (slash == std::string_view::npos) return bias;
  bias.by_batch = bias.by_head = bias.by_row = bias.by_key = false;
  for (const char letter : text.substr(slash + 1)) {
    const auto* dimension = std::find_if(std::begin(kBiasDimensions), std::end(kBiasDimensions),
                                         [&](const BiasDimension& d) { return d.letter == letter; });
    if (dimension == std::end(kBiasDimensions) || bias.*(dimension->member))
      refuse_workload(whole, fmt::format("\"{}\" are no dimensions of a bias; write some of b, h, l and k, each once",
                                         text.substr(slash + 1)));
    bias.*(dimension->member) = true;
  }
  return bias;
}

std::string bias_text(const Bias& bias) {
  std::string dimensions;
  for (const BiasDimension& d : kBiasDimensions)
    if (bias.*(d.member)) dimensions += d.letter;
  return fmt::format(":bias={}{}", to_string(bias.dtype), dimensions == "bhlk" ? "" : "/" + dimensions);
}

RelativeBias parse_relative(std::string_view whole, std::string_view text) {
  const auto fails = [&] {
    refuse_workload(
        whole, fmt::format("\"{}\" are no buckets of relative positions; write relative=BUCKETS/DISTANCE, for example "
                           "32/128, or 32/128/past where keys after a query's own count as it",
                           text));
  };
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) fails();
  std::string_view distance = text.substr(slash + 1);
  RelativeBias relative;
  if (const std::size_t end = distance.find('/'); end != std::string_view::npos) {
    if (distance.substr(end + 1) != "past") fails();
    relative.bidirectional = false;
    distance = distance.substr(0, end);
  }
  relative.buckets = number_of<std::int64_t>(whole, "relative", text.substr(0, slash));
  relative.max_distance = number_of<std::int64_t>(whole, "relative", distance);
  return relative;
}

}  // namespace

Features features_of(const Workload& w) {
  return {.softcap = w.softcap != 0,
          .bias = w.bias.has_value(),
          .alibi = w.alibi,
          .sinks = w.sinks,
          .lengths = w.has_lengths(),
          .pages = w.page_size > 0,
          .blocks = w.blocks.has_value(),
          .prefix = w.prefix > 0,
          .dropout = w.dropout != 0,
          .relative = w.relative.has_value(),
          .out_norm = w.out_norm.has_value(),
          .out_gate = w.out_gate != OutGate::none};
}

bool covers(const Features& has, const Features& wanted) {
  return std::all_of(std::begin(kFeatureNames), std::end(kFeatureNames),
                     [&](const FeatureName& f) { return has.*(f.member) || !(wanted.*(f.member)); });
}

int count_of(const Features& features) {
  return static_cast<int>(std::count_if(std::begin(kFeatureNames), std::end(kFeatureNames),
                                        [&](const FeatureName& f) { return features.*(f.member); }));
}

Features without(const Features& features, const Features& others) {
  Features left = features;
  for (const FeatureName& f : kFeatureNames)
    if (others.*(f.member)) left.*(f.member) = false;
  return left;
}

Workload with_features(const Workload& workload, const Features& features) {
  const Features added = without(features, features_of(workload));
  Workload w = workload;
  if (added.softcap) w.softcap = 50;
  if (added.bias) w.bias = Bias{.by_batch = false, .by_head = false, .by_row = false};
  if (added.alibi) w.alibi = true;
  if (added.sinks) w.sinks = true;
  if (added.lengths) w.key_lengths = true;
  if (added.pages) w.page_size = 64;
  if (added.blocks) w.blocks = BlockPattern{.rows = 64, .keys = 64};  // what suits these suits all
  if (added.prefix) w.prefix = 1;
  if (added.dropout) w.dropout = 0.1;
  if (added.relative) w.relative = RelativeBias{};
  if (added.out_norm) w.out_norm = OutNorm{};
  if (added.out_gate) w.out_gate = OutGate::element;
  return w;
}

std::string to_string(const Features& features) {
  std::vector<std::string> names;
  for (const FeatureName& f : kFeatureNames)
    if (features.*(f.member)) names.emplace_back(f.name);
  return join(names, "_");
}

std::string words_of(const Features& features) {
  std::vector<std::string> words;
  for (const FeatureName& f : kFeatureNames)
    if (features.*(f.member)) words.emplace_back(f.words);
  return join(words, " and ");
}

std::string features_text(const Workload& w) {
  std::string text;
  if (w.softcap != 0) text += fmt::format(":softcap={}", w.softcap);
  if (w.bias) text += bias_text(*w.bias);
  if (w.relative)
    text += fmt::format(":relative={}/{}{}", w.relative->buckets, w.relative->max_distance,
                        w.relative->bidirectional ? "" : "/past");
  if (w.alibi) text += ":alibi";
  if (w.sinks) text += ":sinks";
  if (w.key_lengths) text += ":key_lengths";
  if (w.ragged) text += ":ragged";
  if (w.page_size > 0) text += fmt::format(":page={}", w.page_size);
  if (w.prefix > 0) text += fmt::format(":prefix={}", w.prefix);
  if (w.blocks) text += ":blocks=" + to_string(*w.blocks);
  if (w.dropout != 0) text += fmt::format(":dropout={}", w.dropout);
  if (w.quantised) text += ":quantised=" + to_string(*w.quantised);
  text += output_text(w);
  return text;
}

bool parse_feature(std::string_view whole, std::string_view part, Workload& w) {
  const auto once = [&](bool given) {
    if (given) refuse_workload(whole, fmt::format("\"{}\" is given twice", part.substr(0, part.find('='))));
  };
  const auto set = [&](bool& flag) {
    once(flag);
    flag = true;
    return true;
  };
  if (part == "alibi") return set(w.alibi);
  if (part == "sinks") return set(w.sinks);
  if (part == "key_lengths") return set(w.key_lengths);
  if (part == "ragged") return set(w.ragged);
  const std::size_t equals = part.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = part.substr(0, equals), value = part.substr(equals + 1);
  if (name == "softcap") {
    once(w.softcap != 0);
    w.softcap = number_of<double>(whole, "softcap", value);
    if (w.softcap == 0) refuse_workload(whole, "softcap=0 is none; leave it out");
    return true;
  }
  if (name == "dropout") {
    once(w.dropout != 0);
    w.dropout = number_of<double>(whole, "dropout", value);
    if (w.dropout == 0) refuse_workload(whole, "dropout=0 is none; leave it out");
    return true;
  }
  if (name == "relative") {
    once(w.relative.has_value());
    w.relative = parse_relative(whole, value);
    return true;
  }
  if (name == "page") {
    once(w.page_size != 0);
    w.page_size = number_of<std::int64_t>(whole, "page", value);
    if (w.page_size < 1) refuse_workload(whole, fmt::format("a page of {} keys; it has at least 1", value));
    return true;
  }
  if (name == "prefix") {
    once(w.prefix != 0);
    w.prefix = number_of<std::int64_t>(whole, "prefix", value);
    if (w.prefix < 1) refuse_workload(whole, fmt::format("a prefix of {} keys; it has at least 1", value));
    return true;
  }
  if (name == "blocks") {
    once(w.blocks.has_value());
    w.blocks = parse_block_pattern(whole, value);
    return true;
  }
  if (name == "quantised") {
    once(w.quantised.has_value());
    w.quantised = parse_quantised(whole, value);
    return true;
  }
  if (parse_output(whole, name, value, w)) return true;
  if (name != "bias") return false;
  once(w.bias.has_value());
  w.bias = parse_bias(whole, value);
  return true;
}

std::string wrong_features(const Workload& w) {
  // Kernels compute softcap * log2(e) in fp32.
  if (!(w.softcap == 0 || (std::isfinite(w.softcap) && w.softcap >= 1e-30 && w.softcap <= 1e30)))
    return fmt::format("softcap={} cannot be used; it must be positive, from 1e-30 to 1e30", w.softcap);
  if (!(w.dropout >= 0 && w.dropout <= 1))
    return fmt::format("dropout={} cannot be used; it is a probability, above 0 and at most 1", w.dropout);
  if (w.relative)
    if (std::string wrong = wrong_buckets(*w.relative); !wrong.empty()) return wrong;
  if (w.prefix < 0) return fmt::format("a prefix of {} keys; it has at least 1, or 0 for none", w.prefix);
  if (w.page_size < 0 || w.page_size > 1 << 20)
    return fmt::format("a page of {} keys; it has 1 to {}", w.page_size, 1 << 20);
  if (w.ragged && w.key_lengths && w.page_size == 0)
    return "ragged keys have lengths of their own; leave key_lengths out";
  if (w.blocks)
    if (std::string wrong = wrong_blocks(w); !wrong.empty()) return wrong;
  if (w.quantised)
    if (std::string wrong = wrong_quantised(w); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_output(w); !wrong.empty()) return wrong;
  if (w.bias && static_cast<double>(bias_sizes(w).count()) > 0x1p40) return "its bias has more than 2^40 elements";
  return {};
}

std::vector<std::int32_t> prefix_lengths_of(const Workload& w) {
  if (w.prefix == 0) return {};
  Workload one = w;
  one.ragged = false;
  one.key_lengths = true;
  one.len_k = std::min(w.prefix, w.len_k);
  std::vector<std::int32_t> lengths;
  for (const EntryLengths& entry : lengths_of(one)) lengths.push_back(static_cast<std::int32_t>(entry.len_k));
  return lengths;
}

std::size_t size_of(BiasDtype dtype) {
  return dtype == BiasDtype::boolean ? 1 : size_of(dtype_of(dtype));
}

BiasElement element_of(BiasDtype dtype) {
  switch (dtype) {
    case BiasDtype::boolean:
      return BiasElement::boolean;
    case BiasDtype::fp16:
      return BiasElement::fp16;
    case BiasDtype::bf16:
      return BiasElement::bf16;
    case BiasDtype::fp32:
      return BiasElement::fp32;
  }
  return BiasElement::fp32;
}

Dtype dtype_of(BiasDtype dtype) {
  switch (dtype) {
    case BiasDtype::boolean:
      break;
    case BiasDtype::fp16:
      return Dtype::fp16;
    case BiasDtype::bf16:
      return Dtype::bf16;
    case BiasDtype::fp32:
      return Dtype::fp32;
  }
  throw Error(ErrorCode::internal, "a boolean bias has no numbers");
}

BiasSizes bias_sizes(const Workload& w) {
  const Bias bias = w.bias.value_or(Bias{.by_batch = false, .by_head = false, .by_row = false, .by_key = false});
  return {bias.by_batch ? w.batch : 1, bias.by_head ? w.heads : 1, bias.by_row ? w.len_q : 1,
          bias.by_key ? w.len_k : 1};
}

std::vector<EntryLengths> lengths_of(const Workload& w) {
  std::vector<EntryLengths> lengths(static_cast<std::size_t>(w.batch), {w.len_q, w.len_k});
  if (!w.has_lengths()) return lengths;
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{1});
  Random random(kOrderSeed);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const auto share = [&](std::int64_t length) { return (length * order[b] + w.batch - 1) / w.batch; };
    lengths[b].len_k = share(w.len_k);
    if (w.ragged) lengths[b].len_q = share(w.len_q);
  }
  return lengths;
}

Workload entry_of(const Workload& w, const EntryLengths& lengths) {
  Workload entry = w;
  entry.batch = 1;
  entry.len_q = lengths.len_q;
  entry.len_k = lengths.len_k;
  entry.key_lengths = entry.ragged = false;
  entry.page_size = 0;
  return entry;
}

}  // namespace heed
