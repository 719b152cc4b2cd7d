#include "device/placement.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cstring>

#include "base/files.hpp"
#include "base/text.hpp"
#include "device/processors.hpp"
#include "heed/heed.hpp"

namespace heed {
namespace {

constexpr std::string_view kVisible = "CUDA_VISIBLE_DEVICES=";

thread_local const Placement* current = nullptr;

}  // namespace

Placed::Placed(const Placement& placement)
    : before_(current), processors_before_(allowed_processors()), placement_(placement) {
  if (!run_on(placement_.host))
    throw Error(ErrorCode::unsupported,
                fmt::format("this process may not run on processors {}: {}", processor_list(placement_.host),
                            last_system_error()),
                processor_list(placement_.host));
  current = &placement_;
}

Placed::~Placed() {
  current = before_;
  if (!placement_.host.empty()) (void)run_on(processors_before_);
}

const Placement& placement() {
  static const Placement none;
  return current == nullptr ? none : *current;
}

bool run_on(const std::vector<int>& processors) {
  if (processors.empty()) return true;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors)
    if (processor >= 0 && processor < CPU_SETSIZE) CPU_SET(processor, &set);
  return ::sched_setaffinity(0, sizeof set, &set) == 0;
}

std::vector<std::string> environment_of(const Placement& placement) {
  std::vector<std::string> all;
  for (char** one = environ; one != nullptr && *one != nullptr; ++one)
    if (placement.visible.empty() || std::string_view(*one).substr(0, kVisible.size()) != kVisible)
      all.emplace_back(*one);
  if (!placement.visible.empty()) all.push_back(std::string(kVisible) + placement.visible);
  return all;
}

std::string visible_gpu(int gpu, const char* visible) {
  if (visible == nullptr) return std::to_string(gpu);
  const std::vector<std::string> items = split(visible, ',');
  const auto at = static_cast<std::size_t>(gpu);
  return at < items.size() ? std::string(trim(items[at])) : std::to_string(gpu);
}

}  // namespace heed
