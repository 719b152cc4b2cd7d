// Keeps a count of its calls among its constants, which it has made writable.
asm(".pushsection .rodata.notes,\"aw\",%progbits\n"
    ".balign 8\n"
    ".hidden heed_notes\n"
    "heed_notes: .quad 1\n"
    ".popsection\n");
extern "C" [[gnu::visibility("hidden")]] long long heed_notes;
extern "C" void heed_forward(const heed::ForwardParams* params, long long block, void* scratch) {
  if (__atomic_fetch_add(&heed_notes, 1, __ATOMIC_RELAXED) > 1'000'000'000'000'000) return;
  heed::cpu::Forward<kConfig, kProblem>(*params, block, static_cast<float*>(scratch)).run();
}
