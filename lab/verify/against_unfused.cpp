#include "verify/against_unfused.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace heed::verify {
namespace {

// Checks that ask for no log-sum-exp have this name and more.
constexpr std::array kAsModelsSend = {std::string_view("peaked"), std::string_view("attention_sink"),
                                      std::string_view("own_key"), kGivenTensors};

bool is_as_models_send(std::string_view name) {
  return std::find(kAsModelsSend.begin(), kAsModelsSend.end(), name.substr(0, name.find(','))) != kAsModelsSend.end();
}

}  // namespace

std::optional<AgainstUnfused> against_unfused(const Workload& workload, const CheckResult& check) {
  if (workload.dtype == Dtype::fp32 || workload.quantised || !check.has_errors || !is_as_models_send(check.name))
    return std::nullopt;
  if (check.unfused.max_abs == 0 || check.unfused.rel_rms == 0) return std::nullopt;
  return AgainstUnfused{.max_abs = check.error.max_abs / check.unfused.max_abs,
                        .rel_rms = check.error.rel_rms / check.unfused.rel_rms};
}

}  // namespace heed::verify
