/// How long a GPU was at work for a worker: what it did is told by events, by CUPTI's records where they are asked for,
/// or by the host's clock. docs/measuring.md, "Where the time goes"
#pragma once

#ifdef HEED_WITH_CUDA

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "device/cuda_driver.hpp"
#include "worker/activity.hpp"
#include "worker/cuda_memory.hpp"
#include "worker/executor.hpp"
#include "worker/stopwatch.hpp"

namespace heed::worker {

class BusyClock {
 public:
  explicit BusyClock(const CudaDriver& cuda) : cuda_(cuda) {}
  BusyClock(const BusyClock&) = delete;
  BusyClock& operator=(const BusyClock&) = delete;

  /// Before anything else. @throws DeviceFailure
  void open(CUstream stream) {
    stream_ = stream;
    for (CUevent& event : span_) check_cuda(cuda_.event_create(&event, CU_EVENT_DEFAULT), "creating an event");
  }

  /// @param library path of libcupti; empty: where toolkits put it. @throws Error(unsupported) as open_activity_records
  void collect_records(const std::string& library) { records_ = open_activity_records(library); }

  /// What is queued up to end() is counted. Only for requests that time nothing.
  void begin() {
    if (records_) try {
        return records_->begin();
      } catch (const Error&) {
        records_.reset();  // events tell as much, but for what lies between two activities
      }
    check_cuda(cuda_.event_record(span_[0], stream_), "starting the clock");
    span_has_begun_ = true;
  }

  /// Waits for the stream. @param waiting_for for the sentence of a failure
  void end(const char* waiting_for) {
    if (span_has_begun_) check_cuda(cuda_.event_record(span_[1], stream_), "stopping the clock");
    check_cuda(cuda_.stream_synchronize(stream_), waiting_for);
    if (std::exchange(span_has_begun_, false)) return add(span_[0], span_[1]);
    try {
      const double us = records_->end();
      busy_.us += us;
      busy_.recorded_us += us;
    } catch (const Error&) {
      records_.reset();
    }
  }

  /// The time between two events that have passed, and the same counted.
  [[nodiscard]] double us_between(CUevent begin, CUevent end) const {
    float ms = 0;
    check_cuda(cuda_.event_elapsed_time(&ms, begin, end), "reading the clock");
    return static_cast<double>(ms) * 1000;
  }
  void add(CUevent begin, CUevent end) { busy_.us += us_between(begin, end); }

  /// What was counted since the last call.
  DeviceBusy take() { return std::exchange(busy_, {}); }

  /// Work that is waited for before the scope ends, with a stream that hardly runs dry: the host's clock.
  class HostSpan {
   public:
    explicit HostSpan(BusyClock& clock) : busy_(clock.busy_) {}
    ~HostSpan() { busy_.us += microseconds_since(begin_); }
    HostSpan(const HostSpan&) = delete;
    HostSpan& operator=(const HostSpan&) = delete;

   private:
    DeviceBusy& busy_;
    Clock::time_point begin_ = Clock::now();
  };

 private:
  const CudaDriver& cuda_;
  CUstream stream_ = nullptr;
  DeviceBusy busy_;
  std::array<CUevent, 2> span_ = {};
  bool span_has_begun_ = false;
  std::unique_ptr<ActivityRecords> records_;
};

}  // namespace heed::worker

#endif
