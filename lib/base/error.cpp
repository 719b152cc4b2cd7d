#include "heed/heed.hpp"

namespace heed {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
      return "usage";
    case ErrorCode::invalid_workload:
      return "invalid_workload";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::invalid_input:
      return "invalid_input";
    case ErrorCode::no_device:
      return "no_device";
    case ErrorCode::no_compiler:
      return "no_compiler";
    case ErrorCode::build_failed:
      return "build_failed";
    case ErrorCode::cache:
      return "cache";
    case ErrorCode::store:
      return "store";
    case ErrorCode::worker:
      return "worker";
    case ErrorCode::programs:
      return "programs";
    case ErrorCode::driver:
      return "driver";
    case ErrorCode::model:
      return "model";
    case ErrorCode::interrupted:
      return "interrupted";
    case ErrorCode::internal:
      return "internal";
  }
  return "internal";
}

}  // namespace heed
