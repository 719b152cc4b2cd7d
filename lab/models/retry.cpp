#include "models/retry.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <thread>

#include "process/interrupt.hpp"

namespace heed::models {

// Seconds, or a date.
std::optional<double> retry_after(const HttpReply& reply) {
  const auto at = reply.headers.find("retry-after");
  if (at == reply.headers.end()) return std::nullopt;
  const std::string& text = at->second;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(seconds)) return std::max(0.0, seconds);
  std::tm parts{};
  if (::strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts) == nullptr) return std::nullopt;
  return std::max(0.0, std::difftime(::timegm(&parts), std::time(nullptr)));
}

bool may_succeed_later(const HttpReply& reply) {
  switch (reply.failure) {
    case HttpReply::Failure::unreachable:
    case HttpReply::Failure::broken:
    case HttpReply::Failure::timed_out:
      return true;
    case HttpReply::Failure::too_large:
      return false;
    case HttpReply::Failure::none:
      break;
  }
  const int s = reply.status;
  return s == 408 || s == 409 || s == 425 || s == 429 || (s >= 500 && s < 600 && s != 501 && s != 505);
}

std::optional<double> wait_before_next(const RetryPolicy& policy, int attempt, const HttpReply& reply, Random& random) {
  if (attempt >= policy.most_attempts) return std::nullopt;
  if (const std::optional<double> asked = retry_after(reply)) {
    if (*asked > policy.longest_wait_s) return std::nullopt;
    return *asked;
  }
  const double whole = std::min(policy.longest_wait_s, std::ldexp(policy.first_wait_s, std::min(attempt - 1, 30)));
  return whole * random.uniform(0.5, 1.0);
}

void sleep_for(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  for (;;) {
    check_interrupt();
    const auto left = end - Clock::now();
    if (left <= Clock::duration::zero()) return;
    std::this_thread::sleep_for(std::min<Clock::duration>(left, std::chrono::milliseconds(100)));
  }
}

}  // namespace heed::models
