/// Names of the enumerators of a scoped enumeration, as they stand in its declaration: what a command line, an id and a
/// translation unit call a value cannot differ from what the compiler knows.
///
/// The compiler spells an enumerator out in the name of a function that has it as a template argument (GCC and Clang:
/// https://gcc.gnu.org/onlinedocs/gcc/Function-Names.html); a value without an enumerator is spelled as a cast.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace heed {

namespace enum_names_detail {

template <auto kValue>
constexpr std::string_view spelled() {
  const std::string_view function = __PRETTY_FUNCTION__;
  const std::size_t begin = function.find("kValue = ") + 9;
  return function.substr(begin, function.find_first_of(";]", begin) - begin);
}

template <typename Enum, int kFirst>
constexpr int count_from() {
  if constexpr (spelled<static_cast<Enum>(kFirst)>().front() == '(')
    return kFirst;
  else
    return count_from<Enum, kFirst + 1>();
}

template <typename Enum, int... kIndex>
std::vector<std::string_view> qualified(std::integer_sequence<int, kIndex...>) {
  return {spelled<static_cast<Enum>(kIndex)>()...};
}

}  // namespace enum_names_detail

/// How many enumerators there are from 0 on.
template <typename Enum>
inline constexpr int kEnumCount = enum_names_detail::count_from<Enum, 0>();

/// Qualified names in the order of declaration, e.g. "heed::cpu::Exp2::degree3". The enumerators are 0, 1, .. .
template <typename Enum>
const std::vector<std::string_view>& qualified_enum_names() {
  static_assert(kEnumCount<Enum> > 0, "an enumeration without an enumerator for 0, or declared without enumerators");
  static const std::vector<std::string_view> names =
      enum_names_detail::qualified<Enum>(std::make_integer_sequence<int, kEnumCount<Enum>>());
  return names;
}

/// The last part of a qualified name.
constexpr std::string_view unqualified(std::string_view name) {
  const std::size_t colons = name.rfind("::");
  return colons == std::string_view::npos ? name : name.substr(colons + 2);
}

}  // namespace heed
