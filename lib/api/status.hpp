/// How calls of the C interface end: exceptions become codes, sentences go to a text of the calling thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "heed/heed.h"
#include "heed/heed.hpp"

namespace heed::api {

/// What was wrong with the calling thread's last call that failed.
std::string& last_error();

/// Sets the text. @return the status
heed_status failed(heed_status status, const char* text) noexcept;

heed_status status_of(ErrorCode code);

template <typename Call>
heed_status guarded(const Call& call) noexcept {
  try {
    call();
    return HEED_OK;
  } catch (const Error& error) {
    return failed(status_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return failed(HEED_OUT_OF_MEMORY, "there is not enough memory on the host or the GPU");
  } catch (const std::exception& error) {
    return failed(HEED_INTERNAL, error.what());
  } catch (...) {
    return failed(HEED_INTERNAL, "an unknown exception");
  }
}

/// Into a caller's buffer, cut to its size and ended by 0.
inline void copy_text(const std::string& all, char* text, std::size_t bytes) {
  if (text == nullptr || bytes == 0) return;
  const std::size_t count = std::min(bytes - 1, all.size());
  std::memcpy(text, all.data(), count);
  text[count] = '\0';
}

}  // namespace heed::api
