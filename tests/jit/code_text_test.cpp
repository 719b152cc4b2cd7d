// Digests of sources are of what compilers see.
#include "compile/code_text.hpp"

#include "compile/embedded.hpp"
#include "testing.hpp"

namespace heed::compile {
namespace {

TEST(CodeText, CommentsAndWhiteSpaceDoNotCount) {
  const std::string code =
      code_text("#pragma once\n\n/// A sum.\nint sum(int a,  // one\n        int b) {\n  return a + b;\n}\n");
  EXPECT_EQ(code, "#pragma once\nint sum(int a, int b) { return a + b; }");
  EXPECT_EQ(code_text("#pragma once\nint sum(int a, int b) {\n\n  return a /* and */ + b; }"), code);
  EXPECT_NE(code_text("#pragma once\nint sum(int a, int b) { return a - b; }"), code);
}

TEST(CodeText, DirectivesKeepTheirLines) {
  EXPECT_EQ(code_text("int a;\n  #define TWICE(x) \\\n    ((x) + (x))  // both\nint b;\n#if 1 // yes\n#endif"),
            "int a;\n#define TWICE(x) ((x) + (x))\nint b;\n#if 1\n#endif");
  EXPECT_NE(code_text("#define A\nint b;"), code_text("#define A int b;"));
}

TEST(CodeText, LiteralsStayAsTheyAre) {
  EXPECT_EQ(code_text("const char* a = \"x  // y \\\" /* z\";"), "const char* a = \"x  // y \\\" /* z\";");
  EXPECT_NE(code_text("asm(\"add  r1\");"), code_text("asm(\"add r1\");"));
  EXPECT_EQ(code_text("int n = 1'000;  // a number\nchar c = '\"';  // a quote"), "int n = 1'000; char c = '\"';");
}

TEST(CodeText, EveryDeviceSourceIsReadToItsEnd) {
  for (const EmbeddedFile& file : library_files()) {
    const std::string code = code_text(file.content);
    EXPECT_EQ(code.find("//"), std::string::npos) << file.path;
    EXPECT_GT(code.size(), file.content.size() / 10) << file.path;
    EXPECT_TRUE(code.ends_with("}") || code.ends_with(";") || code.ends_with("#endif"))
        << file.path << ": " << code.substr(code.size() - 40);
    EXPECT_EQ(code_text(code), code) << file.path;
  }
}

}  // namespace
}  // namespace heed::compile
