#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/text.hpp"
#include "heed/heed.hpp"
#include "workload/blocks.hpp"
#include "workload/features.hpp"
#include "workload/mask.hpp"
#include "workload/quantised.hpp"
#include "workload/refusal.hpp"

namespace heed {
namespace {

constexpr std::int64_t kMaxDimension = (std::int64_t{1} << 31) - 1;
constexpr double kLog2E = 1.4426950408889634;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;

struct Dimension {
  std::string_view key;
  std::int64_t Workload::*member;
};

// In the order of the canonical text.
constexpr Dimension kDimensions[] = {{"b", &Workload::batch}, {"h", &Workload::heads}, {"hkv", &Workload::heads_kv},
                                     {"l", &Workload::len_q}, {"k", &Workload::len_k}, {"d", &Workload::dim},
                                     {"dv", &Workload::dim_v}};
constexpr std::size_t kDimensionCount = std::size(kDimensions);

constexpr bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

Workload parse_shape(std::string_view whole, std::string_view shape) {
  Workload workload;
  bool given[kDimensionCount] = {};
  if (shape.empty()) refuse_workload(whole, "the shape is empty; write for example b1h8l512d64");
  std::size_t at = 0;
  while (at < shape.size()) {
    const std::size_t key_start = at;
    while (at < shape.size() && is_letter(shape[at])) ++at;
    const std::string_view key = shape.substr(key_start, at - key_start);
    const std::size_t number_start = at;
    if (at < shape.size() && shape[at] == '-') ++at;
    while (at < shape.size() && is_digit(shape[at])) ++at;
    const std::string_view number = shape.substr(number_start, at - number_start);
    if (key.empty())
      refuse_workload(
          whole, fmt::format("a dimension must start with its letters, found \"{}\"; write for example b1h8l512d64",
                             shape.substr(key_start, 8)));
    const auto* dimension =
        std::find_if(std::begin(kDimensions), std::end(kDimensions), [&](const Dimension& d) { return d.key == key; });
    if (dimension == std::end(kDimensions))
      refuse_workload(whole,
                      fmt::format("unknown dimension \"{}\"; the dimensions are b, h, hkv, l, k, d and dv", key));
    const auto index = static_cast<std::size_t>(dimension - std::begin(kDimensions));
    if (given[index]) refuse_workload(whole, fmt::format("\"{}\" is given twice", key));
    given[index] = true;
    if (number.empty() || number == "-") refuse_workload(whole, fmt::format("\"{}\" needs a number after it", key));
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc::result_out_of_range || value > kMaxDimension)
      refuse_workload(whole, fmt::format("{}={} is too large; a dimension is at most {}", key, number, kMaxDimension));
    if (error != std::errc() || end != number.data() + number.size())
      refuse_workload(whole, fmt::format("\"{}\" is not a number", number));
    if (value < 1)
      refuse_workload(whole, fmt::format("{}={} is not positive; every dimension is at least 1", key, value));
    workload.*(dimension->member) = value;
  }
  const auto was_given = [&](std::string_view key) {
    for (std::size_t i = 0; i < kDimensionCount; ++i)
      if (kDimensions[i].key == key) return given[i];
    return false;
  };
  if (!was_given("l")) refuse_workload(whole, "the query length is missing; add for example l512");
  if (!was_given("d")) refuse_workload(whole, "the head dim is missing; add for example d64");
  if (!was_given("hkv")) workload.heads_kv = workload.heads;
  if (!was_given("k")) workload.len_k = workload.len_q;
  if (!was_given("dv")) workload.dim_v = workload.dim;
  return workload;
}

template <typename Enum, std::size_t N>
Enum parse_named(std::string_view text, const char* what, const std::pair<std::string_view, Enum> (&names)[N]) {
  for (const auto& [name, value] : names)
    if (text == name) return value;
  std::vector<std::string_view> known;
  for (const auto& [name, value] : names) known.push_back(name);
  throw Error(ErrorCode::usage, fmt::format("unknown {} \"{}\"; {}", what, text, one_of(text, known)),
              std::string(text));
}

// Of a workload: O's.
constexpr std::pair<std::string_view, Dtype> kDtypes[] = {
    {"fp16", Dtype::fp16}, {"bf16", Dtype::bf16}, {"fp32", Dtype::fp32}};
constexpr std::pair<std::string_view, Dtype> kQuantisedDtypes[] = {
    {"e4m3", Dtype::e4m3}, {"e5m2", Dtype::e5m2}, {"int8", Dtype::int8}};
constexpr std::pair<std::string_view, Mask> kMasks[] = {{"none", Mask::none},
                                                        {"causal_top_left", Mask::causal_top_left},
                                                        {"causal_bottom_right", Mask::causal_bottom_right},
                                                        {"top-left", Mask::causal_top_left},
                                                        {"bottom-right", Mask::causal_bottom_right}};
// What is followed by the numbers of a window.
constexpr std::pair<std::string_view, Mask> kWindows[] = {{"window", Mask::window_bottom_right},
                                                          {"window_top_left", Mask::window_top_left}};

// "LEFT" or "LEFT/RIGHT"
Window parse_window(std::string_view whole, std::string_view numbers) {
  const std::size_t slash = numbers.find('/');
  const auto keys = [&](std::string_view number) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc::result_out_of_range || (error == std::errc() && value > kMaxDimension))
      refuse_workload(whole, fmt::format("a window of {} keys is too large; it has at most {}", number, kMaxDimension));
    if (error != std::errc() || end != number.data() + number.size() || value < Window::kAll)
      refuse_workload(whole, fmt::format("\"{}\" is no number of keys of a window; write for example window=255 or "
                                         "window=128/128, with -1 for all keys",
                                         number));
    return value;
  };
  Window window{keys(numbers.substr(0, slash)), Window::kAll};
  if (slash != std::string_view::npos) window.right = keys(numbers.substr(slash + 1));
  return window;
}
constexpr std::pair<std::string_view, BiasDtype> kBiasDtypes[] = {
    {"bool", BiasDtype::boolean}, {"fp16", BiasDtype::fp16}, {"bf16", BiasDtype::bf16}, {"fp32", BiasDtype::fp32}};
