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

}  // namespace
}  // namespace heed
