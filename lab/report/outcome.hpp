/// How a stored run ended: judged from its numbers, so that a run of an older rule is judged by today's.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/faster.hpp"
#include "json/fields.hpp"
#include "store/store.hpp"

namespace heed::report {

/// The referee that judged a run: the first where it names none.
inline int referee_of(const store::RunRecord& run) {
  const int named = static_cast<int>(fields::number(run.options, "referee"));
  return named > 0 ? named : 1;
}

/// @param result of a finished run
inline bool has_champion(const nlohmann::json& result) {
  return result.is_object() &&
         is_faster(fields::number(fields::member(fields::member(result, "final"), "ratio"), "low"),
                   fields::number(result, "self_spread"));
}

/// Whether a finished run ended without a word on whether anything is faster, because of noise.
/// @param result of a finished run
inline bool was_too_noisy(const nlohmann::json& result) {
  const nlohmann::json& ratio = fields::member(fields::member(result, "final"), "ratio");
  return ratio.is_object() && is_too_noisy_to_say(fields::number(ratio, "low"), fields::number(ratio, "high"),
                                                  fields::number(result, "self_spread"));
}

/// "faster", "not_faster", "too_noisy", or what kept the run from a final comparison.
inline std::string outcome_of(const nlohmann::json& result) {
  if (!fields::member(result, "final").is_object()) return fields::text_of(result, "outcome");
  if (has_champion(result)) return "faster";
  return was_too_noisy(result) ? "too_noisy" : "not_faster";
}

/// How much longer a champion may take beside a peer's process, beyond what the base shows against itself, before that
/// is told. On an H200 it takes up to 10% less there, because a GPU that waits for another process draws less power.
inline constexpr double kLongerInCompany = 1.05;

/// A sentence where the champion takes longer beside a peer's process than in its own, of the peer beside which it
/// takes longest: its speed may rest on something that others take from it, such as a cache that nothing else uses.
/// Else empty.
/// @param result of a finished run
inline std::string slower_in_company(const nlohmann::json& result) {
  const double alone_us = fields::number(fields::member(result, "final"), "trial_us");
  double longest_us = 0;
  std::string peer;
  for (const nlohmann::json& row : fields::member(fields::member(result, "peers"), "rows"))
    if (const double us = fields::number(row, "champion_us"); us > longest_us) {
      longest_us = us;
      peer = fields::text_of(row, "backend");
    }
  const double allowed = kLongerInCompany + std::max(0.0, fields::number(result, "self_spread"));
  if (alone_us <= 0 || longest_us <= alone_us * allowed) return "";
  return fmt::format(
      "beside {} the champion takes {:.2f} us, {:.2f} times as long as without; the ratios to PyTorch are of there, "
      "that to the base is not",
      peer, longest_us, longest_us / alone_us);
}

}  // namespace heed::report
