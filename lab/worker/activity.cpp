#include "worker/activity.hpp"

#include "heed/heed.hpp"

#ifdef HEED_WITH_CUPTI

#include <fmt/format.h>

#include <cstdlib>
#include <mutex>
#include <vector>

#include "base/intervals.hpp"
#include "worker/cupti.hpp"

namespace heed {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;  // some 5,000 kernels; a gate launches a few hundred
constexpr std::size_t kAlignment = 8;          // as CUPTI wants it
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET};

// What CUPTI has handed over; its callbacks come from threads of its own.
struct Collected {
  std::mutex mutex;
  const CuptiActivity* api = nullptr;
  std::vector<Interval> ns;
};

Collected& collected() {
  static Collected all;
  return all;
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  Collected& all = collected();
  {
    const std::lock_guard lock(all.mutex);
    const auto add = [&](std::uint64_t begin, std::uint64_t end) {
      all.ns.push_back({static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)});
    };
    CUpti_Activity* record = nullptr;
    while (all.api != nullptr && all.api->next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
      if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
        const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
        add(kernel.start, kernel.end);
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
        add(copy.start, copy.end);
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const auto& set = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
        add(set.start, set.end);
      }
    }
  }
  std::free(buffer);
}

class CuptiRecords final : public ActivityRecords {
 public:
  explicit CuptiRecords(const std::string& library) : api_(load_cupti_activity(library)) {
    std::uint32_t version = 0;
    check(api_.common, api_.common.get_version(&version), "cuptiGetVersion");
    if (version != CUPTI_API_VERSION)
      throw Error(
          ErrorCode::unsupported,
          fmt::format("{} is of version {}, and Heed was built for version {}, whose records have another layout",
                      api_.common.path, version, CUPTI_API_VERSION),
          api_.common.path);
    {
      const std::lock_guard lock(collected().mutex);
      collected().api = &api_;
    }
    check(api_.common, api_.register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
  }

  ~CuptiRecords() override {
    const std::lock_guard lock(collected().mutex);
    collected().api = nullptr;
  }

  void begin() override {
    {
      const std::lock_guard lock(collected().mutex);
      collected().ns.clear();
    }
    for (const CUpti_ActivityKind kind : kKinds) check(api_.common, api_.enable(kind), "cuptiActivityEnable");
  }

  double end() override {
    check(api_.common, api_.flush_all(0), "cuptiActivityFlushAll");
    for (const CUpti_ActivityKind kind : kKinds) check(api_.common, api_.disable(kind), "cuptiActivityDisable");
    std::size_t dropped = 0;
    check(api_.common, api_.dropped_records(nullptr, 0, &dropped), "cuptiActivityGetNumDroppedRecords");
    if (dropped != 0) throw Error(ErrorCode::unsupported, fmt::format("CUPTI dropped {} activity records", dropped));
    const std::lock_guard lock(collected().mutex);
    return length_of(merged(std::move(collected().ns))) / 1000;
  }

 private:
  CuptiActivity api_;
};

}  // namespace

std::unique_ptr<ActivityRecords> open_activity_records(const std::string& library) {
  return std::make_unique<CuptiRecords>(library);
}

}  // namespace heed

#else

namespace heed {

std::unique_ptr<ActivityRecords> open_activity_records(const std::string&) {
  throw Error(ErrorCode::unsupported,
              "this Heed was built without CUPTI (cupti_range_profiler.h was not found when it was configured)");
}

}  // namespace heed

#endif
