#include "cli/judgement.hpp"

#include "base/version.hpp"
#include "compile/embedded.hpp"
#include "record/json.hpp"

namespace heed::cli {
namespace {

constexpr std::size_t kMostLog = 20000;  // of the compiler's words; the first errors come first

nlohmann::json earlier_json(const std::optional<store::TrialRecord>& earlier) {
  if (!earlier) return nullptr;
  const auto reading = [&](double value) { return earlier->ratio > 0 ? nlohmann::json(value) : nlohmann::json(); };
  return {{"trial", earlier->id > 0 ? nlohmann::json(earlier->id) : nlohmann::json()},
          {"ratio", reading(earlier->ratio)},
          {"low", reading(earlier->ratio_low)},
          {"high", reading(earlier->ratio_high)},
          {"verdict", to_string(earlier->verdict)}};
}

}  // namespace

nlohmann::json judgement_json(const evolve::SourceJudge& judge, const evolve::Judgement& judgement,
                              const Workload& workload, const DeviceFacts& device) {
  const store::TrialRecord& t = judgement.trial;
  const bool timed = t.ratio > 0;
  return {{"verdict", to_string(t.verdict)},
          {"finding", to_string(t.finding)},
          {"check", t.check},
          {"reason", t.reason},
          {"log", judgement.log.substr(0, kMostLog)},
          {"faster", judgement.faster},
          {"earlier", earlier_json(judgement.earlier)},
          {"ratio",
           timed ? nlohmann::json{{"value", t.ratio}, {"low", t.ratio_low}, {"high", t.ratio_high}} : nlohmann::json()},
          {"base_us", timed ? t.base_us : judge.base_us()},
          {"trial_us", timed ? nlohmann::json(t.trial_us) : nlohmann::json()},
          {"self_spread", judge.self_spread()},
          {"error", {{"max_abs", t.max_abs}, {"rel_rms", t.rel_rms}, {"worst_row", t.worst_row}}},
          {"resources", t.resources},
          {"base", judge.base().variant.id()},
          {"variant", t.variant},
          {"config", t.config},
          {"edits", t.edits},
          {"trial", t.id > 0 ? nlohmann::json(t.id) : nlohmann::json()},
          {"run", judge.run()},
          {"workload", to_string(workload)},
          {"device", record::to_json(device)},
          {"source_digest", compile::source_digest()},
          {"referee", kReferee}};
}

}  // namespace heed::cli