constexpr std::pair<std::string_view, Layout> kLayouts[] = {{"bhld", Layout::bhld}, {"blhd", Layout::blhd}};

std::optional<Mask> mask_of_window(std::string_view name) {
  for (const auto& [known, mask] : kWindows)
    if (name == known) return mask;
  return std::nullopt;
}

template <typename Enum, std::size_t N>
std::string_view name_of(Enum value, const std::pair<std::string_view, Enum> (&names)[N]) {
  for (const auto& [name, candidate] : names)
    if (candidate == value) return name;
  return "?";
}

}  // namespace

std::string_view to_string(Dtype dtype) {
  return is_quantised(dtype) ? name_of(dtype, kQuantisedDtypes) : name_of(dtype, kDtypes);
}
std::string_view to_string(Mask mask) {
  return is_window(mask) ? name_of(mask, kWindows) : name_of(mask, kMasks);
}
std::string_view to_string(Layout layout) {
  return name_of(layout, kLayouts);
}
std::string_view to_string(BiasDtype dtype) {
  return name_of(dtype, kBiasDtypes);
}
Dtype parse_dtype(std::string_view text) {
  return parse_named(text, "dtype", kDtypes);
}
Mask parse_mask(std::string_view text) {
  return parse_named(text, "mask", kMasks);
}
Layout parse_layout(std::string_view text) {
  return parse_named(text, "layout", kLayouts);
}

