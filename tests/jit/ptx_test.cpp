// What the reading of PTX lets through and what it refuses.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "jit/ptx_tokens.hpp"
#include "jit/toolchain.hpp"
#include "testing.hpp"

namespace heed::jit {
namespace {

using ::testing::HasSubstr;

const std::string kHead =
    ".version 9.0\n.target sm_90a\n.address_size 64\n.global .align 4 .u32 kUnused = 3;\n.visible .global .align 4 "
    ".u32 "
    "counter;\n.const .align 4 .u32 table[2] = {1, 2};\n.visible .entry heed_forward(\n.param .align 8 .b8 "
    "p[184]\n)\n.maxntid 256, 1, 1\n{\n.reg .b32 %r<10>;\n.reg .b64 %rd<10>;\n";

std::string violation(const std::string& body, const PtxRules& rules = {}) {
  return contract_violation_in_ptx(kHead + "  " + body + "\nret;\n}\n", rules);
}

TEST(PtxTokens, SplitAtBlanksAndCommentsAndNowhereElse) {
  const PtxTokens read = tokens_of_ptx(
      "ld /* a */ .global // b\n.shared::cta.v4\t{%r1,%r2}, [p+-0x10], 0f3F800000; .pragma \"a // b\"; x: 1.0");
  EXPECT_EQ(read.refusal, "");
  std::vector<std::string> texts;
  for (const PtxToken& token : read.tokens) texts.emplace_back(token.text);
  EXPECT_THAT(texts, ::testing::ElementsAre("ld", ".global", ".shared::cta", ".v4", "{", "%r1", ",", "%r2", "}", ",",
                                            "[", "p", "+", "-", "0x10", "]", ",", "0f3F800000", ";", ".pragma",
                                            "a // b", ";", "x", ":", "1.0"));
  EXPECT_EQ(read.tokens[20].kind, PtxKind::string);
}

TEST(PtxTokens, WhatTwoReadersCouldReadInTwoWaysIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ret; // one \\\nret;", "backslash"},
      {"/* one /* two */ ret; */", "within a block comment"},
      {"ret; /* no end", "no end"},
      {".pragma \"a\\\"; ret; \"", "escape"},
      {".pragma \"a\nb\";", "its line"},
      {"ret;\r ret;", "0x0d"},
      {"ret; \x80", "0x80"},
      {std::string("ret;\0 ret;", 10), "0x00"},
      {"# 1 \"file\"\nret;", "preprocessor"}};
  for (const auto& [text, reason] : cases) EXPECT_THAT(tokens_of_ptx(text).refusal, HasSubstr(reason)) << text;
}

TEST(Ptx, LetsThroughWhatKernelsNeed) {
  for (const char* plain :
       {"add.s32 %r1, %r2, 3;", "// counter in a comment", "/* %clock64 */ add.s32 %r1, %r2, 3; // ; mov %clock64",
        "ld.global.nc.L1::no_allocate.L2::128B.b32 %r1, [%rd2];", "prefetch.global.L2 [%rd2];",
        "ld.global.L2::evict_first.b32 %r1, [%rd2];", "st.global.L1::evict_last.b32 [%rd2], %r1;",
        "mov.u32 %r1,\n  %tid.x;", "{ .reg .pred q; setp.eq.u32 q, %r1, 0; @!q bra $L_1; }\n$L_1:",
        ".pragma \"nounroll\";", ".pragma \"used_bytes_mask 15\";", "ld.param.u64 %rd1, [p+176];",
        "atom.shared.add.u32 %r1, [%r2], 1;", "red.async.relaxed.cluster.shared::cluster.add.u32 [%r1], %r2, [%r3];",
        "mov.b64 %rd1, p; cvta.param.u64 %rd2, %rd1; add.s64 %rd3, %rd2, 64; prefetch.tensormap [%rd3];",
        "ts: .branchtargets $L_1, $L_2; brx.idx %r1, ts; $L_1: $L_2:", ".shared .align 16 .b8 s[64];",
        ".local .align 4 .b8 l[16];"})
    EXPECT_EQ(violation(plain), "") << plain;
  EXPECT_EQ(violation("atom.global.inc.u32 %r1, [%rd1], 3;", {.semaphores = true}), "");
}

TEST(Ptx, MemoryOfItsOwnIsFoundInEveryOperand) {
  for (const char* use : {"mov.u64 %rd1, counter;", "mov.u64 %rd1, counter+4;", "ld.global.u32 %r1, [counter+8];",
                          "mov.b64\n%rd1\n,\ncounter\n;", "mov.b64 %rd1, /**/counter;",
                          "mov.u64 %rd1, generic(counter);", "{ mov.v2.b64 {%rd1, %rd2}, {%rd3, counter}; }",
                          "{\n}\n mov.u64 %rd1, counter;", "@!q mov.u64 %rd1, counter;", "}\n{ mov.u64 %rd1, counter;"})
    EXPECT_THAT(violation(use), HasSubstr("counter")) << use;
  EXPECT_THAT(violation("ld.u32 %r1, [table];"), HasSubstr("memory of its own (table)"));
  EXPECT_THAT(violation(".global\n.u32\nmore;"), HasSubstr("memory of its own"));
  EXPECT_THAT(violation("ld.const.u32 %r1, [%rd1];"), HasSubstr("constant memory"));
  EXPECT_THAT(violation("cvta.const.u64 %rd1, %rd2;"), HasSubstr("constant memory"));
  EXPECT_THAT(violation("mov.u64 %rd1, heed_forward;"), HasSubstr("address of its own code"));
  const std::string several =
      ".version 9.0 .target sm_90a .address_size 64 .visible\n.global\n.align 4\n.b8\nkept[4] =\n"
      "{1,\n2};\n.visible .entry heed_forward() { mov.u64 %rd1,\nkept; }";
  EXPECT_THAT(contract_violation_in_ptx(several), HasSubstr("memory of its own (kept)"));
}

TEST(Ptx, ModulesHoldOneKernelAndNothingElse) {
  const std::string kernel = ".visible .entry heed_forward() { ret; }\n";
  EXPECT_EQ(contract_violation_in_ptx(kernel), "");
  EXPECT_EQ(contract_violation_in_ptx(".weak .const .u32 a = 1, b[2] = {1, 2}; .shared .b8 s[];\n" + kernel), "");
  for (const char* other :
       {".visible .entry other() { ret; }", ".func f() { ret; }", ".alias a, b;", ".tex .u64 t;", ".local .b8 l[4];",
        ".common .global .u32 c;", ".global .texref t;", ".extern .global .u32 g;", ".pragma \"//\";",
        ".section .debug { }", "ret;", ".extern .func (.param .b32 r) vprintf();"})
    EXPECT_NE(contract_violation_in_ptx(other + kernel), "") << other;
  EXPECT_THAT(contract_violation_in_ptx(".entry other() { ret; }"), HasSubstr("no kernel heed_forward"));
  EXPECT_EQ(contract_violation_in_ptx(".entry other() { ret; }", {.entry = "other"}), "");
  EXPECT_THAT(contract_violation_in_ptx(".entry heed_forward() { ret;"), HasSubstr("ends in the middle"));
}

TEST(Ptx, LooksAtTimeAndLaunchesAreFoundHoweverTheyAreWritten) {
  for (const char* look :
       {"mov.u64 %rd1, %clock64;", "mov.u64\n%rd1,\n%clock64\n;", "mov /* , */ .u64 %rd1, /* */ %clock64;",
        "{\n.reg .pred q;\n}\n mov.u64 %rd1, %clock64;", "/*//*/ mov.u64 %rd1, %clock64;", "mov.u32 %r1, %clock;",
        "mov.u32 %r1, %clock_hi;", "mov.u64 %rd1, %globaltimer;", "mov.u32 %r1,\n  %globaltimer_lo;",
        "add.u64 %rd1, %rd2, %clock64;", "{ .reg .b64 %clock<65>; mov.u64 %rd1, %clock64; }"})
    EXPECT_THAT(violation(look), HasSubstr("looks at the time")) << look;
  for (const char* hidden :
       {".pragma \"//\"; mov.u64 %rd1, %clock64;", ".pragma \"/*\"; mov.u64 %rd1, %clock64; // */"})
    EXPECT_THAT(violation(hidden), HasSubstr("pragma")) << hidden;
  for (const char* launch : {"%gridid", "%current_graph_exec", "%envreg3", "%smid", "%nsmid", "%pm0", "%pm3_64",
                             "%reserved_smem_offset_begin"})
    EXPECT_THAT(violation(fmt::format("mov.u64 %rd1, {};", launch)), HasSubstr("tells launches")) << launch;
  EXPECT_THAT(violation("nanosleep.u32 100;"), HasSubstr("time pass"));
}

TEST(Ptx, ParametersAreReadWithinTheirBytesAndAreNoMemory) {
  for (const char* outside :
       {"ld.param.u64 %rd1, [p+-480];", "ld.param.u64 %rd1, [p+184];", "ld.param.u32 %r1, [p\n+ 0x200];"})
    EXPECT_THAT(violation(outside), HasSubstr("outside its parameters")) << outside;
  for (const char* use : {"ld.u32 %r1, [%rd3];", "st.u32 [%rd3+4096], %r1;", "cvta.to.global.u64 %rd4, %rd3;",
                          "st.global.u64 [%rd5], %rd3;", "sub.s64 %rd4, %rd3, 480;"})
    EXPECT_THAT(violation(std::string("mov.b64 %rd1, p; cvta.param.u64 %rd2, %rd1; mov.u64 %rd3, %rd2; ") + use),
                HasSubstr("more than tensor maps"))
        << use;
  EXPECT_THAT(violation("st.param.b32 [p], %r1;"), HasSubstr("writes to its parameters"));
}

TEST(Ptx, InstructionsOutsideTheContractAreRefused) {
  EXPECT_THAT(violation("call.uni (retval0), malloc, (param0);"), HasSubstr("calls a function"));
  for (const char* other : {"brkpt;", "pmevent 1;", "alloca.u64 %rd1, 16;", "stacksave.u64 %rd1;",
                            "tex.1d.v4.f32.f32 {%r1}, [%rd1, {%r2}];", "suld.b.1d.b32.trap %r1, [%rd1, {%r2}];",
                            "multimem.red.relaxed.gpu.global.add.f32 [%rd1], %r1;", "instruction_of_tomorrow.b32 %r1;",
                            "tensormap.replace.tile.global_address.global.b1024.b64 [%rd1], %rd2;"})
    EXPECT_THAT(violation(other), HasSubstr("outside the kernel contract")) << other;
  for (const char* counts : {"atom.global.add.u32 %r1, [%rd1], 1;", "red.add.u32 [%rd1], 1;",
                             "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], 16;"})
    EXPECT_THAT(violation(counts), HasSubstr("no semaphores")) << counts;
  for (const char* wide : {"membar.sys;", "fence.sc.sys;", "st.release.sys.global.u32 [%rd1], %r1;"})
    EXPECT_THAT(violation(wide), HasSubstr("beyond the GPU")) << wide;
}

TEST(Ptx, WhatTheL2KeepsIsLeftAlone) {
  for (const char* skew : {"createpolicy.fractional.L2::evict_last.b64 %rd1, 1.0;",
                           "create/* */policy.fractional.L2::evict_last.b64 %rd1, 1.0;",
                           "createpolicy\n.fractional\n.L2::evict_last\n.b64 %rd1, 1.0;",
                           "ld.global.L2::cache_hint.b32 %r1, [%rd2], %rd1;",
                           "ld.global // a hint\n.L2::cache_hint.b32 %r1, [%rd2], %rd1;",
                           "prefetch.global.L2::evict_last [%rd2];", "prefetch.global.L2::evict_normal [%rd2];",
                           "applypriority.global.L2::evict_normal [%rd2], 128;", "discard.global.L2 [%rd2], 128;"})
    EXPECT_NE(violation(skew), "") << skew;
  // Lines of one's own that go first are nobody's loss, if it is certain that the policy says so.
  const std::string first = "createpolicy.fractional.L2::evict_first.b64 q, 1.0;";
  const std::string copy =
      "cp.async.bulk.tensor.4d.shared::cluster.global.L2::cache_hint [%r1], [%rd2, {%r3}], [%r4], ";
  EXPECT_EQ(violation("{\n.reg .b64 q;\n" + first + "\n" + copy + "q;\n}"), "");
  EXPECT_EQ(violation("{\n.reg .b64 q;\n" + first + " /* one\nafter the other */ " + copy + "q; }"), "");
  for (const std::string& skew :
       {copy + "q;", first + "\n" + copy + "r;", first + "\nagain:\n" + copy + "q;", first + "\n{" + copy + "q; }",
        first + "\n" + copy + "q; " + copy + "q;", first + " mov.b64 q, 1;\n" + copy + "q;",
        "@s " + first + "\n" + copy + "q;", first + "\n@s " + copy + "q;",
        std::string("createpolicy.fractional.L2::evict_first.L2::evict_last.b64 q, 1.0;\n") + copy + "q;",
        std::string("createpolicy.fractional.L2::evict_first.b64 q, 0.5;\n") + copy + "q;",
        first + "\nld.global.L2::cache_hint.b32 %r1, [%rd2], q;"})
    EXPECT_THAT(violation(skew), HasSubstr("L2 cache")) << skew;
}

TEST(Ptx, ALaunchBeginsEarlyOnlyWhereItsPlanSaysSo) {
  for (const char* early : {"griddepcontrol.launch_dependents;", "griddepcontrol.wait;", "griddepcontrol\n.wait;"})
    EXPECT_THAT(violation(early), HasSubstr("next launch"));
  const PtxRules dependent{.supports_pdl = true};
  EXPECT_EQ(violation("griddepcontrol.launch_dependents;\n  griddepcontrol.wait;", dependent), "");
  for (const char* unsafe : {"griddepcontrol.launch_dependents;", "add.s32 %r1, %r2, 3; // griddepcontrol.wait",
                             "/* griddepcontrol.wait; */"})
    EXPECT_THAT(violation(unsafe, dependent), HasSubstr("no griddepcontrol.wait"));
  EXPECT_THAT(violation("griddepcontrol.wait;\n  mov.u64 %rd1, %clock64;", dependent), HasSubstr("looks at the time"));
}

}  // namespace
}  // namespace heed::jit
