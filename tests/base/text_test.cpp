#include "base/text.hpp"

#include "testing.hpp"

namespace heed {
namespace {

TEST(Text, NearestFindsTypos) {
  EXPECT_EQ(nearest("blok_m", {"block_m", "block_n", "stages"}), "block_m");
  EXPECT_EQ(nearest("zzzzzz", {"block_m", "stages"}), "");
}

TEST(Text, OneOfListsEverything) {
  EXPECT_EQ(one_of("elit", {"elite", "single"}), "did you mean \"elite\"? it is one of elite, single");
  EXPECT_EQ(one_of("q", {"elite", "single"}), "it is one of elite, single");
}

TEST(Text, SplitAndTrim) {
  EXPECT_THAT(split("a,,b", ','), ::testing::ElementsAre("a", "", "b"));
  EXPECT_THAT(split("", ','), ::testing::ElementsAre(""));
  EXPECT_EQ(trim("  a b\n"), "a b");
}

TEST(Text, HumanUnits) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_duration(41), "41 s");
  EXPECT_EQ(human_duration(125), "2 min 05 s");
  EXPECT_EQ(human_duration(4200), "1 h 10 min");
}

TEST(Text, TheTellingLineOfACompiler) {
  EXPECT_EQ(telling_line("In file included from cpu/forward.hpp:6,\n                 from entry:1:\n"
                         "cpu/rows.hpp: In function 'float f(float)':\n"
                         "cpu/rows.hpp:64:10: error: 'oops' was not declared in this scope\n   64 |   return oops;\n"),
            "cpu/rows.hpp:64:10: error: 'oops' was not declared in this scope");
  EXPECT_EQ(telling_line("\nrow 3 is off\nby 2\n"), "row 3 is off");
  EXPECT_EQ(telling_line(""), "");
}

}  // namespace
}  // namespace heed
