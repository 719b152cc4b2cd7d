// Sources that are refused before they are built, and honest ones that are not.
#include "source/refusals.hpp"

#include "compile/embedded.hpp"
#include "source/editable.hpp"
#include "testing.hpp"

namespace heed::source {
namespace {

using ::testing::HasSubstr;

std::string refusal_of_source(const std::string& text, const char* path = "cpu/rows.hpp") {
  return refusal_of({{{path, text}}}).value_or("");
}

TEST(Refusals, NoCarriedSourceIsRefused) {
  int files = 0;
  for (const Family* family : families())
    for (const auto& [path, text] : editable(*family)) {
      EXPECT_EQ(refusal_of_source(text, path.c_str()), "");
      ++files;
    }
  EXPECT_GT(files, 100);
}

TEST(Refusals, HonestEditsAreNot) {
  EXPECT_EQ(refusal_of_source("#pragma once\n#include \"cpu/simd.hpp\"\n#pragma GCC unroll 8\n_Pragma(\"unroll 4\")\n"
                              "static constexpr int kA = 1;\nstatic float f(float x) { return x; }\n"
                              "[[gnu::always_inline]] inline void g(int a[[maybe_unused]]) {}\n"
                              "__attribute__((noinline)) void h();\n#define TWICE(x) ((x) + (x))\n"
                              "// rdtsc, __DATE__ and #include <time.h> in a comment\nconst char* s = \"syscall\";\n"),
            "");
  EXPECT_EQ(refusal_of_source("asm volatile(\"vfmadd231ps %1, %2, %0\" : \"+v\"(a) : \"v\"(b), \"v\"(c));"), "");
  EXPECT_EQ(refusal_of_source("asm volatile(\"{\\n\\t.reg .pred p;\\n\\tsetp.ne.b32 p, %0, 0;\\n\\t@p bra "
                              "DONE;\\n\\tDONE:\\n\\t}\" ::\"r\"(a));",
                              "kernels/ptx/math.cuh"),
            "");
  EXPECT_EQ(refusal_of_source("extern __shared__ char shared[];", "kernels/ptx/math.cuh"), "");
  EXPECT_EQ(refusal_of_source("extern \"C\" void heed_forward();", "entry"), "");
}

TEST(Refusals, Includes) {
  EXPECT_THAT(refusal_of_source("int a;\n#include <time.h>\n"),
              HasSubstr("line 2 of cpu/rows.hpp includes something by other means"));
  EXPECT_THAT(refusal_of_source("#include \"/etc/passwd\"\n"),
              HasSubstr("includes \"/etc/passwd\", which is no device source"));
  EXPECT_THAT(refusal_of_source("#include \"../cpu/simd.hpp\"\n"), HasSubstr("which is no device source"));
  EXPECT_THAT(refusal_of_source("#define F \"cpu/simd.hpp\"\n#include F\n"), HasSubstr("by other means"));
  EXPECT_THAT(refusal_of_source("# include \"cpu/simd.hpp\"\n"), HasSubstr("does not begin its line"));
  EXPECT_THAT(refusal_of_source("/**/ #include \"cpu/simd.hpp\"\n"), HasSubstr("does not begin its line"));
  EXPECT_THAT(refusal_of_source("#inc\\\nlude <time.h>\n"), HasSubstr("by other means"));
  EXPECT_THAT(refusal_of_source("%:include <time.h>\n"), HasSubstr("digraph"));
  EXPECT_THAT(refusal_of_source("\?\?=include <time.h>\n"), HasSubstr("trigraph"));
  EXPECT_THAT(refusal_of_source("#include_next \"cpu/simd.hpp\"\n"), HasSubstr("directive #include_next"));
  EXPECT_THAT(refusal_of_source("#embed \"/etc/passwd\"\n"), HasSubstr("directive #embed"));
  EXPECT_THAT(refusal_of_source("#if __has_include(\"/etc/passwd\")\n#endif\n"),
              HasSubstr("asks which files there are"));
  EXPECT_THAT(refusal_of_source("import <time.h>;\n"), HasSubstr("no modules"));
}

TEST(Refusals, PragmasAndMacros) {
  EXPECT_THAT(refusal_of_source("#pragma GCC optimize(\"fast-math\")\n"), HasSubstr("has #pragma GCC optimize"));
  EXPECT_THAT(refusal_of_source("_Pragma(\"GCC target(\\\"avx\\\")\")\n"), HasSubstr("has #pragma GCC target"));
  EXPECT_THAT(refusal_of_source("#pragma STDC FENV_ACCESS ON\n"), HasSubstr("once and unroll"));
  EXPECT_THAT(refusal_of_source("#define float _Float16\n"), HasSubstr("gives the word float another meaning"));
  EXPECT_THAT(refusal_of_source("#undef __AVX512F__\n"), HasSubstr("another meaning"));
  EXPECT_THAT(refusal_of_source("#define RUN as ## m\n"), HasSubstr("##"));
  EXPECT_THAT(refusal_of_source("#line 1 \"other\"\n"), HasSubstr("directive #line"));
  EXPECT_THAT(refusal_of_source("int day = sizeof(__DATE__);\n"), HasSubstr("another program at another time"));
}

TEST(Refusals, AssemblyThatNoKernelNeeds) {
  EXPECT_THAT(refusal_of_source("asm volatile(\"rdtsc\" : \"=A\"(t));"), HasSubstr("looks at the time (rdtsc)"));
  EXPECT_THAT(refusal_of_source("__asm__(\"rd\" \"tsc\" : \"=A\"(t));"), HasSubstr("looks at the time (rdtsc)"));
  EXPECT_THAT(refusal_of_source("asm volatile(\"syscall\" : \"+a\"(n));"), HasSubstr("calls the system"));
  EXPECT_THAT(refusal_of_source("asm(\".incbin \\\"/etc/passwd\\\"\");"), HasSubstr("has a directive (.incbin)"));
  EXPECT_THAT(refusal_of_source("asm(\".section .init\\n\\tret\");"), HasSubstr("has a directive (.section)"));
  EXPECT_THAT(refusal_of_source("void f() asm(\"_init\");"), HasSubstr("names a symbol or a register (_init)"));
  EXPECT_THAT(refusal_of_source("asm volatile(\"mov.u64 %0, %%clock64;\" : \"=l\"(t));", "kernels/ptx/math.cuh"),
              HasSubstr("looks at the time"));
  EXPECT_THAT(refusal_of_source("asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(t));", "kernels/ptx/math.cuh"),
              HasSubstr("looks at the time"));
  EXPECT_THAT(refusal_of_source("asm volatile(\"ld.global.L2::evict_last.f32 %0, [%1];\" : \"=f\"(x) : \"l\"(p));",
                                "kernels/ptx/global.cuh"),
              HasSubstr("what the L2 keeps"));
  EXPECT_THAT(refusal_of_source("asm volatile(\".pragma \\\"//\\\";\");", "kernels/ptx/global.cuh"),
              HasSubstr("hides from the reader"));
}

TEST(Refusals, RegistersOfTheSystemOnArm) {
  EXPECT_THAT(refusal_of_source("asm volatile(\"mrs %0, cntvct_el0\" : \"=r\"(t));"),
              HasSubstr("reads registers of the system (mrs)"));
  EXPECT_THAT(refusal_of_source("auto t = __builtin_arm_rsr64(\"cntvct_el0\");"),
              HasSubstr("reads registers of the system"));
  EXPECT_THAT(refusal_of_source("auto t = __builtin_aarch64_rsr64(\"cntvct_el0\");"),
              HasSubstr("reads registers of the system"));
  EXPECT_THAT(refusal_of_source("__builtin_aarch64_set_fpcr(0);"), HasSubstr("changes registers of the system"));
  EXPECT_THAT(refusal_of_source("__builtin_aarch64_rndr(&bits);"), HasSubstr("draws random numbers"));
  EXPECT_EQ(refusal_of_source("auto x = __builtin_aarch64_addpv2sf(y);"), "");
}

TEST(Refusals, MemoryBetweenLaunchesAndCodeElsewhere) {
  EXPECT_THAT(refusal_of_source("void f() { static int launches; ++launches; }"), HasSubstr("static variable"));
  EXPECT_THAT(refusal_of_source("static float kept[4] = {};"), HasSubstr("static variable"));
  EXPECT_THAT(refusal_of_source("thread_local int a;"), HasSubstr("keeps memory between launches"));
  EXPECT_THAT(refusal_of_source("__constant__ int a;", "kernels/ptx/global.cuh"),
              HasSubstr("keeps memory between launches"));
  EXPECT_THAT(refusal_of_source("extern \"C\" void _init() {}"), HasSubstr("has extern"));
  EXPECT_THAT(refusal_of_source("__attribute__((constructor)) void f();"), HasSubstr("has the attribute constructor"));
  EXPECT_THAT(refusal_of_source("[[gnu::section(\".init\")]] void f();"), HasSubstr("has the attribute section"));
  EXPECT_THAT(refusal_of_source("[[gnu::always_inline, gnu::target(\"avx\")]] void f();"),
              HasSubstr("has the attribute target"));
  EXPECT_THAT(refusal_of_source("long t = clock64();", "kernels/ptx/math.cuh"), HasSubstr("looks at the time"));
  EXPECT_THAT(refusal_of_source("void* p = __builtin_frame_address(0);"), HasSubstr("reaches for memory"));
}

TEST(Refusals, TextsThatCompilersMayReadOtherwise) {
  EXPECT_THAT(refusal_of_source("int a; /* no end"), HasSubstr("comment without an end"));
  EXPECT_THAT(refusal_of_source("char* a = \"no end\n;"), HasSubstr("without an end"));
  EXPECT_THAT(refusal_of_source("auto a = R\"(x)\";"), HasSubstr("raw string"));
  EXPECT_THAT(refusal_of_source("int \xc3\xa4;"), HasSubstr("outside printable ASCII"));
  EXPECT_THAT(refusal_of_source("int a;\x01"), HasSubstr("outside printable ASCII"));
}

}  // namespace
}  // namespace heed::source
