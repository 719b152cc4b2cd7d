#include "workload/quantised.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "kernels/element.hpp"
#include "workload/refusal.hpp"

namespace heed {
namespace {

constexpr std::int64_t kMostRowsOfScale = std::int64_t{1} << 20;

struct TensorLetter {
  char letter;
  char name;
  std::optional<QuantisedTensor> Quantised::*member;
};
constexpr std::array<TensorLetter, 3> kTensorLetters = {
    {{'q', 'Q', &Quantised::q}, {'k', 'K', &Quantised::k}, {'v', 'V', &Quantised::v}}};

constexpr std::pair<std::string_view, ScaleBy> kGranularities[] = {{"tensor", ScaleBy::tensor},
                                                                   {"head", ScaleBy::head},
                                                                   {"block", ScaleBy::block},
                                                                   {"token", ScaleBy::token},
                                                                   {"channel", ScaleBy::channel}};

std::string granularity_text(const QuantisedTensor& tensor) {
  return tensor.by == ScaleBy::block ? fmt::format("block{}", tensor.rows) : std::string(to_string(tensor.by));
}

QuantisedTensor parse_tensor(std::string_view whole, std::string_view part, std::string_view dtype,
                             std::string_view granularity) {
  QuantisedTensor tensor;
  bool known = false;
  for (const Dtype one : {Dtype::e4m3, Dtype::e5m2, Dtype::int8})
    if (dtype == to_string(one)) tensor.dtype = one, known = true;
  if (!known)
    refuse_workload(whole, fmt::format("\"{}\" of \"{}\" is no dtype of a quantised tensor; it is e4m3, e5m2 or int8",
                                       dtype, part));
  constexpr std::string_view kBlock = "block";
  if (granularity.substr(0, kBlock.size()) == kBlock && granularity.size() > kBlock.size()) {
    tensor.by = ScaleBy::block;
    tensor.rows = number_of<std::int64_t>(whole, "rows of a block", granularity.substr(kBlock.size()));
    return tensor;
  }
  for (const auto& [name, by] : kGranularities)
    if (granularity == name && by != ScaleBy::block) {
      tensor.by = by;
      return tensor;
    }
  refuse_workload(whole, fmt::format("\"{}\" of \"{}\" is no granularity of scale factors; it is tensor, head, blockB "
                                     "with the B rows of a block, token, or channel",
                                     granularity, part));
}

// "" where the tensor may be like that.
std::string wrong_tensor(const Workload& w, const TensorLetter& letter, const QuantisedTensor& tensor) {
  if (!is_quantised(tensor.dtype))
    return fmt::format("{} in {} is not quantised; its dtype is e4m3, e5m2 or int8", letter.name,
                       to_string(tensor.dtype));
  if (tensor.by == ScaleBy::channel && letter.letter != 'v')
    return fmt::format(
        "{} has no scale factors by channel, for a score sums over channels; give tensor, head, blockB "
        "or token",
        letter.name);
  if (tensor.by != ScaleBy::block)
    return tensor.rows == 1 ? ""
                            : fmt::format("{} with {} rows a block and scale factors by {}; give 1 row", letter.name,
                                          tensor.rows, to_string(tensor.by));
  if (tensor.rows < 2 || tensor.rows > kMostRowsOfScale)
    return fmt::format("{} has blocks of {} rows; a block of scale factors has 2 to {} (of single rows write token)",
                       letter.name, tensor.rows, kMostRowsOfScale);
  if (w.ragged && !(letter.letter != 'q' && w.page_size > 0))
    return fmt::format(
        "{} is ragged, so that a block of {} rows would be of two entries; give scale factors by token, "
        "head or tensor",
        letter.name, tensor.rows);
  return {};
}

}  // namespace

std::string_view to_string(ScaleBy by) {
  for (const auto& [name, value] : kGranularities)
    if (value == by) return name;
  return "?";
}

double largest_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::e4m3:
      return ElementTraits<Element::e4m3>::largest;
    case Dtype::e5m2:
      return ElementTraits<Element::e5m2>::largest;
    case Dtype::int8:
      return ElementTraits<Element::int8>::largest;
    case Dtype::fp16:
    case Dtype::bf16:
    case Dtype::fp32:
      break;
  }
  throw Error(ErrorCode::internal, fmt::format("{} is no dtype of a quantised tensor", to_string(dtype)),
              std::string(to_string(dtype)));
}

