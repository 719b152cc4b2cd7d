#include "variant/element.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/text.hpp"

namespace heed {
namespace {

template <Element kElement>
ElementFacts row(Dtype dtype, double smallest) {
  using Traits = ElementTraits<kElement>;
  return {.element = kElement,
          .dtype = dtype,
          .name = Traits::name,
          .bytes = Traits::bytes,
          .digits = Traits::digits,
          .roundoff = std::ldexp(1.0, -Traits::digits),
          .largest = Traits::largest,
          .smallest = smallest};
}

const std::array<ElementFacts, 6>& table() {
  static const std::array all = {row<Element::fp16>(Dtype::fp16, 0x1p-24),  row<Element::bf16>(Dtype::bf16, 0x1p-133),
                                 row<Element::fp32>(Dtype::fp32, 0x1p-149), row<Element::e4m3>(Dtype::e4m3, 0x1p-9),
                                 row<Element::e5m2>(Dtype::e5m2, 0x1p-16),  row<Element::int8>(Dtype::int8, 1)};
  return all;
}

constexpr std::pair<std::string_view, MaskKind> kMaskKinds[] = {
    {"none", MaskKind::none}, {"causal", MaskKind::causal}, {"window", MaskKind::window}};

template <typename Entries, typename Matches>
const auto* find(const Entries& entries, const Matches& matches) {
  const auto found = std::find_if(std::begin(entries), std::end(entries), matches);
  return found == std::end(entries) ? nullptr : &*found;
}

template <typename Row>
const Row& known(const Row* row, const char* what, int value) {
  if (row != nullptr) return *row;
  throw Error(ErrorCode::internal, fmt::format("{} is no {}; it has no row in the table", value, what),
              std::to_string(value));
}

template <typename Row>
const Row& named(const Row* row, const char* what, std::string_view name, const std::vector<std::string_view>& names) {
  if (row != nullptr) return *row;
  throw Error(ErrorCode::usage, fmt::format("unknown {} \"{}\"; {}", what, name, one_of(name, names)),
              std::string(name));
}

}  // namespace

const ElementFacts& facts_of(Element element) {
  return known(find(table(), [&](const ElementFacts& facts) { return facts.element == element; }), "element type",
               static_cast<int>(element));
}

const ElementFacts& facts_of(Dtype dtype) {
  return known(find(table(), [&](const ElementFacts& facts) { return facts.dtype == dtype; }), "dtype",
               static_cast<int>(dtype));
}

const ElementFacts& find_element(std::string_view name) {
  return named(find(table(), [&](const ElementFacts& facts) { return facts.name == name; }), "element type", name,
               {"fp16", "bf16", "fp32", "e4m3", "e5m2", "int8"});
}

std::string_view to_string(MaskKind mask) {
  return known(find(kMaskKinds, [&](const auto& row) { return row.second == mask; }), "kind of mask",
               static_cast<int>(mask))
      .first;
}

MaskKind parse_mask_kind(std::string_view name) {
  return named(find(kMaskKinds, [&](const auto& row) { return row.first == name; }), "kind of mask", name,
               {"none", "causal", "window"})
      .second;
}

}  // namespace heed
