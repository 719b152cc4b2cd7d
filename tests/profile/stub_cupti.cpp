// A stand-in for libcupti that hands over a few activity records. HEED_STUB_CUPTI names what goes wrong: "version",
// "enable", "dropped".
#include <cupti_activity.h>
#include <cupti_result.h>
#include <cupti_version.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

CUpti_BuffersCallbackRequestFunc ask_for_buffer;
CUpti_BuffersCallbackCompleteFunc hand_over;
int enabled;

bool fails(std::string_view what) {
  const char* const wanted = std::getenv("HEED_STUB_CUPTI");
  return wanted != nullptr && what == wanted;
}

template <typename Record>
std::uint8_t* add(std::uint8_t* at, CUpti_ActivityKind kind, std::uint64_t begin, std::uint64_t end) {
  Record record{};
  record.kind = kind;
  record.start = begin;
  record.end = end;
  std::memcpy(at, &record, sizeof(record));
  return at + sizeof(record);
}

}  // namespace

extern "C" {

CUptiResult CUPTIAPI cuptiGetVersion(std::uint32_t* version) {
  *version = fails("version") ? 22 : CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult, const char** text) {
  *text = "CUPTI_ERROR_OF_THE_STUB";
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                    CUpti_BuffersCallbackCompleteFunc complete) {
  ask_for_buffer = request;
  hand_over = complete;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind) {
  if (fails("enable")) return CUPTI_ERROR_NOT_INITIALIZED;
  ++enabled;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind) {
  --enabled;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityFlushAll(std::uint32_t) {
  if (enabled != 3) return CUPTI_SUCCESS;  // nothing was recorded
  std::uint8_t* buffer = nullptr;
  std::size_t size = 0;
  std::size_t most = 0;
  ask_for_buffer(&buffer, &size, &most);
  std::uint8_t* at = buffer;
  at = add<CUpti_ActivityMemcpy6>(at, CUPTI_ACTIVITY_KIND_MEMCPY, 1000, 3000);
  at = add<CUpti_ActivityKernel10>(at, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, 2000, 6000);
  at = add<CUpti_ActivityMemset4>(at, CUPTI_ACTIVITY_KIND_MEMSET, 8000, 8500);
  at = add<CUpti_ActivityKernel10>(at, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, 10000, 11500);
  hand_over(nullptr, 0, buffer, size, static_cast<std::size_t>(at - buffer));
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) {
  std::uint8_t* next = buffer;
  if (*record != nullptr) {
    next = reinterpret_cast<std::uint8_t*>(*record);
    next += (*record)->kind == CUPTI_ACTIVITY_KIND_MEMCPY   ? sizeof(CUpti_ActivityMemcpy6)
            : (*record)->kind == CUPTI_ACTIVITY_KIND_MEMSET ? sizeof(CUpti_ActivityMemset4)
                                                            : sizeof(CUpti_ActivityKernel10);
  }
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* dropped) {
  *dropped = fails("dropped") ? 7 : 0;
  return CUPTI_SUCCESS;
}
}
