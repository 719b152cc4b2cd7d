#include "worker/own_ptx.hpp"

#include <fmt/format.h>

namespace heed::worker {
namespace {

constexpr const char* kHeader = ".version 7.0\n.target sm_80\n.address_size 64\n";

// A block fills its shared memory with NaN.
constexpr const char* kPoisonShared = R"(
.extern .shared .align 16 .b8 memory[];
.visible .entry heed_poison_shared(.param .u32 bytes)
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  ld.param.u32 %r1, [bytes];
  mov.u32 %r2, %tid.x;
  shl.b32 %r2, %r2, 2;
  mov.u32 %r3, memory;
  mov.u32 %r4, -1;
next:
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 bra done;
  add.u32 %r5, %r3, %r2;
  st.volatile.shared.u32 [%r5], %r4;
  add.u32 %r2, %r2, 4096;
  bra.uni next;
done:
  ret;
}
)";

// Element i of `elements` times factor i % dim. {0}: dtype, {1}: log2 of an element's bytes, {2}: its bits to %r6 and
// its value to %f2, {3}: the bits of %f3 to %r5, {4}: by how much the sign of fp32 lies higher than its own, {5}: store
// the bits of %r5. A NaN gets the sign that a number would get, as from multiply_channels: a product would be another
// NaN.
constexpr const char* kMultiply = R"(
.visible .entry heed_multiply_{0}(.param .u64 at, .param .u64 elements, .param .u64 factors, .param .u32 dim)
{{
  .reg .pred %p<2>;
  .reg .b16 %h<3>;
  .reg .f32 %f<4>;
  .reg .b32 %r<8>;
  .reg .b64 %d<12>;
  ld.param.u64 %d1, [at];
  ld.param.u64 %d2, [elements];
  ld.param.u64 %d3, [factors];
  ld.param.u32 %r1, [dim];
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d3, %d3;
  cvt.u64.u32 %d4, %r1;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %nctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mul.wide.u32 %d5, %r2, %r4;
  cvt.u64.u32 %d6, %r5;
  add.u64 %d5, %d5, %d6;
  mul.wide.u32 %d6, %r3, %r4;
next:
  setp.ge.u64 %p1, %d5, %d2;
  @%p1 bra done;
  rem.u64 %d7, %d5, %d4;
  shl.b64 %d7, %d7, 2;
  add.u64 %d7, %d3, %d7;
  ld.global.f32 %f1, [%d7];
  shl.b64 %d8, %d5, {1};
  add.u64 %d8, %d1, %d8;
  {2}
  mul.rn.f32 %f3, %f2, %f1;
  {3}
  setp.nan.f32 %p0, %f2, %f2;
  mov.b32 %r7, %f1;
  and.b32 %r7, %r7, 0x80000000;
  shr.u32 %r7, %r7, {4};
  xor.b32 %r7, %r6, %r7;
  selp.b32 %r5, %r7, %r5, %p0;
  {5}
  add.u64 %d5, %d5, %d6;
  bra.uni next;
done:
  ret;
}}
)";

// Word i of a region is {0}: written, or counted where it is not there. {1}: entry, {2}: parameters, {3}: what is done
// with the expected word %r7 of address %d4.
constexpr const char* kPattern = R"(
.visible .entry heed_{1}(.param .u64 at, .param .u64 words{2})
{{
  .reg .pred %p<3>;
  .reg .b32 %r<10>;
  .reg .b64 %d<10>;
  ld.param.u64 %d1, [at];
  ld.param.u64 %d2, [words];
  cvta.to.global.u64 %d1, %d1;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %nctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mul.wide.u32 %d3, %r2, %r4;
  cvt.u64.u32 %d5, %r5;
  add.u64 %d3, %d3, %d5;
  mul.wide.u32 %d5, %r3, %r4;
next:
  setp.ge.u64 %p1, %d3, %d2;
  @%p1 bra done;
  cvt.u32.u64 %r6, %d3;
  mul.lo.u32 %r6, %r6, 0x9e3779b1;
  shr.u32 %r7, %r6, 15;
  xor.b32 %r7, %r7, %r6;
  mul.lo.u32 %r7, %r7, 0x85ebca77;
  xor.b32 %r7, %r7, {0};
  shl.b64 %d4, %d3, 2;
  add.u64 %d4, %d1, %d4;
  {3}
skip:
  add.u64 %d3, %d3, %d5;
  bra.uni next;
done:
  ret;
}}
)";
constexpr const char* kPatternSeed = "0x48454544";

// 240 words that come as parameters go round in registers: each is combined with the next in a loop whose length the
// compiler does not know, so all of them live at once. 256 threads of 256 registers are a multiprocessor's whole file.

