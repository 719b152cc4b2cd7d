#include "process/timeline.hpp"

#ifdef HEED_WITH_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace heed {

#ifdef HEED_WITH_NVTX

namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("heed");
  return made;
}

}  // namespace

TimelineRange::TimelineRange(const char* name, const std::string& of) {
  const std::string text = of.empty() ? std::string(name) : name + (" " + of);
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text.c_str();
  nvtxDomainRangePushEx(domain(), &attributes);
}

TimelineRange::~TimelineRange() {
  nvtxDomainRangePop(domain());
}

#else

TimelineRange::TimelineRange(const char*, const std::string&) {}
TimelineRange::~TimelineRange() = default;

#endif

}  // namespace heed
