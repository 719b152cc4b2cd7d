/// When a request is sent again: exponential back-off with jitter (Brooker, "Exponential Backoff And Jitter", AWS
/// Architecture Blog 2015), and as long as the server asks for (Retry-After, RFC 9110, 10.2.3).
#pragma once

#include <functional>
#include <optional>

#include "base/random.hpp"
#include "models/http.hpp"

namespace heed::models {

struct RetryPolicy {
  int most_attempts = 5;
  double first_wait_s = 1;
  double longest_wait_s = 60;
};

/// Whether the same request may succeed later: no connection, a time-out, status 408, 409, 425, 429 and 500 to 599 but
/// 501 and 505.
bool may_succeed_later(const HttpReply& reply);

/// Seconds that the server asks to wait before the next request; none where it does not say.
std::optional<double> retry_after(const HttpReply& reply);

/// Seconds until the next attempt: what the server asks for, else between a half and the whole of a time that doubles
/// with every attempt. None where no attempt is left, or the server asks for more than the longest wait.
/// @param attempt how many were made
std::optional<double> wait_before_next(const RetryPolicy& policy, int attempt, const HttpReply& reply, Random& random);

/// Sleeps, and looks at interrupts meanwhile. @throws Error(interrupted)
void sleep_for(double seconds);

}  // namespace heed::models
