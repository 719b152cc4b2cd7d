#include "variant/params_fields.hpp"

#include <map>

#include "testing.hpp"

namespace heed {
namespace {

// A field that is not in the tables leaves a hole.
TEST(ParamsFields, CoverTheStruct) {
  std::map<std::size_t, std::string> by_offset;
  for_each_params_field(
      [&](std::string_view name, std::size_t offset) { EXPECT_TRUE(by_offset.emplace(offset, name).second) << name; });
  std::size_t next = 0;
  for (const auto& [offset, name] : by_offset) {
    EXPECT_EQ(offset, next) << "in front of " << name;
    const bool is_strides = name.find("_strides") != std::string::npos;
    const bool is_pointer = offset < offsetof(ForwardParams, q_strides);
    next = offset + (is_pointer ? sizeof(void*) : is_strides ? sizeof(TensorStrides) : sizeof(int));
  }
  EXPECT_LT(sizeof(ForwardParams) - next, alignof(ForwardParams)) << "behind the last one";
}

// What a program for fixed sizes knows: all of FixedSizes has a field, and with_sizes() puts each where it belongs.
TEST(ParamsFields, CoverWhatAProgramKnows) {
  FixedSizes sizes;
  std::size_t bytes = 0;
  int next = 2;
  for (const auto& field : kIntFields) {
    EXPECT_EQ(field.fixed == nullptr, field.tag.empty()) << field.name;
    if (field.fixed == nullptr) continue;
    sizes.*field.fixed = next++;
    bytes += sizeof(int);
  }
  for (const auto& field : kStridesFields)
    if (field.fixed != nullptr) {
      sizes.*field.fixed = {.batch = next, .head = next + 1, .row = next + 2};
      bytes += sizeof(TensorStrides);
    }
  EXPECT_LT(sizeof(FixedSizes) - bytes, alignof(FixedSizes)) << "a number that the tables do not have";
  const ForwardParams known = with_sizes(ForwardParams{}, sizes);
  for (const auto& field : kIntFields)
    if (field.fixed != nullptr) {
      EXPECT_EQ(known.*field.member, sizes.*field.fixed) << field.name;
    }
  for (const auto& field : kStridesFields)
    if (field.fixed != nullptr) {
      EXPECT_EQ(known.*field.member, sizes.*field.fixed) << field.name;
    }
  EXPECT_EQ(known.group_size, sizes.heads / sizes.heads_kv);
}

}  // namespace
}  // namespace heed
