/// How long a GPU was at work for this process, from CUPTI's activity records, loaded at run time.
/// https://docs.nvidia.com/cupti/main/main.html, "CUPTI Activity API"
///
/// While records are collected every launch takes longer, so nothing is timed then.
#pragma once

#include <memory>
#include <string>

namespace heed {

/// Collects records of kernels, copies and memory that is set. One at a time in a process: CUPTI's callbacks carry no
/// word of the caller's.
class ActivityRecords {
 public:
  virtual ~ActivityRecords() = default;
  ActivityRecords(const ActivityRecords&) = delete;
  ActivityRecords& operator=(const ActivityRecords&) = delete;

  /// From here on records are collected. @throws Error(unsupported) naming the call of CUPTI that failed
  virtual void begin() = 0;
  /// Collects no more. The caller has waited for the GPU. @return us in which at least one of the recorded activities
  /// ran
  /// @throws Error(unsupported) naming the call that failed, or when records were dropped
  virtual double end() = 0;

 protected:
  ActivityRecords() = default;
};

/// @param library path of libcupti; empty: the places where toolkits put it
/// @throws Error(unsupported) when it is not there, lacks a function, writes records of another version than Heed was
/// built for, or Heed was built without its headers
std::unique_ptr<ActivityRecords> open_activity_records(const std::string& library = {});

}  // namespace heed
