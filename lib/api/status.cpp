#include "api/status.hpp"

namespace heed::api {

std::string& last_error() {
  static thread_local std::string text;
  return text;
}

heed_status failed(heed_status status, const char* text) noexcept {
  try {
    last_error() = text;
  } catch (...) {
    last_error().clear();
  }
  return status;
}

heed_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
    case ErrorCode::invalid_input:
      return HEED_INVALID_ARGUMENT;
    case ErrorCode::invalid_workload:
      return HEED_INVALID_PROBLEM;
    case ErrorCode::unsupported:
      return HEED_UNSUPPORTED;
    case ErrorCode::no_device:
      return HEED_NO_DEVICE;
    case ErrorCode::programs:
      return HEED_BAD_PROGRAMS;
    case ErrorCode::driver:
      return HEED_DRIVER_ERROR;
    case ErrorCode::no_compiler:
    case ErrorCode::build_failed:
    case ErrorCode::cache:
    case ErrorCode::store:
    case ErrorCode::worker:
    case ErrorCode::model:
    case ErrorCode::interrupted:
    case ErrorCode::internal:
      break;
  }
  return HEED_INTERNAL;
}

}  // namespace heed::api
