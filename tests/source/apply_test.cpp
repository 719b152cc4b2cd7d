// Edits on the sources of fwd_cpu: found leniently, refused with the nearest line, and back from the stored diff.
#include "source/apply.hpp"

#include <set>

#include "base/random.hpp"
#include "compile/embedded.hpp"
#include "source/diff.hpp"
#include "source/editable.hpp"
#include "source/tokens.hpp"
#include "testing.hpp"

namespace heed::source {
namespace {

using ::testing::HasSubstr;

const Family& family() {
  return find_family("fwd_cpu");
}

std::string block(const std::string& path, const std::string& search, const std::string& replace) {
  return path + "\n<<<<<<< SEARCH\n" + search + "=======\n" + replace + ">>>>>>> REPLACE\n";
}

Overlay applied(const std::string& reply) {
  return apply(parse_edits(reply), family());
}

std::string refusal_of_reply(const std::string& reply) {
  try {
    (void)applied(reply);
  } catch (const EditError& error) {
    return error.what();
  }
  return {};
}

constexpr const char* kLine = "  return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");\n";

TEST(Apply, ABlockReplacesItsLinesAlone) {
  const Overlay overlay = applied(block("cpu/rows.hpp", kLine, "  return 1.0F / sum;\n"));
  ASSERT_EQ(overlay.files.size(), 1U);
  const std::string& text = overlay.files.at("cpu/rows.hpp");
  EXPECT_THAT(text, HasSubstr("  return 1.0F / sum;\n"));
  const std::string_view carried = compile::device_file("cpu/rows.hpp");
  EXPECT_EQ(text.size(),
            carried.size() - std::string_view(kLine).size() + std::string_view("  return 1.0F / sum;\n").size());
}

TEST(Apply, IndentationAndSpaceAtEndsOfLinesMayDiffer) {
  const Overlay overlay = applied(block("rows.hpp", "return sum > 0 ? 1.0F / sum : __builtin_nanf(\"\");   \n",
                                        "if (sum > 0)\n  return 1.0F / sum;\nreturn 0;\n"));
  EXPECT_THAT(overlay.files.at("cpu/rows.hpp"), HasSubstr("\n  if (sum > 0)\n    return 1.0F / sum;\n  return 0;\n"));
}

TEST(Apply, WithoutAPathTheFileThatHasTheLines) {
  EXPECT_EQ(applied(block("", kLine, "  return 0;\n")).files.begin()->first, "cpu/rows.hpp");
  EXPECT_THAT(refusal_of_reply(block("", "no such line\n", "x\n")),
              HasSubstr("names no file, and no source of fwd_cpu has its lines"));
  EXPECT_THAT(refusal_of_reply(block("", "#pragma once\n", "x\n")), HasSubstr("all have its lines; put the path"));
}

TEST(Apply, TheEntryIsAFileToo) {
  const Overlay overlay = applied(
      block("entry", "  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();\n",
            "  (void)block;\n"));
  EXPECT_EQ(overlay.files.begin()->first, Overlay::kEntry);
}

// The one more try of a proposer rests on these.
TEST(Apply, LinesThatStandNowhereAreToldTheNearest) {
  EXPECT_THAT(
      refusal_of_reply(block("cpu/rows.hpp", "  return sum > 0.5 ? 1.0F / sum : __builtin_nanf(\"\");\n", "x\n")),
      HasSubstr(
          "no lines of cpu/rows.hpp are those that are searched: line 1 of them is \"return sum > 0.5 ? 1.0F / sum : "
          "__builtin_nanf(\"\");\"; the nearest, line 65 of the file, is \"return sum > 0 ? 1.0F / sum : "
          "__builtin_nanf(\"\");\""));
  EXPECT_THAT(refusal_of_reply(block("cpu/rows.hpp", "  if (!sees) return 0;\n  return sum;\n", "x\n")),
              HasSubstr("line 2 of them is \"return sum;\"; the nearest, line 65 of the file"));
}

TEST(Apply, LinesThatStandTwiceAskForMore) {
  EXPECT_THAT(refusal_of_reply(block("cpu/exp2.hpp", "}\n", "x\n")),
              HasSubstr("stand in several places of cpu/exp2.hpp (lines "));
}

TEST(Apply, FilesThatMayNotBeEdited) {
  EXPECT_THAT(refusal_of_reply(block("kernels/contract.hpp", "#pragma once\n", "x\n")),
              HasSubstr("is the contract of all kernels, so a variant may not change it"));
  EXPECT_THAT(refusal_of_reply(block("kernels/attention/mask.hpp", "#pragma once\n", "x\n")),
              HasSubstr("is the contract of all kernels"));
  EXPECT_THAT(refusal_of_reply(block("cpu/config.hpp", "#pragma once\n", "x\n")), HasSubstr("is host code too"));
  EXPECT_THAT(refusal_of_reply(block("cpu/freestanding.hpp", "#pragma once\n", "x\n")),
              HasSubstr("is what every program of a CPU is built with"));
  EXPECT_THAT(refusal_of_reply(block("kernels/tile/quad.cuh", "#pragma once\n", "x\n")),
              HasSubstr("is no source of fwd_cpu"));
  EXPECT_THAT(refusal_of_reply(block("cpu/sims.hpp", "#pragma once\n", "x\n")),
              HasSubstr("fwd_cpu has no source cpu/sims.hpp"));
  EXPECT_THAT(refusal_of_reply(block("../../etc/passwd.hpp", "root\n", "x\n")), HasSubstr("has no source"));
}

TEST(Apply, EditsThatChangeNothing) {
  EXPECT_THAT(refusal_of_reply(block("cpu/rows.hpp", kLine, kLine)), HasSubstr("leave every source as it is"));
  EXPECT_THAT(refusal_of_reply(
                  block("cpu/rows.hpp", kLine, "  // a sum\n  return sum > 0 ?1.0F/sum\n : __builtin_nanf(\"\");\n")),
              HasSubstr("change white space and comments alone"));
}

TEST(Apply, ATooLongFile) {
  EXPECT_THAT(refusal_of_reply("<file path=\"cpu/rows.hpp\">\n" + std::string(300 << 10, 'x') + "\n</file>\n"),
              HasSubstr("would have 300.0 KiB; a device source may have 256.0 KiB"));
}

// A source that host code includes, directly or not, plans launches or is the contract.
TEST(Editable, NothingThatHostCodeIncludes) {
  namespace fs = std::filesystem;
  std::vector<std::string> open;
  const auto add_includes = [&](const std::string& text) {
    for (const std::string& line : split(text, '\n'))
      for (const char* folder : {"#include \"kernels/", "#include \"cpu/"})
        if (line.starts_with(folder)) open.push_back(line.substr(10, line.find('"', 10) - 10));
  };
  for (const char* folder : {"lib", "lab", "cli", "include"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(testing_support::kSourceFolder) / folder))
      if (entry.path().extension() == ".hpp" || entry.path().extension() == ".cpp")
        add_includes(read_file(entry.path(), ErrorCode::internal));
  std::set<std::string> host;
  while (!open.empty()) {
    const std::string path = open.back();
    open.pop_back();
    if (host.insert(path).second) add_includes(std::string(compile::device_file(path)));
  }
  EXPECT_GT(host.size(), 15U);
  for (const std::string& path : host) EXPECT_NE(refusal_of_path(path), "") << path;
  EXPECT_EQ(editable(family()).count("cpu/vector_forward.hpp"), 1U);
  EXPECT_EQ(editable(find_family("fwd_sm80")).count("kernels/attention/softmax.cuh"), 1U);
}

TEST(Diff, IsReadBackToTheSameOverlay) {
  const Overlay overlay = applied(block("cpu/rows.hpp", kLine, "  return 1.0F / sum;\n") +
                                  block("cpu/exp2.hpp", "#pragma once\n", "#pragma once\n\n// -- twice\n") +
                                  block("entry", "}\n", "  // the end\n  (void)block;\n}\n"));
  const std::string diff = diff_of(overlay, family());
  EXPECT_THAT(diff,
              HasSubstr("diff --git a/cpu/exp2.hpp b/cpu/exp2.hpp\n--- a/cpu/exp2.hpp\n+++ b/cpu/exp2.hpp\n@@ -"));
  EXPECT_EQ(overlay_of_diff(diff, family()), overlay);
  EXPECT_EQ(diff_of(overlay_of_diff(diff, family()), family()), diff);
  Variant plain;
  plain.family = &family();
  EXPECT_EQ(*with_diff(plain, diff).overlay, overlay);
  EXPECT_EQ(with_diff(plain, "").overlay, nullptr);
}

TEST(Diff, EditsOfAllKindsAtRandom) {
  Random random(7);
  const auto originals = editable(family());
  for (int round = 0; round < 200; ++round) {
    Overlay overlay;
    for (const auto& [path, text] : originals) {
      std::vector<std::string> lines = lines_of(text);
      for (int edit = 0; edit < 4; ++edit) {
        const auto at = static_cast<std::ptrdiff_t>(random.below(lines.size()));
        if (random.chance(0.5))
          lines.insert(lines.begin() + at, random.chance(0.5) ? "" : "--- " + std::to_string(round));
        if (random.chance(0.5) && lines.size() > 1) lines.erase(lines.begin() + at);
      }
      overlay.files[path] = join(lines, "\n") + "\n";
    }
    std::erase_if(overlay.files,
                  [&](const auto& file) { return lines_of(file.second) == lines_of(originals.at(file.first)); });
    const std::string diff = diff_of(overlay, family());
    // A draw that changes blank lines alone is none.
    if (tokens_digest(overlay) != tokens_digest(Overlay{originals})) {
      EXPECT_EQ(overlay_of_diff(diff, family()), overlay) << diff;
    }
  }
}

TEST(TokensDigest, SeesTokensAndNoSpace) {
  const auto of = [](const char* text) { return tokens_digest({{{"cpu/rows.hpp", text}}}); };
  EXPECT_EQ(of("int a;  // one\nint b;"), of("int /* two */ a; int\n\nb;"));
  EXPECT_NE(of("int a;"), of("int b;"));
  EXPECT_NE(of("char* a = \"x y\";"), of("char* a = \"xy\";"));
  EXPECT_NE(of("#define F (x)\n"), of("#define F(x)\n"));
  EXPECT_NE(of("#define F\nx"), of("#define F x\n"));
  EXPECT_NE(tokens_digest({{{"cpu/rows.hpp", "int a;"}}}), tokens_digest({{{"cpu/simd.hpp", "int a;"}}}));
}

}  // namespace
}  // namespace heed::source