std::string poison_registers_ptx() {
  std::string text = fmt::format(
      ".visible .entry heed_poison_registers(.param .align 4 .b8 words[{}], .param .u32 rounds, "
      ".param .u64 nowhere)\n.maxntid {}, 1, 1\n{{\n  .reg .pred %p<3>;\n  .reg .b32 %x<{}>;\n"
      "  .reg .b32 %r<4>;\n  .reg .b64 %d<2>;\n  ld.param.u32 %r1, [rounds];\n",
      4 * kPoisonedRegisters, kPoisonRegisterThreads, kPoisonedRegisters);
  for (int i = 0; i < kPoisonedRegisters; ++i) text += fmt::format("  ld.param.u32 %x{}, [words+{}];\n", i, 4 * i);
  text += "next:\n";
  for (int i = 0; i < kPoisonedRegisters; ++i)
    text += fmt::format("  and.b32 %x{0}, %x{0}, %x{1};\n", i, (i + 1) % kPoisonedRegisters);
  text += "  sub.u32 %r1, %r1, 1;\n  setp.ne.u32 %p1, %r1, 0;\n  @%p1 bra next;\n  mov.u32 %r2, -1;\n";
  for (int i = 0; i < kPoisonedRegisters; ++i) text += fmt::format("  and.b32 %r2, %r2, %x{};\n", i);
  // Never so, which the compiler does not know: the words are all ones.
  text +=
      "  setp.ne.u32 %p2, %r2, -1;\n  @!%p2 bra done;\n  ld.param.u64 %d1, [nowhere];\n"
      "  st.global.u32 [%d1], %r2;\ndone:\n  ret;\n}\n";
  return text;
}

}  // namespace

std::string own_kernels_ptx() {
  std::string text = kHeader;
  text += kPoisonShared;
  const char* store_16 = "cvt.u16.u32 %h2, %r5;\n  st.global.u16 [%d8], %h2;";
  text +=
      fmt::format(kMultiply, "fp16", 1, "ld.global.u16 %h1, [%d8];\n  cvt.u32.u16 %r6, %h1;\n  cvt.f32.f16 %f2, %h1;",
                  "cvt.rn.f16.f32 %h2, %f3;\n  cvt.u32.u16 %r5, %h2;", 16, store_16);
  // bf16 is the upper half of fp32: exact products need no rounding.
  text +=
      fmt::format(kMultiply, "bf16", 1,
                  "ld.global.u16 %h1, [%d8];\n  cvt.u32.u16 %r6, %h1;\n  shl.b32 %r7, %r6, 16;\n  mov.b32 %f2, %r7;",
                  "mov.b32 %r5, %f3;\n  shr.u32 %r5, %r5, 16;", 16, store_16);
  text += fmt::format(kPattern, kPatternSeed, "fill", "", "st.global.u32 [%d4], %r7;");
  text += fmt::format(kPattern, kPatternSeed, "verify", ", .param .u64 count",
                      "ld.global.u32 %r8, [%d4];\n  setp.eq.u32 %p2, %r8, %r7;\n  @%p2 bra skip;\n"
                      "  ld.param.u64 %d6, [count];\n  cvta.to.global.u64 %d6, %d6;\n  red.global.add.u32 [%d6], 1;");
  text += poison_registers_ptx();
  // Of 8 bits the factors are signs: that of a float flips, and a whole number is negated, -128 as itself.
  for (const char* dtype : {"e4m3", "e5m2"})
    text += fmt::format(kMultiply, dtype, 0, "ld.global.u8 %r6, [%d8];\n  mov.f32 %f2, 0f3F800000;",
                        "mov.b32 %r7, %f3;\n  shr.u32 %r7, %r7, 24;\n  and.b32 %r7, %r7, 128;\n"
                        "  xor.b32 %r5, %r6, %r7;",
                        24, "st.global.u8 [%d8], %r5;");
  text += fmt::format(kMultiply, "int8", 0, "ld.global.s8 %r6, [%d8];\n  cvt.rn.f32.s32 %f2, %r6;",
                      "cvt.rni.s32.f32 %r5, %f3;", 24, "st.global.u8 [%d8], %r5;");
  text += fmt::format(kMultiply, "fp32", 2, "ld.global.u32 %r6, [%d8];\n  mov.b32 %f2, %r6;", "mov.b32 %r5, %f3;", 0,
                      "st.global.u32 [%d8], %r5;");
  return text;
}

std::string poison_local_ptx(int bytes) {
  const int words = (bytes + 3) / 4;
  return kHeader + fmt::format(R"(
.visible .entry heed_poison_local(.param .u32 words)
{{
  .local .align 16 .b8 frame[{}];
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .b64 %d<4>;
  ld.param.u32 %r1, [words];
  mov.u64 %d1, frame;
  cvta.local.u64 %d1, %d1;
  mov.u32 %r2, -1;
next:
  st.volatile.u32 [%d1], %r2;
  add.u64 %d1, %d1, 4;
  sub.u32 %r1, %r1, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra next;
  ret;
}}
)",
                               4 * words);
}

}  // namespace heed::worker
