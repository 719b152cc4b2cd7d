// Replies of many forms as edits, and those that are none.
#include "source/edits.hpp"

#include "testing.hpp"

namespace heed::source {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string refusal_of_edit(std::string_view reply) {
  try {
    (void)parse_edits(reply);
  } catch (const EditError& error) {
    return error.what();
  }
  return {};
}

TEST(Edits, BlocksOfSearchAndReplaceWithTheirPath) {
  const Edits edits = parse_edits(
      "<insight>One maximum for two tiles\nis enough.</insight>\n\n"
      "### `cpu/simd.hpp`\n```cpp\n<<<<<<< SEARCH\n  a = 1;\n=======\n  a = 2;\n  b = 3;\n>>>>>>> REPLACE\n```\n"
      "<<<<<<< SEARCH\nold\n=======\n>>>>>>> REPLACE\n");
  EXPECT_EQ(edits.insight, "One maximum for two tiles is enough.");
  ASSERT_EQ(edits.replacements.size(), 2U);
  EXPECT_EQ(edits.replacements[0].path, "cpu/simd.hpp");
  EXPECT_THAT(edits.replacements[0].search, ElementsAre("  a = 1;"));
  EXPECT_THAT(edits.replacements[0].replace, ElementsAre("  a = 2;", "  b = 3;"));
  EXPECT_EQ(edits.replacements[0].line, 6);
  EXPECT_EQ(edits.replacements[1].path, "cpu/simd.hpp");
  EXPECT_THAT(edits.replacements[1].replace, IsEmpty());
}

TEST(Edits, APathBehindTheMarkAndLineEndsOfWindows) {
  const Edits edits = parse_edits("<<<<<<< SEARCH kernels/tile/quad.cuh\r\nx\r\n=======\r\ny\r\n>>>>>>> REPLACE\r\n");
  EXPECT_EQ(edits.replacements.at(0).path, "kernels/tile/quad.cuh");
  EXPECT_THAT(edits.replacements.at(0).search, ElementsAre("x"));
}

// Drafts are shown, then all edits are given; some editors put a mark of their own in front of what they save.
TEST(Edits, AnEditGivenTwiceIsOne) {
  const std::string block = "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n";
  const Edits edits =
      parse_edits("cpu/rows.hpp\n" + block + "All of them:\ncpu/rows.hpp\n" + block + "cpu/simd.hpp\n" + block);
  ASSERT_EQ(edits.replacements.size(), 2U);
  EXPECT_EQ(edits.replacements[0].path, "cpu/rows.hpp");
  EXPECT_EQ(edits.replacements[1].path, "cpu/simd.hpp");
  EXPECT_EQ(parse_edits("@@ -1,1 +1,1 @@\n-x\n+y\n@@ -9,1 +9,1 @@\n-x\n+y\n").replacements.size(), 2U)
      << "hunks of two places";
  EXPECT_EQ(parse_edits("\xef\xbb\xbf" + block).replacements.size(), 1U) << "behind a byte order mark";
}

TEST(Edits, UnifiedDiffsBareAndInAFence) {
  const std::string diff =
      "diff --git a/cpu/rows.hpp b/cpu/rows.hpp\nindex 12..34 100644\n--- a/cpu/rows.hpp\n+++ b/cpu/rows.hpp\n"
      "@@ -10,3 +10,4 @@ inline float f\n one\n-two\n+2\n+zwei\n three\n@@ -40 +41 @@\n-x\n+y\n";
  for (const std::string& reply : {diff, "Take two for 2.\n```diff\n" + diff + "```\nThat is all.\n"}) {
    const Edits edits = parse_edits(reply);
    ASSERT_EQ(edits.replacements.size(), 2U);
    EXPECT_EQ(edits.replacements[0].path, "cpu/rows.hpp");
    EXPECT_EQ(edits.replacements[0].hint, 10);
    EXPECT_THAT(edits.replacements[0].search, ElementsAre("one", "two", "three"));
    EXPECT_THAT(edits.replacements[0].replace, ElementsAre("one", "2", "zwei", "three"));
    EXPECT_THAT(edits.replacements[1].search, ElementsAre("x"));
  }
}

// Models count lines wrong.
TEST(Edits, CountsOfAHunkMayBeWrong) {
  const Edits edits = parse_edits("--- a/cpu/rows.hpp\n+++ b/cpu/rows.hpp\n@@ -1,9 +1,9 @@\n one\n-two\n+2\n\nDone.\n");
  ASSERT_EQ(edits.replacements.size(), 1U);
  EXPECT_THAT(edits.replacements[0].search, ElementsAre("one", "two"));
  EXPECT_THAT(edits.replacements[0].replace, ElementsAre("one", "2"));
}

// "--x;" taken out is a line "---x;", and no header.
TEST(Edits, LinesOfAHunkThatLookLikeHeaders) {
  const Edits edits = parse_edits("--- a/cpu/rows.hpp\n+++ b/cpu/rows.hpp\n@@ -1,2 +1,2 @@\n--- i;\n+++ i;\n a\n");
  ASSERT_EQ(edits.replacements.size(), 1U);
  EXPECT_THAT(edits.replacements[0].search, ElementsAre("-- i;", "a"));
  EXPECT_THAT(edits.replacements[0].replace, ElementsAre("++ i;", "a"));
}

TEST(Edits, WholeFilesByTagAndByFence) {
  for (const char* reply : {"<file path=\"cpu/exp2.hpp\">\n```cpp\nint a;\n```\n</file>\n",
                            "<file path='cpu/exp2.hpp'>\nint a;\n</file>\n", "cpu/exp2.hpp:\n```cpp\nint a;\n```\n",
                            "```cpp\n// cpu/exp2.hpp\nint a;\n```\n", "```cpp:cpu/exp2.hpp\nint a;\n```\n"}) {
    const Edits edits = parse_edits(reply);
    ASSERT_EQ(edits.files.size(), 1U) << reply;
    EXPECT_EQ(edits.files[0].path, "cpu/exp2.hpp");
    EXPECT_THAT(edits.files[0].text, HasSubstr("int a;\n"));
  }
}

TEST(Edits, SignsOfOtherAlphabetsInSourcesBecomeAscii) {
  const Edits edits = parse_edits(
      "<insight>\xe2\x89\xa5</insight>\ncpu/rows.hpp\n<<<<<<< SEARCH\na\n=======\n// \xe2\x89\xa5 2\x01\n>>>>>>> "
      "REPLACE\n");
  EXPECT_THAT(edits.replacements.at(0).replace, ElementsAre("// ? 2?"));
  EXPECT_EQ(edits.insight, "\xe2\x89\xa5");
}

TEST(Edits, TheFirstLineOfProseIsTheInsight) {
  const Edits edits =
      parse_edits("Skips the rescaling.\nMore words.\n\nFile: entry\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n");
  EXPECT_EQ(edits.insight, "Skips the rescaling.");
  EXPECT_EQ(edits.replacements.at(0).path, "entry");
}

TEST(Edits, RepliesThatAreNoEditsSayWhy) {
  EXPECT_THAT(refusal_of_edit(""), HasSubstr("holds no edit"));
  EXPECT_THAT(refusal_of_edit("I cannot help with that."), HasSubstr("holds no edit"));
  EXPECT_THAT(refusal_of_edit("```cpp\nint explained;\n```\n"), HasSubstr("holds no edit"));
  EXPECT_THAT(refusal_of_edit(std::string(10 << 20, 'x')), HasSubstr("the reply has 10.0 MiB; at most 1.0 MiB"));
  EXPECT_THAT(refusal_of_edit(std::string_view("a\0b", 3)), HasSubstr("bytes of zero"));
  EXPECT_THAT(refusal_of_edit("cpu/simd.hpp\n<<<<<<< SEARCH\na\n=======\nb\n"),
              HasSubstr("the block of line 2 of the reply has no >>>>>>> REPLACE"));
  EXPECT_THAT(refusal_of_edit("<<<<<<< SEARCH\na\n>>>>>>> REPLACE\n"), HasSubstr("has no ======="));
  EXPECT_THAT(refusal_of_edit("<<<<<<< SEARCH\n=======\nb\n>>>>>>> REPLACE\n"), HasSubstr("searches nothing"));
  EXPECT_THAT(refusal_of_edit("<file path=\"cpu/simd.hpp\">\nint a;\n"), HasSubstr("has no </file>"));
  EXPECT_THAT(refusal_of_edit("<file>\nint a;\n</file>\n"), HasSubstr("has no path"));
  EXPECT_THAT(refusal_of_edit("<file path=\"cpu/simd.hpp\">\n</file>\n"), HasSubstr("is empty"));
  EXPECT_THAT(refusal_of_edit("cpu/simd.hpp\n```cpp\nint a;\n"), HasSubstr("has no end"));
  EXPECT_THAT(refusal_of_edit("--- a/cpu/simd.hpp\n+++ b/cpu/simd.hpp\n@@ -1,2 +1,2 @@\n"),
              HasSubstr("is empty; the reply seems cut off"));
  EXPECT_THAT(refusal_of_edit("--- a/cpu/simd.hpp\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"),
              HasSubstr("takes cpu/simd.hpp away"));
}

TEST(Edits, DraftsInThoughtsAreNone) {
  const std::string draft = "cpu/a.hpp\n<<<<<<< SEARCH\ndraft\n=======\nworse\n>>>>>>> REPLACE\n";
  const std::string answer = "<insight>why</insight>\ncpu/b.hpp\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n";
  for (const std::string& thoughts :
       {"<think>\nFirst:\n" + draft + "no.\n</think>\n", "First:\n" + draft + "no.\n</think>\n\n",
        "<think>" + draft + "</think>\n<think>\n" + draft + "</think>", "<thinking>\n" + draft + "</thinking>\n",
        std::string("<think>\n<<<<<<< SEARCH\nnever ended\n</think>\n")}) {
    const Edits edits = parse_edits(thoughts + answer);
    ASSERT_EQ(edits.replacements.size(), 1U) << thoughts;
    EXPECT_EQ(edits.replacements[0].path, "cpu/b.hpp");
    EXPECT_EQ(edits.insight, "why");
    EXPECT_EQ(edits.replacements[0].line, std::count(thoughts.begin(), thoughts.end(), '\n') + 3) << thoughts;
  }
  try {
    (void)parse_edits("<think>\n" + draft);
    ADD_FAILURE() << "taken";
  } catch (const EditError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("line 1 of the reply has no </think>"));
  }
}

}  // namespace
}  // namespace heed::source