namespace {

void validate_window(const Workload& w, const std::string& text) {
  if (w.window == Window{} && !is_window(w.mask)) return;
  if (w.mask == Mask::none)
    refuse_workload(text,
                    "a window without a mask; give it as window=LEFT/RIGHT, or beside a causal mask as window=LEFT");
  if (!is_window(w.mask) && w.window.right != Window::kAll)
    refuse_workload(text,
                    fmt::format("a causal mask ends with a query's own key; its window has no RIGHT: write window={}",
                                w.window.left));
  for (const std::int64_t keys : {w.window.left, w.window.right})
    if (keys < Window::kAll || keys > kMaxDimension)
      refuse_workload(text, fmt::format("a window of {} keys; it has 0 to {}, or -1 for all", keys, kMaxDimension));
  if (w.len_q + w.len_k > kMaxDimension)
    refuse_workload(text, fmt::format("{} queries and {} keys are too many for a window; together they are at most {}",
                                      w.len_q, w.len_k, kMaxDimension));
}

}  // namespace

void validate(const Workload& workload) {
  const std::string text = to_string(workload);
  for (const auto& [key, member] : kDimensions) {
    if (workload.*member < 1)
      refuse_workload(text, fmt::format("{}={} is not positive; every dimension is at least 1", key, workload.*member));
    if (workload.*member > kMaxDimension)
      refuse_workload(
          text, fmt::format("{}={} is too large; a dimension is at most {}", key, workload.*member, kMaxDimension));
  }
  if (workload.heads % workload.heads_kv != 0)
    refuse_workload(text, fmt::format("{} query heads cannot share {} key heads; h must be a multiple of hkv",
                                      workload.heads, workload.heads_kv));
  const auto elements = [](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c) * static_cast<double>(d);
  };
  const double largest =
      std::max(elements(workload.batch, workload.heads, workload.len_q, std::max(workload.dim, workload.dim_v)),
               elements(workload.batch, workload.heads_kv, workload.len_k, std::max(workload.dim, workload.dim_v)));
  if (largest > static_cast<double>(kMaxElements))
    refuse_workload(text,
                    fmt::format("its largest tensor would have {:.3g} elements; at most 2^40 are allowed", largest));
  if (is_quantised(workload.dtype))
    refuse_workload(text, fmt::format("{} is no dtype of O; it is fp16, bf16 or fp32", to_string(workload.dtype)));
  validate_window(workload, text);
  if (const std::string wrong = wrong_features(workload); !wrong.empty()) refuse_workload(text, wrong);
  if (workload.scale && !(std::isfinite(*workload.scale) && *workload.scale > 0))
    refuse_workload(text, fmt::format("scale={} cannot be used; it must be finite and positive", *workload.scale));
  // Kernels multiply by scale * log2(e) in fp32; a subnormal one would have lost its digits.
  if (workload.scale && !(*workload.scale >= std::numeric_limits<float>::min() &&
                          *workload.scale * kLog2E <= std::numeric_limits<float>::max()))
    refuse_workload(
        text,
        fmt::format("scale={} cannot be used; kernels multiply by it and by its product with log2(e) in fp32, which "
                    "holds scales from {:.3g} to {:.3g}",
                    *workload.scale, std::numeric_limits<float>::min(), std::numeric_limits<float>::max() / kLog2E));
}

