// A tool of NVTX that writes the messages of ranges to the file that HEED_NVTX_MESSAGES names, a line each, with "/"
// where a range ends. https://nvidia.github.io/NVTX/ (tools API: nvtx3/nvtxDetail/nvtxTypes.h)
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

std::FILE* file() {
  static std::FILE* const opened = std::fopen(std::getenv("HEED_NVTX_MESSAGES"), "w");
  return opened;
}

void write(const char* line) {
  static std::mutex one;
  const std::lock_guard lock(one);
  std::fprintf(file(), "%s\n", line);
  std::fflush(file());
}

nvtxDomainHandle_t NVTX_API create(const char*) {
  static int domain = 0;
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}

int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* attributes) {
  write(attributes->message.ascii);
  return 0;
}

int NVTX_API pop(nvtxDomainHandle_t) {
  write("/");
  return 0;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): NVTX looks for this name.
extern "C" int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