std::string to_string(const Quantised& quantised) {
  // Tensors that are alike, in the order of the first of each.
  std::vector<std::pair<std::string, QuantisedTensor>> groups;
  for (const TensorLetter& letter : kTensorLetters) {
    const std::optional<QuantisedTensor>& tensor = quantised.*(letter.member);
    if (!tensor) continue;
    const auto alike =
        std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.second == *tensor; });
    if (alike != groups.end())
      alike->first += letter.letter;
    else
      groups.emplace_back(std::string(1, letter.letter), *tensor);
  }
  std::vector<std::string> parts;
  for (const auto& [letters, tensor] : groups)
    parts.push_back(fmt::format("{}/{}/{}", letters, to_string(tensor.dtype), granularity_text(tensor)));
  return join(parts, "+");
}

Quantised parse_quantised(std::string_view whole, std::string_view text) {
  Quantised quantised;
  for (std::string_view rest = text;;) {
    const std::string_view part = rest.substr(0, rest.find('+'));
    const std::size_t first = part.find('/');
    const std::size_t second = first == std::string_view::npos ? first : part.find('/', first + 1);
    if (second == std::string_view::npos)
      refuse_workload(whole, fmt::format("\"{}\" says no quantised tensors; write quantised=TENSORS/DTYPE/GRANULARITY, "
                                         "for example qkv/e4m3/head or q/int8/block128+k/int8/block64",
                                         part));
    const QuantisedTensor tensor =
        parse_tensor(whole, part, part.substr(first + 1, second - first - 1), part.substr(second + 1));
    const std::string_view letters = part.substr(0, first);
    if (letters.empty()) refuse_workload(whole, fmt::format("\"{}\" names no tensor; begin with q, k or v", part));
    for (const char c : letters) {
      const auto* letter =
          std::find_if(kTensorLetters.begin(), kTensorLetters.end(), [&](const auto& one) { return one.letter == c; });
      if (letter == kTensorLetters.end() || quantised.*(letter->member))
        refuse_workload(
            whole, fmt::format("\"{}\" of \"{}\" are no tensors; write some of q, k and v, each once", letters, part));
      quantised.*(letter->member) = tensor;
    }
    if (part.size() == rest.size()) return quantised;
    rest.remove_prefix(part.size() + 1);
  }
}

std::string wrong_quantised(const Workload& w) {
  bool any = false;
  for (const TensorLetter& letter : kTensorLetters)
    if (const std::optional<QuantisedTensor>& tensor = (*w.quantised).*(letter.member)) {
      any = true;
      if (std::string wrong = wrong_tensor(w, letter, *tensor); !wrong.empty()) return wrong;
    }
  return any ? "" : "none of Q, K and V is quantised; leave quantised out";
}

std::string words_of(const Quantised& quantised) {
  std::vector<std::string> parts;
  for (const TensorLetter& letter : kTensorLetters)
    if (const std::optional<QuantisedTensor>& tensor = quantised.*(letter.member))
      parts.push_back(fmt::format("{} in {}", letter.name, to_string(tensor->dtype)));
  return join(parts, ", ");
}

Inputs inputs_of(const Workload& w) {
  if (!w.quantised) return {};
  const auto element = [](Dtype dtype) {
    switch (dtype) {
      case Dtype::fp16:
        return Element::fp16;
      case Dtype::bf16:
        return Element::bf16;
      case Dtype::fp32:
        return Element::fp32;
      case Dtype::e4m3:
        return Element::e4m3;
      case Dtype::e5m2:
        return Element::e5m2;
      case Dtype::int8:
        return Element::int8;
    }
    throw Error(ErrorCode::internal, "a dtype without an element type");
  };
  return {.quantised = true, .q = element(w.dtype_q()), .k = element(w.dtype_k()), .v = element(w.dtype_v())};
}

Strides ScaleSizes::strides() const {
  const auto stride = [](std::int64_t count, std::int64_t of_one) { return count > 1 ? of_one : 0; };
  return {stride(batch, heads * blocks * columns), stride(heads, blocks * columns), stride(blocks, columns)};
}

ScaleSizes scale_sizes(const QuantisedTensor& tensor, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                       std::int64_t columns) {
  switch (tensor.by) {
    case ScaleBy::tensor:
      return {};
    case ScaleBy::head:
      return {.batch = batch, .heads = heads};
    case ScaleBy::block:
    case ScaleBy::token:
      return {.batch = batch, .heads = heads, .blocks = (rows + tensor.rows - 1) / tensor.rows};
    case ScaleBy::channel:
      return {.batch = batch, .heads = heads, .columns = columns};
  }
  return {};
}

}  // namespace heed
