/// What plans keep of files that they choose programs from.
#pragma once

#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/files.hpp"
#include "device/device_facts.hpp"

namespace heed::api {

/// One T for each path and device: made again where another file took the path.
template <typename T>
class OpenedFiles {
 public:
  /// @param make of the file as it is now; what it throws is thrown, and the next call tries again
  template <typename Make>
  std::shared_ptr<const T> get(const std::string& path, const DeviceFacts& device, const Make& make) {
    const std::string stamp = file_stamp(path);
    const std::lock_guard lock(mutex_);
    Opened& one = all_[fmt::format("{}\n{}\n{}\n{}", path, device.arch, device.name, device.processors)];
    if (one.made == nullptr || one.stamp != stamp) one = {stamp, make()};
    return one.made;
  }

 private:
  struct Opened {
    std::string stamp;
    std::shared_ptr<const T> made;
  };
  std::mutex mutex_;
  std::map<std::string, Opened> all_;
};

}  // namespace heed::api