Workload parse_workload(std::string_view text) {
  const std::size_t colon = text.find(':');
  Workload workload = parse_shape(text, text.substr(0, colon));
  bool has_dtype = false, has_mask = false, has_layout = false;
  std::optional<Mask> window_mask;
  const auto once = [&](bool& seen, const char* what) {
    if (seen) refuse_workload(text, fmt::format("the {} is given twice", what));
    seen = true;
  };
  std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon);
  while (!rest.empty()) {
    rest.remove_prefix(1);  // the colon
    const std::string_view part = rest.substr(0, rest.find(':'));
    rest.remove_prefix(part.size());
    const auto contains = [&](const auto& names) {
      return std::any_of(std::begin(names), std::end(names), [&](const auto& entry) { return entry.first == part; });
    };
    if (contains(kDtypes)) {
      once(has_dtype, "dtype");
      workload.dtype = parse_dtype(part);
    } else if (contains(kMasks)) {
      once(has_mask, "mask");
      workload.mask = parse_mask(part);
    } else if (const std::size_t equals = part.find('=');
               equals != std::string_view::npos && mask_of_window(part.substr(0, equals))) {
      if (window_mask) refuse_workload(text, "the window is given twice");
      window_mask = mask_of_window(part.substr(0, equals));
      workload.window = parse_window(text, part.substr(equals + 1));
    } else if (contains(kLayouts)) {
      once(has_layout, "layout");
      workload.layout = parse_layout(part);
    } else if (part.substr(0, 6) == "scale=") {
      if (workload.scale) refuse_workload(text, "the scale is given twice");
      workload.scale = number_of<double>(text, "scale", part.substr(6));
    } else if (!parse_feature(text, part, workload)) {
      refuse_workload(
          text, fmt::format("\"{}\" is no dtype (fp16, bf16, fp32), mask (causal_top_left, causal_bottom_right, "
                            "window=LEFT/RIGHT, window_top_left=LEFT/RIGHT), layout (bhld, blhd), scale=NUMBER or "
                            "feature (softcap=NUMBER, bias=DTYPE/DIMENSIONS, alibi, sinks, key_lengths, ragged, "
                            "page=KEYS, prefix=KEYS, dropout=PROBABILITY, "
                            "relative=BUCKETS/DISTANCE, blocks=SIZE/PARTS, quantised=TENSORS/DTYPE/GRANULARITY, "
                            "out_norm=EPS, out_gate=element|head)",
                            part));
    }
  }
  if (window_mask) {
    if (workload.mask == Mask::none)
      workload.mask = *window_mask;
    else if (*window_mask != Mask::window_bottom_right)
      refuse_workload(text, fmt::format("{} already says how the mask is aligned; write window={}",
                                        to_string(workload.mask), workload.window.left));
    else if (workload.window.right == 0)
      workload.window.right = Window::kAll;
  }
  validate(workload);
  return reduced(workload);
}

Workload reduced(const Workload& workload) {
  Workload w = workload;
  if (!is_window(w.mask) && !w.has_left_bound()) return w;
  if (w.has_left_bound() && w.own_key(w.len_q - 1) <= w.window.left) w.window.left = Window::kAll;
  if (!is_window(w.mask)) return w;
  const bool at_top_left = w.mask == Mask::window_top_left && (w.len_q != w.len_k || w.has_lengths());
  if (w.has_right_bound() && w.window.right >= w.len_k - 1 - w.own_key(0)) w.window.right = Window::kAll;
  w.mask = at_top_left ? Mask::window_top_left : Mask::window_bottom_right;
  if (w.window.right == 0) {
    w.mask = at_top_left ? Mask::causal_top_left : Mask::causal_bottom_right;
    w.window.right = Window::kAll;
  } else if (!w.is_masked()) {
    w.mask = Mask::none;
  }
  return w;
}

std::string to_string(const Workload& workload) {
  std::string text = fmt::format("b{}h{}", workload.batch, workload.heads);
  if (workload.heads_kv != workload.heads) text += fmt::format("hkv{}", workload.heads_kv);
  text += fmt::format("l{}", workload.len_q);
  if (workload.len_k != workload.len_q) text += fmt::format("k{}", workload.len_k);
  text += fmt::format("d{}", workload.dim);
  if (workload.dim_v != workload.dim) text += fmt::format("dv{}", workload.dim_v);
  text += fmt::format(":{}", to_string(workload.dtype));
  text += mask_text(workload);
  if (workload.layout != Layout::bhld) text += fmt::format(":{}", to_string(workload.layout));
  if (workload.scale) text += fmt::format(":scale={}", *workload.scale);  // shortest text that reads back the same
  return text + features_text(workload);
}

std::vector<RowIndex> all_rows(const Workload& workload) {
  std::vector<RowIndex> rows;
  rows.reserve(static_cast<std::size_t>(workload.batch * workload.heads * workload.len_q));
  for (std::int64_t batch = 0; batch < workload.batch; ++batch)
    for (std::int64_t head = 0; head < workload.heads; ++head)
      for (std::int64_t row = 0; row < workload.len_q; ++row) rows.push_back({batch, head, row});
  return rows;
}

}  // namespace heed
