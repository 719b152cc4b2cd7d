// What a CPU candidate's shared object may hold: code and constants, and nothing for a loader to do.
#include "jit/shared_object.hpp"

#include <elf.h>

#include "base/random.hpp"
#include "jit/build.hpp"
#include "testing.hpp"

namespace heed::jit {
namespace {

using testing_support::expect_error;
using testing_support::shared_cache;

BuildOutcome build(const std::string& source, const std::string& compiler = {}) {
  BuilderOptions options;
  options.cache_folder = shared_cache();
  options.host_compiler = compiler;
  options.jobs = 1;
  Builder builder(options);
  return builder.build({.device = DeviceKind::cpu, .arch = "test", .source = source, .entry = "heed_forward"});
}

std::string violation_of(const std::string& before, const std::string& body = "return x;") {
  const BuildOutcome outcome = build(before + "\nextern \"C\" int heed_forward(int x) { " + body + " }\n");
  return outcome.artifact ? outcome.artifact->violation : "did not build: " + outcome.log;
}

TEST(SharedObject, CodeAndConstantsKeepToTheContract) {
  EXPECT_EQ(violation_of(""), "");
  EXPECT_EQ(violation_of("constexpr float table[3] = {1, 2, 3};", "return static_cast<int>(table[x]);"), "");
  EXPECT_EQ(violation_of("extern \"C\" const int table[3] = {1, 2, 3};", "return table[x];"), "");
  EXPECT_EQ(
      violation_of("template <int k> inline constexpr int square = k * k; template <int k> int f(int x) { return x + "
                   "square<k>; }",
                   "return f<3>(x) + f<4>(x);"),
      "");
  EXPECT_EQ(violation_of("int unused;"), "") << "what no code names is not linked";
}

// Compilers call these by themselves; the definitions are the candidate's own.
TEST(SharedObject, CopiesOfStructuresNeedNoLibrary) {
  for (const char* compiler : {"g++", "clang++"}) {
    SCOPED_TRACE(compiler);
    try {
      const BuildOutcome outcome = build(
          "struct Big { char bytes[50000]; };\n"
          "[[gnu::noinline]] static int sum(const Big& big) { int s = 0; for (char c : big.bytes) s += c; return s; }\n"
          "extern \"C\" int heed_forward(const Big* a, Big* b, unsigned long n) {\n"
          "  *b = *a; Big zero = {}; __builtin_memmove(b->bytes, a->bytes + 1, n);\n"
          "  return sum(zero) + __builtin_memcmp(a, b, n); }\n",
          compiler);
      ASSERT_TRUE(outcome.artifact) << outcome.log;
      EXPECT_EQ(outcome.artifact->violation, "");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::no_compiler);
    }
  }
}

TEST(SharedObject, StateIsSeenWhateverItsSectionIsCalled) {
  const auto state = ::testing::HasSubstr("keeps state between launches");
  EXPECT_THAT(violation_of("static int n;", "return n += x;"), state);
  EXPECT_THAT(violation_of("[[gnu::section(\"notes\")]] static int n = 1;", "return n += x;"), state);
  const auto placed_in = [](const std::string& section) {
    return violation_of("asm(\".pushsection " + section +
                            "\\n.globl n\\n.hidden n\\nn: .long 1\\n.popsection\\n\");\n" +
                            "extern \"C\" [[gnu::visibility(\"hidden\")]] int n;",
                        "return n += x;");
  };
  for (const char* section :
       {".rodata.x,\\\"aw\\\"", ".data.rel.ro,\\\"aw\\\"", ".dynamic.x,\\\"aw\\\"", "notes,\\\"awx\\\""})
    EXPECT_THAT(placed_in(section), state) << section;
  EXPECT_NE(violation_of("static thread_local int n;", "return n += x;"), "");
}

TEST(SharedObject, WhatRunsWhenLoadedIsSeenWhateverItIsCalled) {
  const auto runs = ::testing::HasSubstr("runs while it is loaded");
  EXPECT_THAT(violation_of("[[gnu::constructor]] static void f() { asm(\"\"); }"), runs);
  EXPECT_THAT(violation_of("[[gnu::destructor]] static void f() { asm(\"\"); }"), runs);
  EXPECT_THAT(violation_of("extern \"C\" void _init() { asm(\"\"); }"), runs);
  EXPECT_THAT(violation_of("extern \"C\" void _fini() { asm(\"\"); }"), runs);
  EXPECT_THAT(
      violation_of("static void f() { asm(\"\"); }\n[[gnu::section(\".init_array\"), gnu::used]] static void (*const "
                   "p)() = f;"),
      ::testing::Not(::testing::HasSubstr("did not build")));
  EXPECT_NE(
      violation_of("static void f() { asm(\"\"); }\n[[gnu::section(\".init_array\"), gnu::used]] static void (*const "
                   "p)() = f;"),
      "");
  EXPECT_NE(
      violation_of("static int g(int x) { return x; }\nextern \"C\" { static int (*resolve())(int) { return g; } }\n"
                   "int f(int) __attribute__((ifunc(\"_ZL7resolvev\")));",
                   "return f(x);"),
      "");
}

TEST(SharedObject, WhatALoaderWouldHaveToDoIsRefused) {
  EXPECT_THAT(violation_of("static const char* const names[] = {\"a\", \"b\"};", "return names[x][0];"),
              ::testing::HasSubstr("relocations"));
  EXPECT_THAT(violation_of("extern \"C\" int puts(const char*);", "return puts(\"\");"),
              ::testing::HasSubstr("calls puts"));
}

#if defined(__x86_64__)
// A jump into the middle of an instruction finds others there, which no reader of sources has seen.
TEST(SharedObject, AFlushWithinAConstantIsRefused) {
  const auto with = [](const std::string& constant) {
    return violation_of("", "unsigned long long y; asm(\"movabs $" + constant + ", %0\" : \"=r\"(y)); return x + y;");
  };
  EXPECT_THAT(with("0x90909090c33fae0f"), ::testing::HasSubstr("clflush"));
  EXPECT_EQ(with("0x90909090c33fae0e"), "");
  EXPECT_EQ(violation_of("", "__builtin_ia32_sfence(); return x;"), "");
}
#endif

TEST(SharedObject, EqualProgramsHaveEqualDigestsAndEverythingMappedCounts) {
  const auto code = [](const std::string& before, const std::string& body) {
    const BuildOutcome outcome = build(before + "\nextern \"C\" int heed_forward(int x) { " + body + " }\n");
    EXPECT_TRUE(outcome.artifact) << outcome.log;
    return outcome.artifact ? outcome.artifact->machine_code : std::string();
  };
  const std::string plain = code("", "return 2 * x;");
  EXPECT_EQ(plain, code("template <int k> int f(int x) { return k * x; }", "return f<2>(x);"));
  EXPECT_EQ(plain, code("// a comment\nstatic int unused(int x) { return x + 7; }", "return x + x;"));
  EXPECT_NE(plain, code("", "return 3 * x;"));
  const char* hidden = "[[gnu::section(\"notes\"), gnu::used]] static const int n = ";
  EXPECT_NE(code(hidden + std::string("1;"), "return x + n;"), code(hidden + std::string("2;"), "return x + n;"));
}

TEST(SharedObject, DamagedFilesAreNotReadPastTheirEnds) {
  expect_error(ErrorCode::cache, "malformed ELF", [] { parse_shared_object("hello"); });
  const BuildOutcome outcome = build("extern \"C\" int heed_forward(int x) { return x; }\n");
  ASSERT_TRUE(outcome.artifact);
  const std::string good = read_file(outcome.artifact->path, ErrorCode::cache);
  EXPECT_EQ(contract_violation_in_shared_object(parse_shared_object(good), "heed_forward"), "");
  EXPECT_EQ(contract_violation_in_shared_object(parse_shared_object(good), "other"), "it has no function other");
  Random random(9);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = good.substr(0, good.size() - random.below(2) * random.below(good.size()));
    for (int n = 0; n < 8; ++n) damaged[random.below(damaged.size())] = static_cast<char>(random.next());
    const std::size_t header = 64 + random.below(400);
    if (header < damaged.size()) damaged[header] = static_cast<char>(random.next());
    try {
      refused += contract_violation_in_shared_object(parse_shared_object(damaged), "heed_forward").empty() ? 0 : 1;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace heed::jit
