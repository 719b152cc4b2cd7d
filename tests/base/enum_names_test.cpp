#include "base/enum_names.hpp"

#include "testing.hpp"

namespace heed {
namespace {

enum class Fruit { apple, pear, plum };
enum class One { only };

TEST(EnumNames, AreThoseOfTheDeclarationInItsOrder) {
  static_assert(kEnumCount<Fruit> == 3);
  static_assert(kEnumCount<One> == 1);
  std::vector<std::string> names;
  for (const std::string_view name : qualified_enum_names<Fruit>()) names.emplace_back(unqualified(name));
  EXPECT_EQ(names, (std::vector<std::string>{"apple", "pear", "plum"}));
  EXPECT_EQ(std::string(unqualified(qualified_enum_names<Fruit>()[static_cast<int>(Fruit::plum)])), "plum");
}

TEST(EnumNames, AreQualified) {
  EXPECT_THAT(std::string(qualified_enum_names<Fruit>()[1]), testing::EndsWith("Fruit::pear"));
  EXPECT_THAT(std::string(qualified_enum_names<Fruit>()[1]), testing::StartsWith("heed::"));
  EXPECT_EQ(unqualified("plain"), "plain");
}

}  // namespace
}  // namespace heed
