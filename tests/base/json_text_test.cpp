#include "json/text.hpp"

#include <cmath>

#include "testing.hpp"

namespace heed {
namespace {

TEST(JsonText, HasNoNumberThatIsNull) {
  const nlohmann::json json = {{"a", {1.5, std::nan(""), {{"b", INFINITY}}}}, {"c", -INFINITY}, {"d", nullptr}};
  EXPECT_EQ(json_text(json), R"({"a":[1.5,"nan",{"b":"inf"}],"c":"-inf","d":null})");
  EXPECT_EQ(json_text(nlohmann::json{{"a", 2}}, 1), "{\n \"a\": 2\n}");
  EXPECT_NO_THROW((void)json_text(nlohmann::json{{"path", "\xff"}}));
}

// Every command prints through it.
TEST(JsonText, IsWhatCommandsPrintThrough) {
  for (const auto& entry : std::filesystem::directory_iterator(std::string(testing_support::kSourceFolder) + "/cli"))
    EXPECT_THAT(read_file(entry.path(), ErrorCode::internal), ::testing::Not(::testing::HasSubstr("dump(")))
        << entry.path();
}

}  // namespace
}  // namespace heed
