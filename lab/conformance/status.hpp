/// Results of libheed and of the driver as exceptions.
#pragma once

#include <fmt/format.h>

#include <string>

#include "heed/heed.h"
#include "heed/heed.hpp"
#ifdef HEED_WITH_CUDA
#include "device/cuda_driver.hpp"
#endif

namespace heed::conformance {

/// @throws Error(internal) with libheed's own sentence
inline void expect_ok(heed_status status) {
  if (status != HEED_OK) throw Error(ErrorCode::internal, heed_last_error(), heed_status_name(status));
}

#ifdef HEED_WITH_CUDA
/// @param step what was done, for the message  @throws Error(driver)
inline void check(CUresult result, const char* step) {
  if (result != CUDA_SUCCESS)
    throw Error(ErrorCode::driver, fmt::format("{} failed: {}", step, cuda_error_text(result)), std::to_string(result));
}
#endif

}  // namespace heed::conformance
