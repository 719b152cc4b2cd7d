/// What a compiler calls by itself where no library is linked: copies and fills of structures. Included before every
/// CPU candidate. In assembly, so that no compiler takes one of them for a call of itself, and hidden, so that nothing
/// is left for a loader to find.
#pragma once

// clang-format off
#define HEED_FUNCTION(name)                   \
  ".section .text." name ",\"ax\",%progbits\n" \
  ".globl " name "\n"                         \
  ".hidden " name "\n"                        \
  ".type " name ", %function\n" name ":\n"

#if defined(__x86_64__)
asm(".pushsection .text\n"
    HEED_FUNCTION("memcpy")
    "  mov %rdi, %rax\n"
    "  mov %rdx, %rcx\n"
    "  rep movsb\n"
    "  ret\n"
    HEED_FUNCTION("memset")
    "  mov %rdi, %r8\n"
    "  mov %esi, %eax\n"
    "  mov %rdx, %rcx\n"
    "  rep stosb\n"
    "  mov %r8, %rax\n"
    "  ret\n"
    HEED_FUNCTION("memmove")
    "  mov %rdi, %rax\n"
    "  mov %rdx, %rcx\n"
    "  mov %rdi, %r8\n"
    "  sub %rsi, %r8\n"
    "  cmp %rdx, %r8\n"  // to - from < bytes, unsigned: the end of what is read would be overwritten
    "  jb 1f\n"
    "  rep movsb\n"
    "  ret\n"
    "1: lea -1(%rdi,%rdx), %rdi\n"
    "  lea -1(%rsi,%rdx), %rsi\n"
    "  std\n"
    "  rep movsb\n"
    "  cld\n"
    "  ret\n"
    HEED_FUNCTION("memcmp")
    "  xor %ecx, %ecx\n"
    "1: cmp %rdx, %rcx\n"
    "  je 2f\n"
    "  movzbl (%rdi,%rcx), %eax\n"
    "  movzbl (%rsi,%rcx), %r8d\n"
    "  inc %rcx\n"
    "  sub %r8d, %eax\n"
    "  je 1b\n"
    "  ret\n"
    "2: xor %eax, %eax\n"
    "  ret\n"
    ".popsection\n");
#elif defined(__aarch64__)
asm(".pushsection .text\n"
    HEED_FUNCTION("memcpy")
    "  mov x3, xzr\n"
    "1: cmp x3, x2\n"
    "  b.eq 2f\n"
    "  ldrb w4, [x1, x3]\n"
    "  strb w4, [x0, x3]\n"
    "  add x3, x3, #1\n"
    "  b 1b\n"
    "2: ret\n"
    HEED_FUNCTION("memset")
    "  mov x3, xzr\n"
    "1: cmp x3, x2\n"
    "  b.eq 2f\n"
    "  strb w1, [x0, x3]\n"
    "  add x3, x3, #1\n"
    "  b 1b\n"
    "2: ret\n"
    HEED_FUNCTION("memmove")
    "  sub x3, x0, x1\n"
    "  cmp x3, x2\n"
    "  b.lo 3f\n"
    "  mov x3, xzr\n"
    "1: cmp x3, x2\n"
    "  b.eq 2f\n"
    "  ldrb w4, [x1, x3]\n"
    "  strb w4, [x0, x3]\n"
    "  add x3, x3, #1\n"
    "  b 1b\n"
    "2: ret\n"
    "3: cbz x2, 2b\n"
    "  sub x2, x2, #1\n"
    "  ldrb w4, [x1, x2]\n"
    "  strb w4, [x0, x2]\n"
    "  b 3b\n"
    HEED_FUNCTION("memcmp")
    "  mov x3, xzr\n"
    "1: cmp x3, x2\n"
    "  b.eq 2f\n"
    "  ldrb w4, [x0, x3]\n"
    "  ldrb w5, [x1, x3]\n"
    "  add x3, x3, #1\n"
    "  subs w4, w4, w5\n"
    "  b.eq 1b\n"
    "  mov w0, w4\n"
    "  ret\n"
    "2: mov w0, wzr\n"
    "  ret\n"
    ".popsection\n");
#endif
#undef HEED_FUNCTION

// Which processors run the object, for whoever loads it (lib/dispatch/object_arch.hpp).
#if defined(HEED_ARCH)
asm(".pushsection .heed.arch,\"\",%progbits\n"
    ".ascii \"" HEED_ARCH "\"\n"
    ".popsection\n");
#endif
// clang-format on
