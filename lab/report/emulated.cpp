#include "report/emulated.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <map>

namespace heed::report {

std::string emulated_text(const std::vector<store::ComparisonRecord>& comparisons) {
  std::map<std::int64_t, std::string> lines;
  for (const store::ComparisonRecord& c : comparisons) {
    if (c.kind != "emulated") continue;
    const std::string outcome = c.data.at("outcome").get<std::string>();
    const std::int64_t trial = c.data.at("trial_id").get<std::int64_t>();
    if (outcome == "passed")
      lines[trial] = fmt::format("passed, {} launches of {} small workloads", c.data.at("launches").get<int>(),
                                 c.data.at("workloads").size());
    else if (outcome == "failed")
      lines[trial] = fmt::format("{}: {} ({})", c.data.at("verdict").get<std::string>(),
                                 c.data.at("reason").get<std::string>(), c.data.at("check").get<std::string>());
    else
      lines[trial] = fmt::format("{}: {}", outcome, c.data.at("reason").get<std::string>());
  }
  std::string text;
  for (const auto& [trial, line] : lines) text += fmt::format("\nemulator, trial {}: {}", trial, line);
  return text.empty() ? text : text + "\n";
}

}  // namespace heed::report
