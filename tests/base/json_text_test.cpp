#include "json/text.hpp"

#include <cmath>
#include <filesystem>

#include "json/fields.hpp"
#include "testing.hpp"

namespace heed {
namespace {

TEST(JsonText, HasNoNumberThatIsNull) {
  const nlohmann::json json = {{"a", {1.5, std::nan(""), {{"b", INFINITY}}}}, {"c", -INFINITY}, {"d", nullptr}};
  EXPECT_EQ(json_text(json), R"({"a":[1.5,"nan",{"b":"inf"}],"c":"-inf","d":null})");
  EXPECT_EQ(json_text(nlohmann::json{{"a", 2}}, 1), "{\n \"a\": 2\n}");
  EXPECT_NO_THROW((void)json_text(nlohmann::json{{"path", "\xff"}}));
}

TEST(JsonText, OfWhatIsNoJsonIsOfNoType) {
  EXPECT_EQ(parse_json(R"({"a": [1, null]})")["a"].size(), 2U);
  for (const char* text : {"", "{", "no", "{\"a\": nan}", "[1] 2"}) {
    const nlohmann::json json = parse_json(text);
    EXPECT_TRUE(json.is_discarded() && !json.is_object() && !json.is_array()) << text;
  }
}

// Copies and destructors of a value call themselves once a level.
TEST(JsonText, TooManyLevelsAreNoJson) {
  const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_TRUE(parse_json(nested(200)).is_array());
  EXPECT_TRUE(parse_json(nested(201)).is_discarded());
  EXPECT_TRUE(parse_json(nested(1'000'000)).is_discarded());
  EXPECT_TRUE(parse_json(std::string(1'000'000, '[')).is_discarded());
  std::string objects;
  for (int i = 0; i < 300; ++i) objects += "{\"a\":[";
  EXPECT_TRUE(parse_json(objects).is_discarded());
  EXPECT_TRUE(parse_json("[\"" + std::string(300, '[') + "\\\"" + std::string(300, '{') + "\"]").is_array()) << "texts";
  EXPECT_EQ(parse_json("[" + nested(2) + std::string(400, ' ') + "," + nested(3) + "]").size(), 2U);
}

// Fields of JSON from elsewhere: what is missing or of another type, or is in no object, reads as nothing.
TEST(JsonFields, ReadAsNothingWhereTheyAreNone) {
  const nlohmann::json json = parse_json(R"({"text": "t", "number": 2.5, "numbers": [1, "x", 2]})");
  EXPECT_EQ(fields::text_of(json, "text"), "t");
  EXPECT_EQ(fields::number(json, "number"), 2.5);
  EXPECT_EQ(fields::numbers(json, "numbers"), (std::vector<double>{1, 2}));
  EXPECT_EQ(fields::text_of(json, "number"), "");
  EXPECT_EQ(fields::number(json, "text"), 0);
  EXPECT_TRUE(fields::member(json, "none").is_null());
  for (const nlohmann::json& other : {nlohmann::json(), nlohmann::json(3), parse_json("no")}) {
    EXPECT_EQ(fields::text_of(other, "text"), "");
    EXPECT_EQ(fields::number(other, "number"), 0);
    EXPECT_TRUE(fields::numbers(other, "numbers").empty());
  }
}

// One room turns text into JSON: others ask parse_json, whose errors are values and no exceptions of a library.
TEST(JsonText, IsParsedInOneRoom) {
  for (const char* folder : {"lab", "cli"})
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::string(testing_support::kSourceFolder) + "/" + folder)) {
      const std::string extension = entry.path().extension();
      if ((extension != ".cpp" && extension != ".hpp") || entry.path().parent_path().filename() == "json") continue;
      EXPECT_THAT(read_file(entry.path(), ErrorCode::internal), ::testing::Not(::testing::HasSubstr("json::parse(")))
          << entry.path();
    }
}

// Every command prints through it.
TEST(JsonText, IsWhatCommandsPrintThrough) {
  for (const auto& entry : std::filesystem::directory_iterator(std::string(testing_support::kSourceFolder) + "/cli"))
    EXPECT_THAT(read_file(entry.path(), ErrorCode::internal), ::testing::Not(::testing::HasSubstr("dump(")))
        << entry.path();
}

}  // namespace
}  // namespace heed
